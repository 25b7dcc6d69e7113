"""What an environment raises, said as what it is: its own error, by its name."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import EngineError, LlmrlError, short_error

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv

log = logging.getLogger(__name__)


def guarded(env: VecEnv) -> VecEnv:
    """The same environment; whatever its `reset`, `step` and `close` raise names it.

    These methods then raise EngineError for every error that is not one of this package's. That `close` fails after
    another error is logged, and the other error goes on.
    """
    for name in ("reset", "step", "close"):
        setattr(env, name, _named(env.spec.name, name, getattr(env, name)))
    return env


def raised(env: str, where: str, error: BaseException) -> EngineError:
    """The error that the environment `env` raised another one in `where`, such as `step()`."""
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
