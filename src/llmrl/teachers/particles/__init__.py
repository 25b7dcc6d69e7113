"""Domains of particle environments: sentences about each agent's observation, and skills that move a disc."""
