"""`hydra/sweeper=optuna`: hyperparameter search over all swept keys except the seed."""

SEED = "seed"
"""Swept key that is not searched: each trial runs all seeds."""
