"""Agents: a policy and, where it learns, its learner."""
