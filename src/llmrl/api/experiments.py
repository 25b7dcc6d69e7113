"""Functions that run, plan and sweep experiments like the command `llmrl-train`, and return results."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from llmrl.core.errors import ConfigError
from llmrl.core.override_text import format_override

if TYPE_CHECKING:
    from llmrl.api.results import Results
    from llmrl.experiment.experiment import Experiment

log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Command = Literal["train", "finetune"]


@dataclass(frozen=True)
class RunResult:
    """Outcome of a run; a path-like object of its run folder.

    Attributes:
        folder: run folder.
        seed: seed of the run.
        state: `finished`; runs of a sweep may have other states (`failed`, `stopped`, `submitted`, ...).
        result: scalar result of a finished run; None if it is not finished.
        skipped: whether nothing was computed, because the run was finished before or another process computes it.
        error: reason why the run is not finished; "" if there is none.
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
        """Content of `summary.json` of the run; empty unless it is finished."""
        from llmrl.results.run_records import read_run

        return read_run(self.folder).summary()

    def load(self) -> Results:
        """Return the tables of the run (`llmrl.load`)."""
        from llmrl.api.results import load

        return load(self.folder)


class SweepResult(Sequence[RunResult]):
    """Outcomes of the runs of a sweep, in the order of the sweep."""

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
        """Runs that are neither finished nor in progress; a repeated call of `sweep` continues them."""
        return tuple(run for run in self.runs if run.state not in ("finished", "elsewhere", "submitted"))

    def load(self) -> Results:
        """Return the tables of all runs (`llmrl.load`)."""
        from llmrl.api.results import load

        return load([run.folder for run in self.runs])


class Plan(tuple[tuple[str, str], ...]):
    """Plan of a run: pairs of a name and a text; its `repr` has one line for each pair."""

    def __repr__(self) -> str:
        width = max((len(name) for name, _ in self), default=0)
        return "\n".join(f"{name:{width}}  {value}" for name, value in self)


def train(
    *overrides: str, command: Command = "train", config_dirs: StrPath | Sequence[StrPath] = (), **options: Any
) -> RunResult:
    """Run an experiment in the same folder as `llmrl-train`; continue an unfinished run, skip a finished one.

    Args:
        overrides: overrides in the syntax of the command line, such as `"env=cleanup"` or `"design.steps=12"`.
        command: `train`: the overrides are those of `llmrl-train`; `finetune`: those of `llmrl-finetune`.
        config_dirs: one or several folders of additional options (`--config-dir`).
        options: overrides with Python values, such as `seed=1`, `name="demo"` or `**{"env.observe": ["grid"]}`.

    Returns:
        The finished run.

    Raises:
        ConfigError: an option, a value or a combination of parts is invalid.
        LlmrlError: the run failed; its folder has details.
        KeyboardInterrupt: the run was interrupted and saved; a repeated call continues it.

    Example:
        >>> run = llmrl.train("env=escape_room", "principal=ucb", seed=1)  # doctest: +SKIP
        >>> run.result, run.folder  # doctest: +SKIP
    """
    from llmrl.run.signals import Stopped

    experiment = _compose(overrides, options, command, config_dirs)
    _check_no_dry_run(experiment)
    with _show_warnings():
        experiment.check()
        try:
            run = experiment.run()
        except Stopped as stopped:
            if stopped.signal != signal.SIGINT:
                raise
            raise KeyboardInterrupt(str(stopped)) from None
    return RunResult(run.folder, experiment.seed, result=run.result, skipped=run.finished)


def plan(
    *overrides: str, command: Command = "train", config_dirs: StrPath | Sequence[StrPath] = (), **options: Any
) -> Plan:
    """Build the parts of an experiment without running it; return the planned amounts and costs of a run.

    Args:
        overrides: overrides as in the command line.
        command: `train` or `finetune`.
        config_dirs: folders with option files.
        options: overrides with Python values.

    Returns:
        Pairs of a name and a text: shapes, steps, calls of a language model and their price.

    Raises:
        LlmrlError: the parts cannot work together.
    """
    experiment = _compose(overrides, options, command, config_dirs)
    with _show_warnings():
        experiment.check()
        return Plan(experiment.plan())


def sweep(
    *overrides: str,
    parallel: int | None = None,
    wait: bool = True,
    command: Command = "train",
    config_dirs: StrPath | Sequence[StrPath] = (),
    **options: Any,
) -> SweepResult:
    """Run every combination of the given values, as `--multirun` does; finished runs are skipped.

    Args:
        overrides: overrides in the syntax of `llmrl-train --multirun`, such as `"principal=ucb,llm"` or
            `"seed=range(5)"`.
        parallel: number of parallel processes; None: `hardware.parallel`, by default 1.
        wait: whether to wait until all runs have ended; False: return when they are submitted, which requires a
            scheduler such as SLURM.
        command: `train` or `finetune`.
        config_dirs: folders with option files.
        options: overrides with Python values; lists, tuples and ranges are swept over, such as `seed=range(5)`.

    Returns:
        The outcome of each run. Failed runs do not stop the others; see `SweepResult.unfinished`.

    Raises:
        ConfigError: a run is invalid, or the sweep cannot be launched; no run has been started.
        KeyboardInterrupt: the sweep was interrupted and its runs saved; a repeated call continues it.

    Example:
        >>> runs = llmrl.sweep("env=escape_room", principal=["ucb", "random"], seed=range(3), parallel=2)
        ... # doctest: +SKIP
        >>> runs.load().runs.groupby("principal").result.mean()  # doctest: +SKIP
    """
    from llmrl.experiment.sweep_jobs import compute_sweep

    choices = {key: list(x) if isinstance(x, list | tuple | range) else [x] for key, x in options.items()}
    if empty := [key for key, values in choices.items() if not values]:
        raise ConfigError(f"{empty[0]} is an empty list; give at least one value to sweep over")
    sweep_overrides = [*overrides, *(format_override(key, *values) for key, values in choices.items())]
    if parallel is not None:
        sweep_overrides.append(f"hardware.parallel={parallel}")
    with _show_warnings():
        experiments = [_compose(args, {}, command, config_dirs) for args in _expand_overrides(sweep_overrides)]
        for experiment in experiments:
            _check_no_dry_run(experiment)
        folder = Path()
        if experiments:
            root = Path(experiments[0].config["output_root"]).expanduser().absolute()
            folder = root / ".sweeps" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")  # as `hydra.sweep.dir`
        outcomes, _ = compute_sweep(experiments, folder, wait)
    sweep_result = SweepResult(
        [
            RunResult(o.folder, int(o.job.config["seed"]), o.state, o.result, o.skipped, o.error)
            for o in outcomes[len(outcomes) - len(experiments) :]  # without the prerequisite runs, which are first
        ]
    )
    if any(run.state in ("stopped", "canceled", *(["submitted"] if wait else [])) for run in sweep_result):
        raise KeyboardInterrupt(f"{sweep_result}: the sweep was interrupted; the same call continues it")
    for result in sweep_result.unfinished:
        log.error("%s: %s: %s", result.folder, result.state, result.error)
    return sweep_result


def _check_no_dry_run(experiment: Experiment) -> None:
    if experiment.config["dry_run"]:
        raise ConfigError("dry_run=true cannot be used here; llmrl.plan returns what a run would do")


def _expand_overrides(overrides: Sequence[str]) -> list[list[str]]:
    """Return the list of overrides of each run of a sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from llmrl.config.overrides import expand_sweep

    for override in overrides:
        if override.lstrip("+~").startswith(("hydra/sweeper", "hydra/launcher")):
            raise ConfigError(
                f"{override}: other sweepers and launchers need the command line with --multirun; remove this override"
            )
    try:
        return expand_sweep(OverridesParser.create().parse_overrides(list(overrides)))
    except HydraException as error:
        raise ConfigError(str(error)) from error


def _compose(
    overrides: Sequence[str], options: Mapping[str, Any], command: Command, config_dirs: StrPath | Sequence[StrPath]
) -> Experiment:
    """Compose an experiment; the arguments are those of `train`."""
    from llmrl.experiment.experiment import Experiment

    option_overrides = [format_override(key, value) for key, value in options.items()]
    folders = [config_dirs] if isinstance(config_dirs, str | os.PathLike) else config_dirs
    return Experiment.compose(*overrides, *option_overrides, primary=command, config_dirs=list(map(Path, folders)))


@contextmanager
def _show_warnings() -> Iterator[None]:
    """Return a context in which warnings are printed to standard error, unless the caller has configured logging."""
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
