"""Outer loops of runs; the parts of a run determine its loop."""
