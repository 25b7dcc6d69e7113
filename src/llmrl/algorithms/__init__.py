"""Rollouts, advantages and updates: one of each."""
