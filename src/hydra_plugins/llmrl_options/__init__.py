"""The config source from which Hydra reads the shipped options."""
