"""Error messages and exit codes of all commands."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BUDGET = 3
"""Exit code: the budget for language models is used up; with a larger one the same command resumes the run."""
EXIT_IN_USE = 4
"""Exit code: another live process owns the run folder."""
_INTERRUPTED = "stopped by SIGINT"
WHOLE = "HYDRA_FULL_ERROR"
"""Hydra's environment variable that asks for tracebacks on the terminal."""


def say(name: str, text: object) -> None:
    """Write a message of the command `name` to standard error, with control characters made printable."""
    from llmrl.core.printable import printable

    sys.stderr.write(f"\n{name}: {printable(text)}\n")


@contextmanager
def interruptible(name: str, composes: bool = False) -> Iterator[None]:
    """Return a context for the command `name`, entered before its imports, in which Ctrl-C ends it with one line.

    Ctrl-C ends the process at once while a module is imported, and until `begin_work` while Hydra composes: extension
    modules and Hydra turn an exception into other errors, and nothing has begun that had to be cleaned up. Otherwise it
    raises `KeyboardInterrupt`. A run replaces this by a handler of its own (`StopFlag`).

    Args:
        name: name of the command.
        composes: whether Hydra composes the configuration of the command.

    Raises:
        SystemExit: Ctrl-C ended the command; with the code `EXIT_INTERRUPTED`.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _composing or _is_importing(frame):
            os.write(2, f"\n{name}: {_INTERRUPTED}\n".encode())
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    global _composing
    _composing = composes

    # Not where signals are ignored (nohup), and once only: `python -m llmrl train` enters it twice.
    main = threading.current_thread() is threading.main_thread()
    installed = main and signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if installed:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say(name, _INTERRUPTED)
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        _composing = False
        if installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


_composing = False


def begin_work() -> None:
    """Mark the end of the composition of a command's configuration (`interruptible`)."""
    global _composing
    _composing = False


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def ending(name: str, tell: Callable[[str, object], None] = say) -> Iterator[None]:
    """Return a context that turns any exception of the command `name` into one message (by `tell`) and an exit code.

    An unexpected error is shown without its traceback, which is in the run folder, if there is one. If
    `HYDRA_FULL_ERROR` is set, such an error is raised as it is, and so are Hydra's own errors always.

    Raises:
        SystemExit: the command failed; with the exit code.
    """
    from llmrl.core.errors import BudgetExhausted, LlmrlError, RunInUse

    try:
        yield
    except KeyboardInterrupt:
        tell(name, _INTERRUPTED)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except LlmrlError as error:
        if _whole() and _from_inside(error):
            raise
        tell(name, _with_traceback(str(error), error))
        code = EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED
        raise SystemExit(EXIT_IN_USE if isinstance(error, RunInUse) else code) from error
    except Exception as error:
        # Hydra says itself what is wrong with what was typed, in more than a line.
        if _whole() or type(error).__module__ == "hydra.errors":
            raise
        tell(name, _unforeseen(error))
        raise SystemExit(EXIT_FAILED) from error


class _Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, where it is to end a program as Ctrl-C does."""


@contextmanager
def ending_at_once(name: str, kept: str) -> Iterator[None]:
    """Return a context for a command that cannot be resumed: Ctrl-C and SIGTERM end it at once, but cleanly. Pending
    requests to a language model are counted, and game processes end.

    Args:
        name: name of the command.
        kept: what remains of its work, in words.

    Raises:
        SystemExit: a signal ended the command; with the code 128 + its number.
    """

    def terminate(*_: object) -> None:
        raise _Terminated

    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
        say(name, f"stopped by {number.name}; {kept}")
        raise SystemExit(128 + number) from interrupt
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _whole() -> bool:
    return os.environ.get(WHOLE, "0") != "0"


def _from_inside(error: BaseException) -> bool:
    """Return whether a game raised the error itself; the traceback of such an error is worth showing."""
    from llmrl.core.errors import EngineError

    return isinstance(error, EngineError) and (error.__cause__ is not None or hasattr(error, "__notes__"))


def _unforeseen(error: Exception) -> str:
    from pathlib import Path

    from llmrl.core.atomic_files import FULL, why
    from llmrl.core.errors import kept_traceback, short_error

    if isinstance(error, OSError) and error.errno in FULL:
        place = Path(str(error.filename or kept_traceback(error) or "."))
        return _with_traceback(f"cannot write {place}: {why(place, error)}", error)
    if isinstance(error, MemoryError):
        return _with_traceback(f"there is not enough memory: {short_error(error)}", error)
    return _with_traceback(short_error(error), error, f"{WHOLE}=1 before the command shows the whole traceback")


def _with_traceback(text: str, error: BaseException, otherwise: str = "") -> str:
    """Return `text` with the place of the whole traceback, or with `otherwise` if it was not kept."""
    from llmrl.core.errors import LlmrlError, kept_traceback

    readable = isinstance(error, LlmrlError) and not _from_inside(error)
    kept = "" if readable else kept_traceback(error)
    more = f"The whole traceback is in {kept}" if kept else otherwise
    return f"{text}\n{more}" if more else text
