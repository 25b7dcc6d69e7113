"""Worlds of PettingZoo, whose agents act together or take turns, and games of OpenSpiel and TextArena."""
