"""A package outside llmrl that brings an environment, an agent, a principal and a teacher of its own."""
