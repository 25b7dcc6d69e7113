"""Hyperparameter search: search space and resumable study. This package does not use Hydra."""
