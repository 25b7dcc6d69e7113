"""The Python API: the functions of `import llmrl`, one module for each subject."""
