"""Sweep folders to statistics. Reads files only; never imports torch."""
