"""Adapters that give a `VecEnv` the interface of PettingZoo (many agents) or Gymnasium (one agent)."""
