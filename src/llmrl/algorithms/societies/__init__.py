"""Batched computation of several societies of equal networks."""
