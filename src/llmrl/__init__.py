"""llmrl: experiments that mix language models and reinforcement learning, composed with Hydra.

Importing this package is cheap: the functions of the Python API load what they need when they are first used.
"""

from __future__ import annotations

import sys

if "posix" not in sys.builtin_module_names:
    raise ImportError(f"llmrl runs on Linux and macOS, not on {sys.platform}: it needs POSIX file locks and signals")

__version__ = "0.2.0"

TYPE_CHECKING = False  # recognized by type checkers; the import of `typing` would dominate the import time
if TYPE_CHECKING:
    from llmrl.api.environments import make_env, trl_environment
    from llmrl.api.evaluations import evaluate
    from llmrl.api.experiments import Plan, RunResult, SweepResult, plan, sweep, train
    from llmrl.api.results import Results, load
    from llmrl.api.trained_agents import TrainedAgent, load_agent

_MODULE_BY_NAME = {
    "Plan": "experiments",
    "Results": "results",
    "RunResult": "experiments",
    "SweepResult": "experiments",
    "TrainedAgent": "trained_agents",
    "evaluate": "evaluations",
    "load": "results",
    "load_agent": "trained_agents",
    "make_env": "environments",
    "plan": "experiments",
    "sweep": "experiments",
    "train": "experiments",
    "trl_environment": "environments",
}
"""Public name -> module of `llmrl.api` that defines it."""

__all__ = [
    "Plan",
    "Results",
    "RunResult",
    "SweepResult",
    "TrainedAgent",
    "__version__",
    "evaluate",
    "load",
    "load_agent",
    "make_env",
    "plan",
    "sweep",
    "train",
    "trl_environment",
]


if not TYPE_CHECKING:  # type checkers must report missing names

    def __getattr__(name):
        """Import a public name at its first access."""
        module_name = _MODULE_BY_NAME.get(name)
        if module_name is None:
            raise AttributeError(f"module 'llmrl' has no attribute {name!r}")
        from importlib import import_module

        attribute = getattr(import_module(f"llmrl.api.{module_name}"), name)
        globals()[name] = attribute
        return attribute

    def __dir__():
        return sorted(__all__)
