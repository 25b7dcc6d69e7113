"""The extension point for where the runs of a sweep are computed: `hardware.backend` in the config."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from llmrl.analysis.runs import JobEnd, Queue
    from llmrl.run.queued import Queued
    from llmrl.sweeps.hardware import Hardware
    from llmrl.sweeps.jobs import Job, Outcome
    from llmrl.sweeps.work import Task


class SchedulerError(ConfigError):
    """A scheduler refused, or does not answer."""


class Scheduler(Protocol):
    """Answer for jobs that go on without the process that launched them.

    It is made without arguments: `llmrl-sweep` looks at run folders long after the launch, and knows of a job what
    `queued.json` tells (`llmrl.run.queued.Queued`).
    """

    def ask(self, taken: Sequence[Queued]) -> list[Queue]:
        """Return what waits and runs where these jobs were submitted; a job that no queue knows of is believed.

        Raises:
            SchedulerError: it cannot be asked now.
        """
        ...

    def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return how jobs ended that its queue has forgotten, by id; without those that it does not know either."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; those that run are told to save first (SIGTERM).

        Raises:
            SchedulerError: it refused.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """Compute the runs of a sweep somewhere: one class for each place, named by `hardware.backend._target_`.

    Its constructor takes the options of the place; device, precision and what a run needs of a machine are in
    `Hardware`. Backends of other packages derive from this class: only `launch` has to be written.

    Attributes:
        scheduler: what knows of jobs that outlive the launching process, a class made without arguments; None: runs
            end with that process.
        command_lines: options that a shell or a job script runs as they are, each with a value that is harmless. Any
            other value is submitted only if it was typed or is trusted (docs/extending.md#whose-code-runs).
    """

    scheduler: ClassVar[type[Scheduler] | None] = None
    command_lines: ClassVar[Mapping[str, Any]] = {}

    @property
    def processes(self) -> int:
        """How many processes compute one run together."""
        return 1

    def check(self, hardware: Hardware) -> None:
        """Refuse options that do not fit the rest of the hardware; called when the config is composed.

        Raises:
            ConfigError: they do not.
        """
        return None

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Refuse what cannot be launched from here; nothing has been started or written yet.

        Raises:
            ConfigError: something that all runs need is missing, or one of them has no room.
        """
        return None

    @abstractmethod
    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
        """Compute the runs; a run that fails does not stop the others.

        Each run is taken on first (`llmrl.sweeps.jobs.take_on`), then computed by a call of `llmrl.sweeps.work.Work`.
        A stop (`llmrl.run.signals.StopFlag`) is handed on to runs that run; those that wait are `cancelled`.

        Args:
            jobs: the runs that are missing, with equal options of this backend.
            task: computes one.
            sweep_folder: exists; for what jobs print.

        Returns:
            An outcome for each job. Without a scheduler, as all have ended; with one, as all are submitted: those that
            were have the state `submitted` and their `job_id`.
        """
        ...


def name_of(backend: Backend) -> str:
    """Return the dotted name by which records of runs call a backend, and find it again."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def text_of(ids: Iterable[str]) -> str:
    """List job ids for a message, the tasks of an array as one.

    >>> text_of(["12_0", "12_1", "14"])
    '12, 14'
    """
    return ", ".join(dict.fromkeys(each.partition("_")[0] for each in ids))
