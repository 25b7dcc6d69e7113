"""Sweeps: which runs are missing, where they are computed, what became of them."""
