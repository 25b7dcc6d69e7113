"""Particle worlds: discs pushed about on a plane, which must cover, chase, or tell each other where to go."""
