"""Support for debugging runs (`+debug=`): checks for numbers that are not finite, a single episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from llmrl.core.errors import Diverged
from llmrl.core.observers import Observer, Transition
from llmrl.core.records import Array, Observation, on_host

_EPISODE = 0
"""Seed of the single episode."""

Env = TypeVar("Env")


def with_single_episode(env: Env) -> Env:
    """Return the environment, changed such that every episode of every game starts from the same seed.

    Equal actions then give equal episodes.
    """
    inner: Any = env
    inner.pair_games(inner.spec.n_envs)
    reset = inner.reset

    def reset_episode(mask: Array | None = None, seed: Any = None) -> Observation:
        observation: Observation = reset(mask, _EPISODE)
        return observation

    inner.reset = reset_episode
    return env


class FiniteCheck(Observer):
    """An observer that ends a run at the first observation, reward, logit or value that is not finite."""

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        _check({f"observation {name}": x for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        step, act = transition.step, transition.output
        _check(
            {"reward": step.reward, "logits of actions": act.logits, **{f"step's {k}": v for k, v in step.info.items()}}
        )
        _check({f"observation {name}": x for name, x in step.observation.items()})


def _check(arrays: Mapping[str, Any]) -> None:
    for name, x in arrays.items():
        if x is None or str(getattr(x, "dtype", "object")) == "object":
            continue
        numbers = on_host(x)
        # Minus infinity is the logit of an invalid action.
        bad = ~np.isfinite(numbers) & ~((name == "logits of actions") & np.isneginf(numbers))
        if bad.any():
            place = tuple(np.argwhere(bad)[0].tolist())
            raise Diverged(f"+debug=anomaly: the {name} is {numbers[place]} at {place} of {list(numbers.shape)}")
