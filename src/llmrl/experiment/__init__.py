"""Experiments: their parts, prerequisite runs, plans and runs."""
