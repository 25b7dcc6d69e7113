"""Agent that consists of several agents, which control different players of a game."""
