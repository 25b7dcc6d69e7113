"""Backends, which compute the runs of a sweep, one module each."""
