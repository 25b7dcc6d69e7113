"""Where the runs of a sweep are computed, and on what: `hardware=` in the config, and its backend, an extension point.

A job holds its hardware, that its backend, and this is given jobs, so they are defined together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from llmrl.analysis.runs import JobEnd, Queue, RunRecord, State
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.run.folder import config_hash, find_folder

if TYPE_CHECKING:
    from llmrl.run.queued import Queued
    from llmrl.sweeps.work import Task

Ending = State | Literal["submitted", "elsewhere", "refused"]
"""What a launcher can say of a run: a run's state, `cancelled` where the launcher was stopped first; `submitted` and
not waited for; `elsewhere`: another process or job works on it already; `refused`: it could not be submitted."""


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

    def packs(self, jobs: Sequence[Job]) -> list[Pack]:
        """Return what each process is to compute: a run, or several that have equal keys (`Job.key`).

        `launch` computes several by a call of `llmrl.sweeps.work.Works`; a backend that does not leaves this as it is.
        """
        return [Pack((job,)) for job in jobs]

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        """Return how many of these processes go side by side; None where that is the scheduler's to say."""
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


@dataclass(frozen=True)
class Hardware:
    """One option of `hardware=`.

    Attributes:
        backend: where the runs of a sweep are computed (`llmrl.sweeps.backends`).
        device: torch device of policies and models; `auto`: a GPU where there is one.
        precision: of float32 matrix products (torch.set_float32_matmul_precision).
        threads: of torch and other numerical libraries in one run; None: as many as `cores`.
        cores: processor cores one run keeps busy; None: as many as it has game processes, or threads if those are more.
        memory_gb: memory one run needs, gigabytes.
        gpus: GPUs one run needs.
        parallel: processes of a sweep at once; None: as many as the backend has room for.
        rows: most runs that one process serves; `auto`: as many as memory allows.
        jobs: most jobs of a sweep at once; more runs than that share jobs. None: each run that is alone in its job.
    """

    backend: Backend
    device: str
    precision: Literal["highest", "high", "medium"]
    threads: PositiveInt | None
    cores: PositiveInt | None
    memory_gb: PositiveFloat
    gpus: NonNegativeInt
    parallel: PositiveInt | None
    rows: Literal["auto"] | PositiveInt = "auto"
    jobs: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.backend.scheduler is None:
            raise ConfigError(
                f"hardware.jobs={self.jobs}: {type(self.backend).__name__} submits no jobs; hardware.parallel says how "
                "many processes there are at once"
            )
        self.backend.check(self)

    @property
    def jobs_at_once(self) -> int | None:
        """Most jobs of a scheduler that run at once; None: as many as it has room for."""
        return min((limit for limit in (self.parallel, self.jobs) if limit is not None), default=None)

    def cores_for(self, game_processes: int) -> int:
        """Cores a run with that many game processes should have for itself."""
        return self.cores or max(self.threads or 1, game_processes)

    def apply(self, dry: bool = False) -> str:
        """Set up torch in this process as described; returns the torch device.

        Args:
            dry: the device is only planned for, and need not be here.

        Raises:
            ConfigError: the device is not here.
        """
        import torch

        if (threads := self.threads or self.cores) is not None:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(self.precision)
        available = torch.cuda.is_available()
        if self.device == "auto":
            return "cuda" if available else "cpu"
        if self.device.startswith("cuda") and not available:
            if dry:
                return "cpu"
            raise ConfigError(
                f"hardware.device={self.device}, but torch {torch.__version__} sees no GPU here; use hardware=cpu"
            )
        return self.device


@dataclass(frozen=True)
class Job:
    """One run to be computed.

    Attributes:
        config: the resolved config, plain data; `output_root` is absolute.
        overrides: what was typed for this run.
        hardware: where to compute it.
        cores: cores it should have for itself.
        naming: the overrides that make its folder readable: those that differ within the sweep.
        environment: variables to set in its process (`hydra.job.env_set`).
        after: jobs of the same launch whose runs this one needs: it begins when they have ended.
        key: runs with equal ones may be rows of one process; None: it is alone in its own.
        row_gb: memory that it takes in a process that has a run already, gigabytes; None: as much as by itself.
        gains: as a row beside others it takes less time; else it shares a process only where that is asked for.
    """

    config: dict[str, Any]
    overrides: list[str]
    hardware: Hardware
    cores: int
    naming: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    after: tuple[Job, ...] = ()
    key: str | None = None
    row_gb: float | None = None
    gains: bool = True

    @cached_property
    def folder(self) -> Path:
        """Its run folder, which need not exist yet."""
        c = self.config
        return find_folder(Path(c["output_root"]), c["name"], self.digest, self.naming, c["seed"])

    @cached_property
    def digest(self) -> str:
        """The hash of its config."""
        return config_hash(self.config)

    @property
    def command(self) -> str:
        """The command it was composed by: only llmrl-finetune knows methods of training."""
        return "llmrl-finetune" if "method" in self.config else "llmrl-train"


@dataclass(frozen=True)
class Pack:
    """The runs that one process computes, as its rows; mostly one.

    Attributes:
        jobs: one, or several with equal keys.
    """

    jobs: tuple[Job, ...]

    @property
    def hardware(self) -> Hardware:
        """What its runs have in common."""
        return self.jobs[0].hardware

    @property
    def cores(self) -> int:
        """Cores that it keeps busy: rows take turns, so as many as one run does."""
        return self.jobs[0].cores

    @property
    def memory_gb(self) -> float:
        """Memory that it needs: of one run in a process of its own, and of every further row."""
        own = self.hardware.memory_gb
        return own + sum(own if job.row_gb is None else job.row_gb for job in self.jobs[1:])

    @property
    def folders(self) -> list[Path]:
        """Run folders, in order."""
        return [job.folder for job in self.jobs]


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        job: the job.
        folder: its run folder.
        state: see `Ending`.
        skipped: nothing was done for it, because it was finished or is being worked on elsewhere.
        result: the scalar of a finished run.
        error: why it is not finished, or who works on it.
        seconds: how long the attempt took, as far as known.
        job_id: the scheduler's, of a run that was submitted; else empty.
    """

    job: Job
    folder: Path
    state: Ending
    skipped: bool = False
    result: float | None = None
    error: str = ""
    seconds: float | None = None
    job_id: str = ""

    @staticmethod
    def of(job: Job, record: RunRecord, **changes: Any) -> Outcome:
        """The outcome that a run's record tells."""
        seconds = record.updated - record.started if record.started else None
        outcome = Outcome(job, record.folder, record.state, False, record.result, record.error, seconds)
        return replace(outcome, **changes)


def name_of(backend: Backend) -> str:
    """Return the dotted name by which records of runs call a backend, and find it again."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def text_of(ids: Iterable[str]) -> str:
    """List job ids for a message, the tasks of an array as one.

    >>> text_of(["12_0", "12_1", "14"])
    '12, 14'
    """
    return ", ".join(dict.fromkeys(each.partition("_")[0] for each in ids))
