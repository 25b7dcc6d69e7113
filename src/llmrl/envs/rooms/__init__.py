"""Rooms with doors, keys and lava: MiniGrid's rules for many games at once, and the same tasks on MiniGrid itself."""
