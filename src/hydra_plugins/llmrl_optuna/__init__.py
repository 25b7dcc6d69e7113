"""`hydra/sweeper=optuna`: hyperparameter search over everything the command line sweeps, except the seed."""
