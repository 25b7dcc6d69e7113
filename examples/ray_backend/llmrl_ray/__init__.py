"""Runs of llmrl on Ray."""
