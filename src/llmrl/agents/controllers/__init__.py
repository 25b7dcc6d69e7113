"""Policies that are functions of a few numbers, for a proposer to search."""
