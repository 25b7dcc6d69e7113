"""Sweeps: search for missing runs, their computation by backends, and their outcomes."""
