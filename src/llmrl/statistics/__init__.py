"""Estimates, confidence intervals and comparisons: functions of arrays."""
