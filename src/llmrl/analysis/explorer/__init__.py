"""A static page to explore results: episodes step by step, and proposals with their conversations."""
