"""Policies with few parameters, which a proposer searches."""
