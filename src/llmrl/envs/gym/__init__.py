"""Gymnasium environments: n parallel copies (games) in lock step."""
