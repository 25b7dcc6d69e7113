"""`hydra/sweeper=optuna`: hyperparameter search over everything the command line sweeps, except the seed."""

SEED = "seed"
"""The one swept key that is not searched."""
