"""Principals: ask/tell proposers that set an environment's mechanism."""
