"""Agents: policies and, if they learn, their learners."""
