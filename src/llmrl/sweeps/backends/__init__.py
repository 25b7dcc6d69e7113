"""Backends, which compute the runs of a sweep, and their interface."""
