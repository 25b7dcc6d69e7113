"""Players that act by reading descriptions of a game instead of learning: chat models and simple rules."""
