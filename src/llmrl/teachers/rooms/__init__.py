"""Rooms of the MiniGrid family as a domain: what is said about them, and the skills an agent has in them."""
