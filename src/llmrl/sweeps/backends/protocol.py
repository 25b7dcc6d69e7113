"""The hardware of runs (`hardware=`), and the interface of backends, which other packages can implement.

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

`canceled`: the launcher was stopped before the run started. `submitted`: the run has a job, for which the launcher does
not wait. `elsewhere`: another process or job already computes the run. `refused`: it could not be submitted.
"""


class SchedulerError(ConfigError):
    """A scheduler rejected a request, or cannot be reached."""


class Scheduler(Protocol):
    """A scheduler, whose jobs continue after the end of the process that submitted them.

    Its constructor takes no arguments, because `llmrl-sweep` has only the launch record of a job
    (`llmrl.run.queued.LaunchRecord`).
    """

    def query_queues(self, launch_records: Sequence[LaunchRecord]) -> list[QueueSnapshot]:
        """Return the queues to which these jobs were submitted; a job that no queue covers is assumed to exist.

        Raises:
            SchedulerError: the scheduler cannot be queried now.
        """
        ...

    def find_job_ends(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return the ends of jobs that have left the queue, by job id, without unknown jobs."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; running ones get SIGTERM, so that they save first.

        Raises:
            SchedulerError: the scheduler rejected the request.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """A backend, which computes the runs of a sweep. `hardware.backend._target_` names its class.

    Its constructor takes the options of the backend; device, precision and requirements of a run are in `Hardware`.
    Backends of other packages derive from this class and only need to define `launch`.

    Attributes:
        scheduler: class of the scheduler of the jobs; None: runs end with the launching process.
        command_lines: options whose text a shell or a job script executes, each with its harmless default. Any other
            value needs a command line or option file of the user, or trust (docs/extending.md#whose-code-runs).
    """

    scheduler: ClassVar[type[Scheduler] | None] = None
    command_lines: ClassVar[Mapping[str, Any]] = {}

    @property
    def processes(self) -> int:
        """Number of processes that compute one run together."""
        return 1

    def check(self, hardware: Hardware) -> None:
        """Check the options of the backend against `hardware`, whose constructor calls this.

        Raises:
            ConfigError: an option is incompatible with `hardware`.
        """
        return None

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Check that the jobs can be launched on this machine, before anything is started or written.

        Raises:
            ConfigError: a program or package is missing, or a run needs more than the machine has.
        """
        return None

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        """Divide jobs into batches, one for each process: a single run, or several with equal `Job.batch_key`.

        A backend overrides this only if its `launch` computes several runs with `llmrl.sweeps.payload.ProcessPayload`.
        """
        return [JobBatch((job,)) for job in jobs]

    def describe_requests(self, batches: Sequence[JobBatch]) -> list[str]:
        """Return texts on the requests to the scheduler for these batches, one for each group of equal requests."""
        return []

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        """Return the maximum number of these batches that run at the same time; None if there is no limit."""
        return None

    @abstractmethod
    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        """Compute the runs; a run that fails does not stop the others.

        Record the launch of each run first (`llmrl.sweeps.jobs.record_launch`), then compute it by a call of a
        `llmrl.sweeps.payload.RunPayload`. Forward a stop signal (`llmrl.run.signals.StopFlag`) to the processes of
        runs; runs that wait become `canceled`.

        Args:
            jobs: missing runs, with equal options of this backend.
            run_function: function that computes one run.
            sweep_folder: existing folder for the output of jobs.

        Returns:
            One outcome for each job, after all runs have ended. A backend with a scheduler returns after the submission
            and gives submitted runs the state `submitted` and a `job_id`.
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
        cores: number of CPU cores of one run; None: the larger of its number of game processes and `threads`.
        memory_gb: memory of one run, gigabytes.
        gpus: number of GPUs of one run.
        parallel: maximum number of processes or jobs of a sweep at once; None: limited by the machine or the scheduler.
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
        """Maximum number of scheduler jobs at once, the smaller of `parallel` and `jobs`; None: no limit."""
        return min((limit for limit in (self.parallel, self.jobs) if limit is not None), default=None)

    def count_cores(self, n_game_processes: int) -> int:
        """Return the number of cores for a run with `n_game_processes` processes of games."""
        return self.cores or max(self.threads or 1, n_game_processes)

    def configure_torch(self, dry_run: bool = False) -> str:
        """Set the number of threads and the precision of torch in this process; return the torch device.

        Args:
            dry_run: whether the run is only planned; the device is then `cpu` if a GPU is missing.

        Raises:
            ConfigError: the device is a GPU, and torch sees none on this machine.
        """
        import torch

        if (threads := self.threads or self.cores) is not None:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(self.precision)
        has_gpu = torch.cuda.is_available()
        if self.device == "auto":
            return "cuda" if has_gpu else "cpu"
        if self.device == "cuda" and not has_gpu:
            if dry_run:
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
        overrides: Hydra overrides of this run.
        hardware: hardware of the run.
        cores: number of CPU cores of the run.
        label_overrides: overrides for the label of the run folder: those that differ within the sweep.
        environment: environment variables of its process (`hydra.job.env_set`).
        prerequisites: jobs of the same launch whose runs this one needs; it starts when they have ended.
        purpose: kind of a prerequisite of other runs, e.g. `pre-training`; empty for runs that the user requested.
        name: name of a prerequisite of other runs (`PrerequisiteRecord.name`); else empty.
        batch_key: runs with equal keys may share a process as one batch; None: a process of its own.
        additional_memory_gb: memory that the run adds to a process with another run, gigabytes; None:
            `hardware.memory_gb`.
        is_batching_faster: whether a shared process is faster. If not, only the option `hardware.rows` enables it.
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
            overrides, label_overrides: attributes of the new job.
        """
        job = replace(self, config={**self.config, "seed": seed}, overrides=overrides, label_overrides=label_overrides)
        # The hash and the folder of an experiment do not depend on the seed.
        vars(job).update(config_digest=self.config_digest, folder=self.folder.parent / format_seed_folder(seed))
        return job

    @cached_property
    def folder(self) -> Path:
        """The run folder, which need not exist yet."""
        root, name, seed = (self.config[key] for key in ("output_root", "name", "seed"))
        return find_run_folder(Path(root), name, self.config_digest, self.label_overrides, seed)

    @cached_property
    def config_digest(self) -> str:
        """Hash of the config (`llmrl.run.config_hash.config_hash`)."""
        return config_hash(self.config)

    @property
    def command(self) -> str:
        """Command that computes the run: `llmrl-finetune` if its config has the key `method`, else `llmrl-train`."""
        return "llmrl-finetune" if "method" in self.config else "llmrl-train"


@dataclass(frozen=True)
class JobBatch:
    """The jobs of one process.

    Attributes:
        jobs: one job, or several with equal `batch_key`.
    """

    jobs: tuple[Job, ...]

    @property
    def hardware(self) -> Hardware:
        """Hardware of the runs, which is the same for all."""
        return self.jobs[0].hardware

    @property
    def cores(self) -> int:
        """Number of CPU cores: as for one run, because the runs of a batch share one main thread."""
        return self.jobs[0].cores

    @property
    def memory_gb(self) -> float:
        """Memory in gigabytes: that of one run, plus the additional memory of each further run."""
        run_memory_gb = self.hardware.memory_gb
        return run_memory_gb + sum(
            run_memory_gb if job.additional_memory_gb is None else job.additional_memory_gb for job in self.jobs[1:]
        )

    @property
    def folders(self) -> list[Path]:
        """Run folders, in the order of `jobs`."""
        return [job.folder for job in self.jobs]


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job.

    Attributes:
        job: job that was to compute the run.
        folder: run folder of the job.
        state: state of the run (`OutcomeState`).
        skipped: whether the run was not launched, because it is finished or another process computes it.
        result: scalar result of a finished run.
        error: reason why the run is not finished, or the process that computes it.
        seconds: duration of the attempt; None if unknown.
        job_id: id of the scheduler's job; empty without one.
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
        outcome = JobOutcome(job, record.folder, record.state, result=record.result, error=record.error)
        return replace(outcome, **{"seconds": seconds, **changes})


def get_qualified_backend_name(backend: Backend) -> str:
    """Return the dotted name of a backend's class, as in launch records."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"
