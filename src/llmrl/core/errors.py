"""Errors a user is meant to read: each names what is wrong and what would work.

The command line prints their message without a traceback (which still goes to the run folder) and exits non-zero.
"""

from llmrl.core.printable import printable


def short_error(error: BaseException) -> str:
    """One line for a table: the message of an error that is meant to be read, else with what kind it is."""
    first = printable((str(error).splitlines() or [""])[0], lines=False)
    return first if isinstance(error, LlmrlError) and first else f"{type(error).__name__}: {first}".rstrip(": ")


_TRACEBACK = "__llmrl_traceback__"


def keep_traceback(error: BaseException, path: str) -> None:
    """Note on an error where its whole traceback has been written."""
    setattr(error, _TRACEBACK, path)


def kept_traceback(error: BaseException) -> str:
    """Where the whole traceback of an error has been written; empty if nowhere."""
    return str(getattr(error, _TRACEBACK, ""))


class LlmrlError(Exception):
    """Base of all errors that are the user's or the machine's business rather than a defect of this package.

    Messages may hold what a server or a file says, so they are `printable`.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(LlmrlError):
    """An option, value or combination of parts that cannot work."""


class NeededRunFailed(LlmrlError):  # noqa: N818  (it is not this run's)
    """A run that another one needs has ended without a result."""


class EngineError(LlmrlError):
    """A game engine could not be started, or died."""


class LLMError(LlmrlError):
    """A language model could not be reached or refused to serve (missing key, outage, quota).

    `refused`: nothing was generated, for certain, so that nothing is charged; else nobody knows.
    """

    def __init__(self, message: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class NotAsked(LLMError):  # noqa: N818  (nothing went wrong)
    """A call to a language model that is not made, or not made again, because the user wants it so."""


class BudgetExhausted(NotAsked):
    """One more call could exceed what the run may spend on language models.

    `reached` says which limit, without what to do about it.
    """

    def __init__(self, reached: str, advice: str = "") -> None:
        super().__init__(f"{reached}. {advice}" if advice else reached)
        self.reached = reached


class Interrupted(NotAsked):
    """The run is to stop."""


class TooManyInvalid(LLMError):  # noqa: N818
    """Too large a share of a language model's replies could not be read."""


class Diverged(LlmrlError):  # noqa: N818  (nobody made a mistake)
    """Learning has come to numbers that are none: not a number, or infinite."""


class CheckpointError(LlmrlError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class RunFolderError(LlmrlError):
    """A run folder cannot be created, written, or is in use by another process."""


class RunInUse(RunFolderError):  # noqa: N818  (nothing went wrong)
    """Another live process works on the run folder."""


class ProcessesError(LlmrlError):
    """Another of the processes that compute a run together has failed, is gone, or computes something else."""
