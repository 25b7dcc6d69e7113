"""Environments of Gymnasium, many games in lock step."""
