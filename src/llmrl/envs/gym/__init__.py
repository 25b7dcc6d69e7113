"""Environments of Gymnasium, many games of one at a time."""
