"""Conversion of exceptions and invalid results of environments into errors that name the environment."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from llmrl.core.errors import ConfigError, EngineError, LlmrlError, summarize_error

if TYPE_CHECKING:
    from gymnasium import Space

log = logging.getLogger(__name__)

Env = TypeVar("Env")

_CREATION_ERROR_TYPES = (KeyError, IndexError, ValueError, AssertionError, ImportError)
"""Errors that constructors raise for invalid arguments; ImportError: the environment has moved to another package."""
ENCODING_ERROR_TYPES = (KeyError, IndexError, ValueError, TypeError)
"""Errors that encoders raise for an observation that is not in its space."""


def name_env_in_errors(env: Env) -> Env:
    """Wrap `reset`, `step` and `close` of an environment, in place, so that errors name it; return the environment.

    These methods then raise EngineError for every exception except an LlmrlError. If `close` fails while another
    exception is handled, its failure is only logged.

    `copy.deepcopy` of the environment raises TypeError: the wrapped methods of a copy would change the original, and
    state in compiled code, in other processes or in views of one array cannot be copied attribute by attribute.
    """
    env_name = env.spec.name  # type: ignore[attr-defined]
    for name in ("reset", "step", "close"):
        setattr(env, name, _wrap_method(env_name, name, getattr(env, name)))
    env.__deepcopy__ = functools.partial(_raise_copy_error, env_name)  # type: ignore[attr-defined]
    return env


def build_engine_error(env_name: str, call: str, error: BaseException) -> EngineError:
    """Return the EngineError for an exception that the environment named `env_name` raised in `call`, e.g. `step()`."""
    return EngineError(f"the environment {env_name} raised in {call}: {summarize_error(error)}")


def _raise_copy_error(env_name: str, memo: dict[int, Any]) -> NoReturn:
    raise TypeError(
        f"the environment {env_name} cannot be copied with copy.deepcopy. For an independent environment in the same "
        "state, create another one with the same arguments and call its load_state_dict with state_dict() of this one; "
        "adapters have both methods in their attribute env."
    )


def _wrap_method(env_name: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped_method(*arguments: Any, **kwargs: Any) -> Any:
        handled_error = sys.exc_info()[1] if name == "close" else None
        try:
            return method(*arguments, **kwargs)
        except LlmrlError:
            raise
        except Exception as error:
            env_error = build_engine_error(env_name, f"{name}()", error)
            if handled_error is None:
                raise env_error from error
            log.warning("%s", env_error)
            return None

    return wrapped_method


@contextmanager
def convert_creation_errors(id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Return a context manager that converts errors of a constructor with `kwargs`, except a missing module."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ConfigError(f"{id} does not accept env.kwargs={dict(kwargs)}: {error}") from error
    except _CREATION_ERROR_TYPES as error:
        # The text of a KeyError is only the key, so the name of the exception is added.
        name = type(error).__name__
        message = f"{name} {error}" if isinstance(error, KeyError) else str(error) or name
        cause = f" with env.kwargs={dict(kwargs)}" if kwargs else ""
        raise ConfigError(f"{id} cannot be made{cause}: {message}") from error


def build_observation_error(id: str, space: Space[Any], observation: Any, step: int) -> EngineError:
    """Return the EngineError for an observation of the environment `id` that is not in its space."""
    text = " ".join(repr(observation).split())
    return EngineError(
        f"{id} returned in step {step} of an episode an observation that is not in its observation_space {space}: "
        f"{text if len(text) <= 200 else f'{text[:197]}...'}"
    )


def check_rewards(id: str, reward: np.ndarray, steps: np.ndarray) -> None:
    """Raise EngineError unless all rewards [n] are finite; `steps` [n] are the episodes' steps, for the message."""
    if not np.isfinite(reward).all():
        game = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise EngineError(
            f"{id} returned the reward {reward[game]} in step {int(steps[game])} of an episode; rewards must be finite "
            "numbers"
        )
