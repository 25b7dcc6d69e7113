"""Batched computation of several societies (groups of agents) with networks of the same shape."""
