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
_INTERRUPT_MESSAGE = "stopped by SIGINT"
FULL_ERROR_VARIABLE = "HYDRA_FULL_ERROR"
"""Hydra's environment variable that enables tracebacks on the terminal."""
_is_composing = False  # whether Hydra composes the config of the command


def print_message(name: str, text: object) -> None:
    """Write a message of the command `name` to standard error, with control characters made printable."""
    from llmrl.core.printable import printable

    sys.stderr.write(f"\n{name}: {printable(text)}\n")


@contextmanager
def handle_interrupt(name: str, composes_config: bool = False) -> Iterator[None]:
    """Return a context in which Ctrl-C ends the command `name` with one line. Enter it before the command's imports.

    While a module is imported and while Hydra composes the config (until `end_composition`), Ctrl-C ends the process at
    once, because extension modules and Hydra would turn an exception into other errors; there is nothing to clean up
    yet. Otherwise, Ctrl-C raises `KeyboardInterrupt`. A run replaces this handler with its own (`StopFlag`).

    Args:
        name: name of the command.
        composes_config: whether Hydra composes the config of the command.

    Raises:
        SystemExit: Ctrl-C ended the command. The exit code is `EXIT_INTERRUPTED`.
    """

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        if _is_composing or _is_importing(frame):
            os.write(2, f"\n{name}: {_INTERRUPT_MESSAGE}\n".encode())
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    global _is_composing
    _is_composing = composes_config

    # The handler is not installed where signals are ignored (nohup), and only once for `python -m llmrl train`, which
    # enters this context twice.
    is_main_thread = threading.current_thread() is threading.main_thread()
    is_installed = is_main_thread and signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if is_installed:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print_message(name, _INTERRUPT_MESSAGE)
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        _is_composing = False
        if is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_composition() -> None:
    """Record that Hydra has composed the config of the command, for the handler of `handle_interrupt`."""
    global _is_composing
    _is_composing = False


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def exit_on_error(name: str, report: Callable[[str, object], None] = print_message) -> Iterator[None]:
    """Return a context that turns any exception of the command `name` into one message and an exit code.

    An unexpected error is shown without its traceback, which a run saves in its folder. It is raised unchanged if
    `HYDRA_FULL_ERROR` is set. Hydra's own errors are always raised unchanged.

    Args:
        name: name of the command.
        report: function that shows a message, with the name of the command and the message as arguments.

    Raises:
        SystemExit: the command failed or was interrupted.
    """
    from llmrl.core.errors import BudgetExhausted, LlmrlError, RunInUse

    try:
        yield
    except KeyboardInterrupt:
        report(name, _INTERRUPT_MESSAGE)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except LlmrlError as error:
        if _is_full_error_requested() and _is_internal(error):
            raise
        report(name, _append_traceback_path(str(error), error))
        code = EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED
        raise SystemExit(EXIT_IN_USE if isinstance(error, RunInUse) else code) from error
    except Exception as error:
        # Hydra itself prints errors in overrides, with several lines of explanation.
        if _is_full_error_requested() or type(error).__module__ == "hydra.errors":
            raise
        report(name, _format_unexpected_error(error))
        raise SystemExit(EXIT_FAILED) from error


@contextmanager
def console_command(name: str) -> Iterator[None]:
    """Return the context of a console script: secrets in its output are redacted, and errors become messages.

    Args:
        name: name of the command.

    Raises:
        SystemExit: the command failed or was interrupted.
    """
    with handle_interrupt(name):
        from llmrl.core.terminal import guard_output

        guard_output()
        with exit_on_error(name):
            yield


class _Terminated(KeyboardInterrupt):
    """Exception for SIGTERM, in commands that handle SIGTERM and Ctrl-C in the same way."""


@contextmanager
def exit_on_signal(name: str, note: str) -> Iterator[None]:
    """Return a context for a command that cannot be resumed: Ctrl-C and SIGTERM end it at once, after cleanup.

    The cleanup records the cost of pending requests to a language model and ends the processes of games.

    Args:
        name: name of the command.
        note: description of what has been written, for the message.

    Raises:
        SystemExit: a signal ended the command. The exit code is 128 plus the number of the signal.
    """

    def terminate(*_: object) -> None:
        raise _Terminated

    is_main_thread = threading.current_thread() is threading.main_thread()
    previous_handler = signal.signal(signal.SIGTERM, terminate) if is_main_thread else None
    try:
        yield
    except KeyboardInterrupt as interrupt:
        signal_number = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
        print_message(name, f"stopped by {signal_number.name}; {note}")
        raise SystemExit(128 + signal_number) from interrupt
    finally:
        if previous_handler is not None:
            signal.signal(signal.SIGTERM, previous_handler)


def _is_full_error_requested() -> bool:
    return os.environ.get(FULL_ERROR_VARIABLE, "0") != "0"


def _is_internal(error: BaseException) -> bool:
    """Return whether an environment's code raised the error, so that its traceback helps to find the cause."""
    from llmrl.core.errors import EngineError

    return isinstance(error, EngineError) and (error.__cause__ is not None or hasattr(error, "__notes__"))


def _format_unexpected_error(error: Exception) -> str:
    from pathlib import Path

    from llmrl.core.atomic_files import DISK_FULL_ERRNOS, describe_write_error
    from llmrl.core.errors import get_traceback_path, summarize_error

    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        path = Path(str(error.filename or get_traceback_path(error) or "."))
        return _append_traceback_path(f"cannot write {path}: {describe_write_error(path, error)}", error)
    if isinstance(error, MemoryError):
        return _append_traceback_path(f"there is not enough memory: {summarize_error(error)}", error)
    return _append_traceback_path(
        summarize_error(error), error, f"{FULL_ERROR_VARIABLE}=1 before the command shows the full traceback"
    )


def _append_traceback_path(text: str, error: BaseException, alternative_hint: str = "") -> str:
    """Append the path of the full traceback to `text`, or `alternative_hint` if the traceback was not saved."""
    from llmrl.core.errors import LlmrlError, get_traceback_path

    is_self_explanatory = isinstance(error, LlmrlError) and not _is_internal(error)
    traceback_path = "" if is_self_explanatory else get_traceback_path(error)
    hint = f"The full traceback is in {traceback_path}" if traceback_path else alternative_hint
    return f"{text}\n{hint}" if hint else text
