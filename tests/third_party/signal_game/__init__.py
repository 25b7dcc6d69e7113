"""A package outside llmrl that brings an environment, an agent, a principal, a teacher and an objective of its own."""
