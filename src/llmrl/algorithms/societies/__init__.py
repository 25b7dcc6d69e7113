"""Several societies of equal networks, computed at once."""
