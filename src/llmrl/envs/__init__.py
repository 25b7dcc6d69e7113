"""Environments: adapters to game engines, games of our own, and the mechanisms that govern them."""
