"""Hydra configuration of llmrl; installed as the package `llmrl.conf`."""
