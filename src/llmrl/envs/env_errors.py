"""Conversion of an environment's exceptions into errors that name the environment."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from llmrl.core.errors import EngineError, LlmrlError, short_error

log = logging.getLogger(__name__)

Env = TypeVar("Env")


def guarded(env: Env) -> Env:
    """Wrap `reset`, `step` and `close` of an environment, in place, so that errors name it; return the environment.

    These methods then raise EngineError for every exception except an LlmrlError. If `close` fails while another
    exception is handled, its failure is only logged.

    `copy.deepcopy` of the environment raises TypeError: the methods would stay bound to the original, and games in
    compiled code, in other processes or in views of one array cannot be copied attribute by attribute.
    """
    env_name = env.spec.name  # type: ignore[attr-defined]
    for name in ("reset", "step", "close"):
        setattr(env, name, _wrap(env_name, name, getattr(env, name)))
    env.__deepcopy__ = functools.partial(_raise_copy_error, env_name)  # type: ignore[attr-defined]
    return env


def raised(env: str, where: str, error: BaseException) -> EngineError:
    """Return the EngineError for an exception that the environment named `env` raised in `where`, e.g. `step()`."""
    return EngineError(f"the environment {env} raised in {where}: {short_error(error)}")


def _raise_copy_error(env: str, memo: dict[int, Any]) -> NoReturn:
    raise TypeError(
        f"the environment {env} cannot be copied with copy.deepcopy. For an independent environment in the same state, "
        "make another one with the same arguments and call its load_state_dict with state_dict() of this one; adapters "
        "have both in their attribute env."
    )


def _wrap(env: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **kwargs: Any) -> Any:
        active_error = sys.exc_info()[1] if name == "close" else None
        try:
            return method(*arguments, **kwargs)
        except LlmrlError:
            raise
        except Exception as error:
            engine_error = raised(env, f"{name}()", error)
            if active_error is None:
                raise engine_error from error
            log.warning("%s", engine_error)
            return None

    return call
