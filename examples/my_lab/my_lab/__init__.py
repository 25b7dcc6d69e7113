"""Example package with custom parts for llmrl."""
