"""Errors of Gymnasium environments that violate their interface, with the place of the mistake for their authors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from gymnasium import Space

CREATION_ERRORS = (KeyError, IndexError, ValueError, AssertionError, ImportError)
"""Errors that constructors raise for invalid arguments; an ImportError is raised for versions that have moved
elsewhere."""
READING_ERRORS = (KeyError, IndexError, ValueError, TypeError)
"""Errors that are raised when an observation is read that is not in its space."""


@contextmanager
def creation_errors(id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Raise ConfigError for an environment that cannot be made with `kwargs`; missing packages are left to others."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ConfigError(f"{id} does not accept env.kwargs={dict(kwargs)}: {error}") from error
    except CREATION_ERRORS as error:
        # The text of a KeyError is only its key.
        name = type(error).__name__
        message = f"{name} {error}" if isinstance(error, KeyError) else str(error) or name
        cause = f" with env.kwargs={dict(kwargs)}" if kwargs else ""
        raise ConfigError(f"{id} cannot be made{cause}: {message}") from error


def observation_error(id: str, space: Space[Any], observation: Any, step: int) -> EngineError:
    """Return the error for an observation that is not in its space."""
    return EngineError(
        f"{id} returned in step {step} of an episode an observation that is not in its observation_space {space}: "
        f"{_short(observation)}"
    )


def check_rewards(id: str, reward: np.ndarray, steps: np.ndarray) -> None:
    """Raise EngineError unless each `reward` [n] of games in step `steps` [n] of their episodes is finite."""
    if not np.isfinite(reward).all():
        game = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise EngineError(
            f"{id} returned the reward {reward[game]} in step {int(steps[game])} of an episode; rewards must be finite "
            "numbers"
        )


def _short(observation: Any) -> str:
    text = " ".join(repr(observation).split())
    return text if len(text) <= 200 else f"{text[:197]}..."
