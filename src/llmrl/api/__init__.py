"""The Python API: what `import llmrl` offers, each function in the module of its subject."""
