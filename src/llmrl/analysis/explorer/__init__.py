"""A static folder that shows what is behind the numbers: episodes step by step, and proposals with their talks."""
