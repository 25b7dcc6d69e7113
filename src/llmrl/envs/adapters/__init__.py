"""Environments of this package through the interfaces of PettingZoo (several agents) and Gymnasium (one agent)."""
