"""Sweeps: search for missing runs, launch by backends, outcomes, and control of running sweeps."""
