"""Hydra finds launchers and sweepers here; what they do is in `llmrl.sweeps`."""
