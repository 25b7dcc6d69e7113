"""Launcher and sweeper of llmrl as Hydra plugins; the implementation is in `llmrl.sweeps`."""
