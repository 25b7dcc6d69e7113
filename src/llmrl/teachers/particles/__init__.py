"""Particle worlds as domains: descriptions of each agent's observation, and skills that move a disc."""
