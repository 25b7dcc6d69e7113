"""Worlds of PettingZoo, whose agents act together or take turns, and of OpenSpiel."""
