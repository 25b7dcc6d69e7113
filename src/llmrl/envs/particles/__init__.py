"""Particle environments: agents are discs in a plane that cover landmarks, chase each other, or guide each other."""
