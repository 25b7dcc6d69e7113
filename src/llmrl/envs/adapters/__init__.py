"""Adapters of environments of this package to the interfaces of PettingZoo (many agents) and Gymnasium (one agent)."""
