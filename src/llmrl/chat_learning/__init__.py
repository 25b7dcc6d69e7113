"""Reinforcement learning of chat models from the consequences of their replies (`llm/learn`)."""
