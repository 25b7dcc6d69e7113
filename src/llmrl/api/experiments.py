"""Run, plan and sweep experiments from Python: what `llmrl-train` does, with results in place of exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from llmrl.core.errors import ConfigError
from llmrl.core.typed_values import typed, typed_choices

if TYPE_CHECKING:
    from llmrl.api.results import Results
    from llmrl.experiment.sweep_jobs import PlannedRun
    from llmrl.sweeps.backends.protocol import JobOutcome

log = logging.getLogger(__name__)

Place = str | os.PathLike[str]
Command = Literal["train", "finetune"]


@dataclass(frozen=True)
class RunResult:
    """What became of a run; it can be given wherever a run folder is asked for.

    Attributes:
        folder: the run folder.
        seed: of the run.
        state: `finished`; of runs of a sweep also other states (`failed`, `stopped`, `submitted`, ...).
        result: the scalar of a finished run, else None.
        skipped: it was finished already, or is being worked on elsewhere: nothing was computed.
        error: why it is not finished; empty if nothing is wrong.
    """

    folder: Path
    seed: int
    state: str = "finished"
    result: float | None = None
    skipped: bool = False
    error: str = ""

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """What the run found, the content of its `summary.json`; empty unless it is finished."""
        from llmrl.analysis.runs import read_run

        return read_run(self.folder).summary()

    def load(self) -> Results:
        """Load the run's tables, see `llmrl.load`."""
        from llmrl.api.results import load

        return load(self.folder)


class SweepResult(Sequence[RunResult]):
    """What became of the runs of a sweep, in their order."""

    def __init__(self, runs: Sequence[RunResult]) -> None:
        self.runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> RunResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RunResult, ...]: ...
    def __getitem__(self, index: int | slice) -> RunResult | tuple[RunResult, ...]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in Counter(run.state for run in self.runs).items())
        return f"SweepResult({states})"

    @property
    def unfinished(self) -> tuple[RunResult, ...]:
        """Runs that are not finished, and nobody works on; the same sweep again goes on with them."""
        return tuple(run for run in self.runs if run.state not in ("finished", "elsewhere", "submitted"))

    def load(self) -> Results:
        """Load the tables of all runs, see `llmrl.load`."""
        from llmrl.api.results import load

        return load([run.folder for run in self.runs])


class Plan(tuple[tuple[str, str], ...]):
    """What a run would do: rows (what, how much), one a line when it is shown."""

    def __repr__(self) -> str:
        width = max((len(name) for name, _ in self), default=0)
        return "\n".join(f"{name:{width}}  {value}" for name, value in self)


def train(
    *overrides: str, command: Command = "train", config_dirs: Place | Sequence[Place] = (), **options: Any
) -> RunResult:
    """Run an experiment, go on with it, or find it finished, in the folder that the same command line would use.

    Args:
        overrides: as they are typed after `llmrl-train`: `"env=cleanup"`, `"design.steps=12"`.
        command: `finetune` for what is typed after `llmrl-finetune`.
        config_dirs: folder, or folders, of own options (`--config-dir`).
        options: the same as `overrides` with values of Python: `seed=1`, `name="demo"`, `**{"env.observe": ["grid"]}`.

    Returns:
        The finished run.

    Raises:
        ConfigError: an option, value or combination of parts that cannot work.
        LlmrlError: the run failed; its folder says more.
        KeyboardInterrupt: it was interrupted, and has saved: the same call goes on.

    Example:
        >>> run = llmrl.train("env=escape_room", "principal=ucb", seed=1)  # doctest: +SKIP
        >>> run.result, run.folder  # doctest: +SKIP
    """
    from llmrl.experiment.experiment import Experiment
    from llmrl.run.signals import Stopped

    experiment = Experiment.compose(*_typed(overrides, options), primary=command, config_dirs=_paths(config_dirs))
    if experiment.config["dry_run"]:
        raise ConfigError("dry_run=true runs nothing: llmrl.plan shows what a run would do")
    with _heard():
        experiment.check()
        try:
            run = experiment.run()
        except Stopped as stopped:
            if stopped.signal != signal.SIGINT:
                raise
            raise KeyboardInterrupt(str(stopped)) from None
    return RunResult(run.folder, experiment.seed, result=run.result, skipped=run.finished)


def plan(
    *overrides: str, command: Command = "train", config_dirs: Place | Sequence[Place] = (), **options: Any
) -> Plan:
    """Build every part of an experiment and tell what a run would do and cost, without running it.

    Args:
        overrides: as in `train`.
        command: as in `train`.
        config_dirs: as in `train`.
        options: as in `train`.

    Returns:
        Rows (what, how much): shapes, steps, calls of a language model and their price.

    Raises:
        LlmrlError: the parts cannot work together.
    """
    from llmrl.experiment.experiment import Experiment

    experiment = Experiment.compose(*_typed(overrides, options), primary=command, config_dirs=_paths(config_dirs))
    with _heard():
        experiment.check()
        return Plan(experiment.plan())


def sweep(
    *overrides: str,
    parallel: int | None = None,
    wait: bool = True,
    command: Command = "train",
    config_dirs: Place | Sequence[Place] = (),
    **options: Any,
) -> SweepResult:
    """Compute every combination of the values given, as `--multirun` does: what is finished is skipped.

    Args:
        overrides: as they are typed after `llmrl-train --multirun`: `"principal=ucb,llm"`, `"seed=range(5)"`.
        parallel: processes at once; None: as `hardware=` says, which by default is one.
        wait: until all have ended; False: return when they are submitted, which needs a scheduler such as SLURM.
        command: as in `train`.
        config_dirs: as in `train`.
        options: with values of Python; a list, tuple or range is swept over: `seed=range(5)`.

    Returns:
        What became of each run. Runs that failed do not stop the others: look at `unfinished`.

    Raises:
        ConfigError: a run makes no sense, or the sweep cannot be launched; nothing has been started.
        KeyboardInterrupt: it was interrupted; runs that had begun have saved, and the same call goes on.

    Example:
        >>> runs = llmrl.sweep("env=escape_room", principal=["ucb", "random"], seed=range(3), parallel=2)
        ... # doctest: +SKIP
        >>> runs.load().runs.groupby("principal").result.mean()  # doctest: +SKIP
    """
    from llmrl.experiment.sweep_jobs import compute_sweep

    words = [*_swept(overrides, options), *([] if parallel is None else [f"hardware.parallel={parallel}"])]
    with _heard():
        composed = [_composed(each, command, config_dirs) for each in _combinations(words)]
        runs = [run for run, _ in composed]
        outcomes, _ = compute_sweep(runs, composed[0][1] if composed else Path(), wait)
    found = SweepResult([_result(outcome) for outcome in outcomes[len(outcomes) - len(runs) :]])
    interrupted = [run for run in found if run.state in ("stopped", "cancelled", *(["submitted"] if wait else []))]
    if interrupted:
        raise KeyboardInterrupt(f"{found}: nobody waits for these runs any more; the same call goes on")
    for run in found.unfinished:
        log.error("%s: %s: %s", run.folder, run.state, run.error)
    return found


def _result(outcome: JobOutcome) -> RunResult:
    seed = int(outcome.job.config["seed"])
    return RunResult(outcome.folder, seed, outcome.state, outcome.result, outcome.skipped, outcome.error)


def _composed(
    overrides: Sequence[str], command: Command, config_dirs: Place | Sequence[Place]
) -> tuple[PlannedRun, Path]:
    """A run of a sweep, and where the sweep keeps what its runs print."""
    from hydra.core.hydra_config import HydraConfig

    from llmrl.core.secrets import redacted_folder
    from llmrl.experiment.composition import composed, job_environment
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.sweep_jobs import PlannedRun

    with composed(command, overrides, _paths(config_dirs)) as config:
        environment = job_environment()
        folder = redacted_folder(Path(HydraConfig.get().sweep.dir)).expanduser().absolute()
        experiment = Experiment.of_hydra(config)
    if experiment.config["dry_run"]:
        raise ConfigError("dry_run=true runs nothing: llmrl.plan shows what a run would do")
    return PlannedRun(experiment, environment), folder


def _combinations(words: Sequence[str]) -> list[list[str]]:
    """The overrides of each run."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from llmrl.config.overrides import combinations

    if chosen := [word for word in words if word.lstrip("+~").startswith(("hydra/sweeper", "hydra/launcher"))]:
        raise ConfigError(f"{chosen[0]}: other sweepers and launchers are for the command line, with --multirun")
    try:
        return combinations(OverridesParser.create().parse_overrides(list(words)))
    except HydraException as error:
        raise ConfigError(str(error)) from error


def _typed(overrides: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Overrides of one run."""
    return [*overrides, *(typed(key, value) for key, value in options.items())]


def _swept(overrides: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Overrides of a sweep: values that are several are choices."""
    several = {key: value for key, value in options.items() if isinstance(value, list | tuple | range)}
    if empty := [key for key, value in several.items() if not len(value)]:
        raise ConfigError(f"{empty[0]}: there is nothing to sweep over in an empty list")
    return [
        *overrides,
        *(typed_choices(key, list(value)) if key in several else typed(key, value) for key, value in options.items()),
    ]


def _paths(folders: Place | Sequence[Place]) -> list[Path]:
    return [Path(folder) for folder in ([folders] if isinstance(folders, str | os.PathLike) else folders)]


@contextmanager
def _heard() -> Iterator[None]:
    """Show warnings on standard error, where nobody has set up logging; the log file of a run would be all there is."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    from llmrl.run.log_file import SafeFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(SafeFormatter("%(levelname)s: %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
