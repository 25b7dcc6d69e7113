"""Console scripts, and the composition of parts from the config."""
