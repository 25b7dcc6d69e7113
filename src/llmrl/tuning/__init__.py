"""Hyperparameter search: what is searched, and a study that outlives the process. No Hydra in here."""
