"""llmrl: experiments that mix language models and reinforcement learning, composed with Hydra.

Importing this package is cheap: the functions of the Python API load what they need when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from llmrl.api.environments import make_env
    from llmrl.api.results import Results, load
    from llmrl.api.trained_agents import TrainedAgent, load_agent

_HOMES = {
    "Results": "llmrl.api.results",
    "TrainedAgent": "llmrl.api.trained_agents",
    "load": "llmrl.api.results",
    "load_agent": "llmrl.api.trained_agents",
    "make_env": "llmrl.api.environments",
}
"""Public name -> module that defines it."""

__all__ = ["Results", "TrainedAgent", "__version__", "load", "load_agent", "make_env"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'llmrl' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
