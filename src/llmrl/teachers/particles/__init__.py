"""Particle worlds as domains: what each agent is told of what it sees, and the skills that move a disc."""
