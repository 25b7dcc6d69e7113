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
"""Exit code: the budget for language models is used up. With a larger budget, the same command resumes the run."""
EXIT_IN_USE = 4
"""Exit code: another live process owns the run folder."""
_INTERRUPTED = "stopped by SIGINT"
FULL_ERROR = "HYDRA_FULL_ERROR"
"""Hydra's environment variable that enables tracebacks on the terminal."""


def say(name: str, text: object) -> None:
    """Write a message of the command `name` to standard error, with control characters made printable."""
    from llmrl.core.printable import printable

    sys.stderr.write(f"\n{name}: {printable(text)}\n")


@contextmanager
def interruptible(name: str, composes: bool = False) -> Iterator[None]:
    """Return a context for the command `name`, entered before its imports, in which Ctrl-C ends it with one line.

    Ctrl-C ends the process at once while a module is imported, and until `begin_work` while Hydra composes the config:
    extension modules and Hydra would turn an exception into other errors, and there is nothing to clean up yet.
    Otherwise it raises `KeyboardInterrupt`. A run replaces this handler by one of its own (`StopFlag`).

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

    # The handler is not installed where signals are ignored (nohup), nor twice: `python -m llmrl train` gets here
    # twice.
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
        if _wants_traceback() and _is_internal(error):
            raise
        tell(name, _with_traceback(str(error), error))
        code = EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED
        raise SystemExit(EXIT_IN_USE if isinstance(error, RunInUse) else code) from error
    except Exception as error:
        # Hydra itself explains errors in the typed overrides, in more than one line.
        if _wants_traceback() or type(error).__module__ == "hydra.errors":
            raise
        tell(name, _unforeseen(error))
        raise SystemExit(EXIT_FAILED) from error


class _Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, for programs that it should end as Ctrl-C does."""


@contextmanager
def ending_at_once(name: str, kept: str) -> Iterator[None]:
    """Return a context for a command that cannot be resumed: Ctrl-C and SIGTERM end it at once, but cleanly.

    Pending requests to a language model are counted, and game processes end.

    Args:
        name: name of the command.
        kept: description of the work that remains, for the message.

    Raises:
        SystemExit: a signal ended the command; with the code 128 + its number.
    """

    def terminate(*_: object) -> None:
        raise _Terminated

    previous = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
        say(name, f"stopped by {number.name}; {kept}")
        raise SystemExit(128 + number) from interrupt
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _wants_traceback() -> bool:
    return os.environ.get(FULL_ERROR, "0") != "0"


def _is_internal(error: BaseException) -> bool:
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
    return _with_traceback(short_error(error), error, f"{FULL_ERROR}=1 before the command shows the full traceback")


def _with_traceback(text: str, error: BaseException, otherwise: str = "") -> str:
    """Return `text` with the path of the full traceback, or with `otherwise` if the traceback was not saved."""
    from llmrl.core.errors import LlmrlError, kept_traceback

    readable = isinstance(error, LlmrlError) and not _is_internal(error)
    traceback_path = "" if readable else kept_traceback(error)
    hint = f"The full traceback is in {traceback_path}" if traceback_path else otherwise
    return f"{text}\n{hint}" if hint else text
