"""Societies of several kinds of agents."""
