"""Example of a third-party package with an environment, an agent, a principal, a teacher and an objective."""
