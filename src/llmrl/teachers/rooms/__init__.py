"""Domains of rooms of the MiniGrid family: their descriptions, and the skills of an agent."""
