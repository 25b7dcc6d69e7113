"""Principals: proposers, with `ask` and `tell`, of mechanisms or of policy parameters."""
