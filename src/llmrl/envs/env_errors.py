"""Conversion of an environment's exceptions into errors that name the environment."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from llmrl.core.errors import EngineError, LlmrlError, short_error

log = logging.getLogger(__name__)

Env = TypeVar("Env")


def guarded(env: Env) -> Env:
    """Wrap `reset`, `step` and `close` of an environment, in place, so that errors name it; return the environment.

    These methods then raise EngineError for every exception that is no LlmrlError. If `close` fails while another
    exception is handled, its failure is only logged.
    """
    called = env.spec.name  # type: ignore[attr-defined]
    for name in ("reset", "step", "close"):
        setattr(env, name, _named(called, name, getattr(env, name)))
    return env


def raised(env: str, where: str, error: BaseException) -> EngineError:
    """Return the EngineError for an exception that the environment named `env` raised in `where`, e.g. `step()`."""
    return EngineError(f"the environment {env} raised in {where}: {short_error(error)}")


def _named(env: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        before = sys.exc_info()[1] if name == "close" else None
        try:
            return method(*arguments, **named)
        except LlmrlError:
            raise
        except Exception as error:
            told = raised(env, f"{name}()", error)
            if before is None:
                raise told from error
            log.warning("%s", told)
            return None

    return call
