"""Errors that are shown to the user. Each message names what is wrong and what would work.

The command line prints the message without the traceback and exits non-zero. The traceback goes to the run folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from llmrl.core.printable import printable


def short_error(error: BaseException) -> str:
    """Return the first line of an error's message, after the name of its class unless it is an `LlmrlError`."""
    first = printable((str(error).splitlines() or [""])[0], lines=False)
    return first if isinstance(error, LlmrlError) and first else f"{type(error).__name__}: {first}".rstrip(": ")


_TRACEBACK = "__llmrl_traceback__"


def attach_traceback_path(error: BaseException, path: str) -> None:
    """Store on an error the path of the file that contains its full traceback."""
    setattr(error, _TRACEBACK, path)


def saved_traceback_path(error: BaseException) -> str:
    """Return the path that `attach_traceback_path` stored on an error; empty if there is none."""
    return str(getattr(error, _TRACEBACK, ""))


class LlmrlError(Exception):
    """Base class of errors that the user or the machine causes, as opposed to defects of this package.

    Messages may quote a server or a file, so `str(error)` is `printable`.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(LlmrlError):
    """An option, a value or a combination of parts that cannot work."""


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
        """Raise one `ConfigError` with the messages of all collected errors, one per line.

        Do nothing if there is none.
        """
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ConfigError("\n".join(str(error) for error in self._errors))


class Misfit(StrEnum):
    """Reasons for which two parts cannot work together whatever their options.

    The list is closed: any other refusal concerns a part that could be written, or an option that could be set.
    docs/matrix.md shows the reasons as sentences (`told`).
    """

    INTERFACE = "interface"
    ABSENT = "absent"
    UNTAUGHT = "untaught"
    ONE_GAME = "one_game"
    MODEL = "model"

    @property
    def told(self) -> str:
        """The reason as a sentence."""
        return _MISFIT_MESSAGES[self]


_MISFIT_MESSAGES = {
    Misfit.INTERFACE: "The agent reads words, a map, numbers or a state that the game does not show, or chooses where "
    "the game asks for numbers.",
    Misfit.ABSENT: "One acts on, or plays by, what is not there: a mechanism or parameters, a teacher, a model.",
    Misfit.UNTAUGHT: "The agent only plays, or learns in a way of its own, so nobody teaches or governs it.",
    Misfit.ONE_GAME: "One is made for games of another kind: it has a rule, words or weights for some, or plays alone.",
    Misfit.MODEL: "A model gives replies or log-probabilities, and the parts want what it does not give, or both.",
}


class Incompatible(ConfigError):  # noqa: N818  (an adjective reads better in `raise Incompatible`)
    """Two parts that cannot work together by their nature, whatever their options.

    Attributes:
        reason: the reason.
    """

    def __init__(self, reason: Misfit, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, *self.args), self.__dict__


class PrerequisiteFailed(LlmrlError):  # noqa: N818  (the name says what failed)
    """A run that this run depends on has ended without a result."""


class EngineError(LlmrlError):
    """A game engine could not be started, or died."""


class LLMError(LlmrlError):
    """A language model could not be reached or refused to serve (missing key, outage, quota).

    Attributes:
        refused: true if the server certainly generated nothing, so that nothing is charged; false if this is unknown.
    """

    def __init__(self, message: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class NotAsked(LLMError):  # noqa: N818  (no failure)
    """A call to a language model was not made, or not repeated, because of a limit or a stop set by the user."""


class BudgetExhausted(NotAsked):
    """One more call could exceed what the run may spend on language models.

    Attributes:
        reached: the limit that was reached, in words, without the advice that the message adds.
    """

    def __init__(self, reached: str, advice: str = "") -> None:
        super().__init__(f"{reached}. {advice}" if advice else reached)
        self.reached = reached


class Interrupted(NotAsked):
    """A call to a language model was abandoned because the run is stopping."""


class TooManyInvalid(LLMError):  # noqa: N818
    """The share of a language model's replies that could not be parsed is too large."""


class Diverged(LlmrlError):  # noqa: N818  (no mistake of the user)
    """Learning has produced numbers that are not finite (NaN or infinity)."""


class CheckpointError(LlmrlError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class RunFolderError(LlmrlError):
    """A run folder cannot be created or written, or another process is using it."""


class RunInUse(RunFolderError):  # noqa: N818  (no failure)
    """Another live process is using the run folder."""


class ProcessesError(LlmrlError):
    """Another process of a run of several processes has failed, is gone, or computes something else."""
