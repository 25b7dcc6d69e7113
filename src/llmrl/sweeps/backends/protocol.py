"""The hardware of a sweep's runs (`hardware=`), and the interface of its backends, which other packages can implement.

`Job`, `Hardware` and `Backend` refer to each other, so they are defined in one module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.results.run_records import JobEnd, QueueSnapshot, RunRecord, RunState
from llmrl.run.config_hash import config_hash
from llmrl.run.folder import find_run_folder, format_seed_folder

if TYPE_CHECKING:
    from llmrl.run.queued import LaunchRecord
    from llmrl.sweeps.payload import RunFunction

OutcomeState = RunState | Literal["submitted", "elsewhere", "refused"]
"""State of a run as reported by its launcher.

`canceled`: the launcher was stopped before the run started. `submitted`: the launcher does not wait for it.
`elsewhere`: another process or job already computes it. `refused`: it could not be submitted.
"""


class SchedulerError(ConfigError):
    """A scheduler refused a request, or does not answer."""


class Scheduler(Protocol):
    """A scheduler, whose jobs continue without the process that launched them.

    Its constructor takes no arguments, because `llmrl-sweep` has only the `queued.json` of a job
    (`llmrl.run.queued.LaunchRecord`).
    """

    def query_queues(self, launch_records: Sequence[LaunchRecord]) -> list[QueueSnapshot]:
        """Return the queues that these jobs were submitted to; a job in none of them is assumed to exist.

        Raises:
            SchedulerError: the scheduler cannot be queried now.
        """
        ...

    def find_job_ends(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return the ends of jobs that are no longer in the queue, by job id; unknown jobs are left out."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; running ones get SIGTERM, so that they save first.

        Raises:
            SchedulerError: the scheduler refused.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """A backend, which computes the runs of a sweep: one class each, named by `hardware.backend._target_`.

    Its constructor takes the options of the backend; device, precision and requirements of a run are in `Hardware`.
    Backends of other packages derive from this class, and must define `launch` only.

    Attributes:
        scheduler: class of the scheduler of jobs that outlive the launching process; None: runs end with that process.
        command_lines: options that a shell or a job script runs verbatim, each with a harmless value. Any other value
            is submitted only if it was typed or is trusted (docs/extending.md#whose-code-runs).
    """

    scheduler: ClassVar[type[Scheduler] | None] = None
    command_lines: ClassVar[Mapping[str, Any]] = {}

    @property
    def processes(self) -> int:
        """Number of processes that compute one run together."""
        return 1

    def check(self, hardware: Hardware) -> None:
        """Check options against the rest of the hardware; called when the `Hardware` is constructed.

        Raises:
            ConfigError: an option does not fit.
        """
        return None

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Check that the jobs can be launched from here, before anything is started or written.

        Raises:
            ConfigError: a common requirement of the runs is missing, or a run does not fit.
        """
        return None

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        """Divide jobs into batches, one for each process: one run, or several with equal keys (`Job.batch_key`).

        A backend overrides this only if its `launch` computes several runs with `llmrl.sweeps.payload.ProcessPayload`.
        """
        return [JobBatch((job,)) for job in jobs]

    def describe_requests(self, batches: Sequence[JobBatch]) -> list[str]:
        """Return the requests to a scheduler for these batches as text, one for each group of equal requests."""
        return []

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        """Return the number of these batches that run at the same time; None if the scheduler decides."""
        return None

    @abstractmethod
    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        """Compute the runs; a run that fails does not stop the others.

        Record the launch of each run first (`llmrl.sweeps.jobs.record_launch`), then compute it by a call of
        `llmrl.sweeps.payload.RunPayload`.
        A stop signal (`llmrl.run.signals.StopFlag`) is passed on to running runs; waiting ones become `canceled`.

        Args:
            jobs: runs that are missing, with equal options of this backend.
            run_function: function that computes one run.
            sweep_folder: existing folder for the output of jobs.

        Returns:
            One outcome for each job. Without a scheduler, after all have ended. With one, after all are submitted:
            submitted runs have the state `submitted` and a `job_id`.
        """
        ...


@dataclass(frozen=True)
class Hardware:
    """One option of `hardware=`.

    Attributes:
        backend: backend that computes the runs of a sweep (`llmrl.sweeps.backends`).
        device: torch device of policies and models; `auto`: a GPU if there is one.
        precision: precision of float32 matrix products (torch.set_float32_matmul_precision).
        threads: threads of torch and other numerical libraries in one run; None: as many as `cores`.
        cores: processor cores of one run; None: the larger of its number of game processes and `threads`.
        memory_gb: memory of one run, gigabytes.
        gpus: GPUs of one run.
        parallel: maximum number of processes of a sweep at once; None: as many as the backend has room for.
        rows: maximum number of runs that share one process; `auto`: as many as memory allows.
        jobs: maximum number of scheduler jobs of a sweep; further runs share jobs. None: one job for each run.
    """

    backend: Backend
    device: Literal["cpu", "cuda", "auto"]
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
                f"hardware.jobs={self.jobs}: {type(self.backend).__name__} submits no jobs; leave it null, and limit "
                "the number of processes by hardware.parallel"
            )
        self.backend.check(self)

    @property
    def max_parallel_jobs(self) -> int | None:
        """Maximum number of scheduler jobs at once.

        It is the smaller of `parallel` and `jobs`; None: the scheduler decides.
        """
        return min((limit for limit in (self.parallel, self.jobs) if limit is not None), default=None)

    def cores_for(self, game_processes: int) -> int:
        """Return the number of cores for a run with that many game processes."""
        return self.cores or max(self.threads or 1, game_processes)

    def apply(self, dry: bool = False) -> str:
        """Set the threads and precision of torch in this process; return the torch device.

        Args:
            dry: whether the run is only planned; a missing GPU is then replaced by `cpu`.

        Raises:
            ConfigError: the device is a GPU, and torch sees none on this machine.
        """
        import torch

        if (threads := self.threads or self.cores) is not None:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(self.precision)
        available = torch.cuda.is_available()
        if self.device == "auto":
            return "cuda" if available else "cpu"
        if self.device == "cuda" and not available:
            if dry:
                return "cpu"
            raise ConfigError(
                f"hardware.device={self.device}, but torch {torch.__version__} sees no GPU here; use hardware=cpu"
            )
        return self.device


@dataclass(frozen=True)
class Job:
    """A run to be computed.

    Attributes:
        config: resolved config as plain data; `output_root` is absolute.
        overrides: Hydra overrides of this run as typed.
        hardware: hardware to compute it on.
        cores: number of cores for this run.
        label_overrides: overrides for the label of its folder: those that differ within the sweep.
        environment: environment variables of its process (`hydra.job.env_set`).
        prerequisites: jobs of the same launch whose runs this one needs; it starts when they have ended.
        purpose: purpose of a run that is computed because others need it, e.g. `pre-training`; empty for runs that the
            user requested.
        name: name of such a run, as in plans.
        batch_key: runs with equal keys may share a process, as one batch; None: it has a process of its own.
        additional_memory_gb: memory of the run in a process that has another run, gigabytes; None: as much as alone.
        is_batching_faster: whether sharing a process saves time. If not, it is shared only at the request of options.
    """

    config: dict[str, Any]
    overrides: list[str]
    hardware: Hardware
    cores: int
    label_overrides: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    prerequisites: tuple[Job, ...] = ()
    batch_key: str | None = None
    additional_memory_gb: float | None = None
    is_batching_faster: bool = True
    purpose: str = ""
    name: str = ""

    def with_seed(self, seed: int, overrides: list[str], label_overrides: list[str]) -> Job:
        """Return the job of the same experiment with another seed.

        Args:
            seed: whole number >= 0. No other value of the config may depend on it.
            overrides, label_overrides: as for the constructor.
        """
        job = replace(self, config={**self.config, "seed": seed}, overrides=overrides, label_overrides=label_overrides)
        # The hash and the folder of an experiment do not depend on the seed.
        vars(job).update(digest=self.digest, folder=self.folder.parent / format_seed_folder(seed))
        return job

    @cached_property
    def folder(self) -> Path:
        """The run folder, which need not exist yet."""
        c = self.config
        return find_run_folder(Path(c["output_root"]), c["name"], self.digest, self.label_overrides, c["seed"])

    @cached_property
    def digest(self) -> str:
        """Hash of the config (`llmrl.run.config_hash.config_hash`)."""
        return config_hash(self.config)

    @property
    def command(self) -> str:
        """Console script of its config: `llmrl-finetune` if it has the key `method`, else `llmrl-train`."""
        return "llmrl-finetune" if "method" in self.config else "llmrl-train"


@dataclass(frozen=True)
class JobBatch:
    """The runs that one process computes; usually one.

    Attributes:
        jobs: one job, or several with equal keys.
    """

    jobs: tuple[Job, ...]

    @property
    def hardware(self) -> Hardware:
        """Hardware of its runs, which is the same for all."""
        return self.jobs[0].hardware

    @property
    def cores(self) -> int:
        """Number of cores, the same as for one run, because the runs of a batch take turns."""
        return self.jobs[0].cores

    @property
    def memory_gb(self) -> float:
        """Memory in gigabytes: that of one run in its own process, plus the additional memory of each further run."""
        run_gb = self.hardware.memory_gb
        return run_gb + sum(
            run_gb if job.additional_memory_gb is None else job.additional_memory_gb for job in self.jobs[1:]
        )

    @property
    def folders(self) -> list[Path]:
        """Run folders, in the order of `jobs`."""
        return [job.folder for job in self.jobs]


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job.

    Attributes:
        job: job.
        folder: run folder of the job.
        state: state of the run (`OutcomeState`).
        skipped: whether nothing was done, because the run was finished or another process computes it.
        result: scalar result of a finished run.
        error: reason why it is not finished, or the process that computes it.
        seconds: duration of the attempt; None if unknown.
        job_id: scheduler's id of a submitted run; else empty.
    """

    job: Job
    folder: Path
    state: OutcomeState
    skipped: bool = False
    result: float | None = None
    error: str = ""
    seconds: float | None = None
    job_id: str = ""

    @staticmethod
    def from_record(job: Job, record: RunRecord, **changes: Any) -> JobOutcome:
        """Return the outcome of `job` from the record of its run; `changes` replace fields."""
        seconds = record.updated - record.started if record.started else None
        outcome = JobOutcome(job, record.folder, record.state, False, record.result, record.error, seconds)
        return replace(outcome, **changes)


def qualified_backend_name(backend: Backend) -> str:
    """Return the dotted name of a backend's class, by which records of runs refer to it."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"
