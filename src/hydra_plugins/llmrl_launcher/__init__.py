"""Launcher and sweeper of llmrl as Hydra plugins. `llmrl.sweeps` has the backends."""
