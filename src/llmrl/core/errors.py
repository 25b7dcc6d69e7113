"""Errors that are shown to the user. Each message states the cause and a remedy.

Commands print the message without the traceback, which is saved in the run folder, and exit with a nonzero code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Self

from llmrl.core.printable import printable


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error's message, after the name of its class unless it is an `LlmrlError`."""
    first_line = printable((str(error).splitlines() or [""])[0], multiline=False)
    is_self_explanatory = isinstance(error, LlmrlError) and bool(first_line)
    return first_line if is_self_explanatory else f"{type(error).__name__}: {first_line}".rstrip(": ")


_TRACEBACK_ATTRIBUTE = "__llmrl_traceback__"


def attach_traceback_path(error: BaseException, path: str) -> None:
    """Store on an error the path of the file that contains its full traceback."""
    setattr(error, _TRACEBACK_ATTRIBUTE, path)


def get_traceback_path(error: BaseException) -> str:
    """Return the path that `attach_traceback_path` stored on an error; empty if there is none."""
    return str(getattr(error, _TRACEBACK_ATTRIBUTE, ""))


class LlmrlError(Exception):
    """Base class of errors that the user or the machine causes, in contrast to defects of this package.

    Messages may quote a server or a file, so `str(error)` escapes control characters (`printable`).
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(LlmrlError):
    """An option, a value or a combination of parts is invalid."""


class ErrorCollector:
    """Collector of the `ConfigError`s of independent checks, so that one attempt reports all of them."""

    def __init__(self) -> None:
        self._errors: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Return a context manager that suppresses a `ConfigError` and stores it. Other errors are raised."""
        try:
            yield
        except ConfigError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raise one `ConfigError` with the messages of all collected errors, one per line, if there are any."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ConfigError("\n".join(str(error) for error in self._errors))


class IncompatibilityReason(StrEnum):
    """Reasons why two parts cannot work together with any options.

    The list is complete: any other error about two parts concerns code that could be added or an option that could be
    set. docs/matrix.md shows the reasons as sentences.
    """

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Self:
        reason = str.__new__(cls, value)
        reason._value_, reason.sentence = value, sentence
        return reason

    INTERFACE = (
        "interface",
        "The agent reads words, a map, numbers or a state that the game does not provide, or chooses one of several "
        "actions where the game takes numbers.",
    )
    MISSING_PART = (
        "absent",
        "One part needs what the other does not have: a mechanism, parameters, a teacher or a model.",
    )
    NOT_TRAINABLE = (
        "untaught",
        "The agent does not learn, or has a training loop of its own, so that neither a teacher nor a principal can "
        "influence it.",
    )
    WRONG_GAME = (
        "one_game",
        "One part is made for other games: it has rules, texts or weights for certain games, or plays games of one "
        "player only.",
    )
    MODEL = ("model", "The model returns only replies or only log-probabilities, and the parts need the other or both.")


class Incompatible(ConfigError):  # noqa: N818  (an adjective reads better in `raise Incompatible`)
    """Two parts cannot work together with any options.

    Attributes:
        reason: kind of the incompatibility.
    """

    def __init__(self, reason: IncompatibilityReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, *self.args), self.__dict__


class PrerequisiteFailed(LlmrlError):  # noqa: N818  (the name contains `Failed`)
    """A run that this run depends on has ended without a result."""


class EngineError(LlmrlError):
    """A game engine could not be started, or ended unexpectedly."""


class LLMError(LlmrlError):
    """A language model could not be reached or rejected the request (missing key, outage, quota).

    Attributes:
        refused: whether it is certain that the server generated no tokens and charges nothing.
    """

    def __init__(self, message: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class CallNotMade(LLMError):  # noqa: N818  (no failure)
    """A call to a language model was not made, or not retried, because of a limit or a stop of the run."""


class BudgetExhausted(CallNotMade):
    """A further call to a language model could exceed the budget of the run.

    Attributes:
        reached_limit: description of the limit that was reached, without the advice that the message adds.
    """

    def __init__(self, reached_limit: str, advice: str = "") -> None:
        super().__init__(f"{reached_limit}. {advice}" if advice else reached_limit)
        self.reached_limit = reached_limit


class CallInterrupted(CallNotMade):
    """A call to a language model was canceled because the run is stopping."""


class TooManyInvalidReplies(LLMError):  # noqa: N818
    """The fraction of a language model's replies that could not be parsed exceeds the limit."""


class Diverged(LlmrlError):  # noqa: N818  (no mistake of the user)
    """Training has produced numbers that are not finite (NaN or infinity)."""


class CheckpointError(LlmrlError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class RunFolderError(LlmrlError):
    """A run folder cannot be created or written, or another process is using it."""


class DamagedFileError(RunFolderError):
    """The content of a file in a run folder cannot be parsed."""


class RunInUse(RunFolderError):  # noqa: N818  (no failure)
    """Another live process is using the run folder."""


class ProcessesError(LlmrlError):
    """Another process of the same run has failed, has ended, or computes different numbers."""
