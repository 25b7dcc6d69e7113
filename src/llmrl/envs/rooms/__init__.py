"""Rooms with doors, keys and lava: MiniGrid's rules for n parallel copies (games), tasks and observations."""
