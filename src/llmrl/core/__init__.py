"""Protocols, records, array aliases and seeding. Imports nothing else of the package."""
