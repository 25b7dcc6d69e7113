"""What an environment of Gymnasium does wrong, said so that its author finds the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from gymnasium import Space
    from gymnasium.spaces import Discrete

REFUSALS = (KeyError, IndexError, ValueError, AssertionError, ImportError)
"""What constructors raise for an argument that cannot be; an ImportError, for a version that has moved elsewhere."""
MISREAD = (KeyError, IndexError, ValueError, TypeError)
"""What reading an observation raises that is not what its space promises."""


def refused(id: str, kwargs: Mapping[str, Any], fault: BaseException) -> ConfigError:
    """The error that an environment could not be made with `kwargs`."""
    # A KeyError's text is the key alone.
    said = f"{type(fault).__name__} {fault}" if isinstance(fault, KeyError) else str(fault) or type(fault).__name__
    cause = f" with env.kwargs={dict(kwargs)}" if kwargs else ""
    if isinstance(fault, TypeError):
        return ConfigError(f"{id} does not take env.kwargs={dict(kwargs)}: {said}")
    return ConfigError(f"{id} cannot be made{cause}: {said}")


def check_state(id: str, space: Discrete, seen: Any, step: int) -> None:
    """Raise EngineError if an observation that is to be one of several states is none of them."""
    try:
        known = 0 <= seen - space.start < space.n
    except TypeError:
        known = False
    if not known:
        raise outside(id, space, seen, step)


def outside(id: str, space: Space[Any], seen: Any, step: int) -> EngineError:
    """The error that an observation is not in its space."""
    return EngineError(
        f"{id} showed in step {step} of an episode an observation that is not in its observation_space {space}: "
        f"{_short(seen)}"
    )


def first_outside(
    id: str, space: Space[Any], seen: Sequence[Any] | np.ndarray, steps: np.ndarray
) -> EngineError | None:
    """`outside` of the first game whose observation is not in the space; None: all are."""
    for one, step in zip(seen, steps.tolist(), strict=True):
        if not space.contains(one):
            return outside(id, space, one, step)
    return None


def check_rewards(id: str, reward: np.ndarray, steps: np.ndarray) -> None:
    """Raise EngineError if a `reward` [n] of games in step `steps` [n] of their episodes is no number."""
    if not np.isfinite(reward).all():
        game = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise EngineError(
            f"{id} gave the reward {reward[game]} in step {int(steps[game])} of an episode; a reward must be a finite "
            "number"
        )


def _short(seen: Any) -> str:
    said = " ".join(repr(seen).split())
    return said if len(said) <= 200 else f"{said[:197]}..."
