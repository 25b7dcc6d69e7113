"""llmrl: experiments that mix language models and reinforcement learning, composed with Hydra.

Importing this package is cheap; torch, litellm and the game engines load only when a part that needs them is built.
"""

__version__ = "0.1.0"
