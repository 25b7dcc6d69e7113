"""Domains of MiniGrid rooms: sentences about states, and skills of an agent."""
