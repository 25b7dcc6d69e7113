"""Societies with several kinds of agents."""
