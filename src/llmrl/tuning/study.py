"""A search that outlives its process: Optuna's study in an SQLite file, and what is written beside it.

A trial's parameters are a function of the sampler's seed, of how many trials there were before it and of what is known
about them. Nothing else is carried from one process to the next, so a search that was killed and started again tries
what it would have tried anyway (unless it was killed in the fraction of a second in which a batch is drawn: what is
left of that batch is then a batch of its own).
"""

from __future__ import annotations

import csv
import errno
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.analysis.statistics import interquartile_mean, mean
from llmrl.core.atomic_files import why
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.run.files import write_atomic, write_bytes
from llmrl.run.folder import split_overrides, unwritable
from llmrl.run.ownership import Ownership
from llmrl.tuning.space import Space, overrides

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

STUDY_NAME, BEST_NAME, TRIALS_NAME = "study.db", "best.yaml", "trials.csv"
IMPORTANCES_NAME = "importances.png"
AGGREGATES: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": mean,
    "median": np.median,
    "iqm": interquartile_mean,
    "min": np.min,
    "max": np.max,
}
Result = float | str
"""What became of a run: its result, or one line of what went wrong."""


@dataclass(frozen=True)
class TuningSettings:
    """What `conf/hydra/sweeper/optuna.yaml` says, where each field is explained."""

    study: str
    folder: str | None
    trials: PositiveInt
    parallel_trials: PositiveInt
    direction: Literal["maximize", "minimize"]
    aggregate: Literal["mean", "median", "iqm", "min", "max"]
    sampler: Literal["tpe", "random"]
    sampler_seed: NonNegativeInt
    pruner: Literal["none", "median"]
    pruner_startup_trials: PositiveInt
    max_failures: PositiveInt


@dataclass(frozen=True)
class TuningTrial:
    """One choice of parameters; `overrides` set them.

    Attributes:
        state: `running` until every seed has a result, or the trial is pruned.
        value: the aggregate over seeds; None unless `finished`.
        results: by seed; empty while running, of the first seeds alone if pruned.
    """

    number: int
    overrides: list[str]
    state: Literal["running", "finished", "failed", "pruned"] = "running"
    value: float | None = None
    results: Mapping[str, Result] = field(default_factory=dict)


class Study:
    """The study in `folder`, new or gone on with; held by one process at a time. A context manager.

    Args:
        folder: of the study's files, made if it is not there.
        settings: see `TuningSettings`.
        space: what is searched.
        seeds: every trial is run with each of these.
        fixed: overrides common to all trials.

    Raises:
        ConfigError: Optuna is missing, or the study was begun for something else.
        RunFolderError: another process works on the study, or its files cannot be read or written.
    """

    def __init__(
        self, folder: Path, settings: TuningSettings, space: Space, seeds: Sequence[str], fixed: Sequence[str]
    ) -> None:
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise ConfigError("a hyperparameter search needs Optuna: pip install 'llmrl[tuning]'") from error
        # A line for every trial; the trials are shown by whoever asks for them.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.settings, self.space, self.seeds = settings, space, list(seeds)
        self.folder = folder.expanduser().absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        self._owner = Ownership(self.folder)
        try:
            with self._readable():
                self._study = optuna.create_study(
                    storage=f"sqlite:///{self.folder / STUDY_NAME}",
                    study_name=settings.study,
                    direction=settings.direction,
                    load_if_exists=True,
                )
                self._check_same(self._purpose(fixed))
        except BaseException:
            self._owner.release()
            raise

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.release()

    def trials(self) -> list[TuningTrial]:
        """All trials by number, without those of which a killed process had not yet drawn all parameters."""
        results = self._study.user_attrs
        names = {"RUNNING": "running", "COMPLETE": "finished", "FAIL": "failed", "PRUNED": "pruned"}
        return [
            TuningTrial(
                trial.number,
                overrides(self.space, trial.params),
                names[trial.state.name],  # type: ignore[arg-type]
                trial.value if trial.state.name == "COMPLETE" else None,
                results.get(f"results of trial {trial.number}", {}),
            )
            for trial in self._whole()
        ]

    def next_batch(self) -> list[TuningTrial]:
        """The trials to run now; empty when there are enough that are finished or pruned.

        What a killed search left comes first, and alone: the next trials are drawn when as much is known as would have
        been known without the kill.
        """
        from optuna.trial import TrialState

        trials = self.trials()
        missing = self.settings.trials - sum(trial.state in ("finished", "pruned") for trial in trials)
        size = max(0, min(self.settings.parallel_trials, missing))
        if left := [trial for trial in trials if trial.state == "running"][:size]:
            return left
        distributions = {key: dimension.distribution() for key, dimension in self.space.items()}
        batch = []
        with self._readable():
            for torn in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if not self._is_whole(torn):
                    self._study.tell(torn.number, state=TrialState.FAIL)
            for index in range(len(trials), len(trials) + size):
                self._study.sampler = self._sampler(index)
                drawn = self._study.ask(distributions)
                batch.append(TuningTrial(drawn.number, overrides(self.space, drawn.params)))
        return batch

    def tell(self, trial: TuningTrial, results: Sequence[Result]) -> TuningTrial:
        """Record what became of a trial's runs, one result a seed, and return the trial as it is now.

        A trial is failed if one of its runs is: an aggregate over other seeds than the rest's could not be compared.
        """
        from optuna.trial import TrialState

        by_seed = dict(zip(self.seeds, results, strict=True))
        with self._readable():
            # Before the state changes: a process killed in between leaves a trial whose runs are skipped the next time.
            self._study.set_user_attr(f"results of trial {trial.number}", by_seed)
            if any(isinstance(result, str) for result in results):
                self._study.tell(trial.number, state=TrialState.FAIL)
                return TuningTrial(trial.number, trial.overrides, "failed", None, by_seed)
            value = float(AGGREGATES[self.settings.aggregate](np.array(results, dtype=np.float64)))
            self._study.tell(trial.number, value)
        return TuningTrial(trial.number, trial.overrides, "finished", value, by_seed)

    def prune(self, trial: TuningTrial, results: Sequence[float]) -> TuningTrial | None:
        """Record the results of a trial's first seeds, and end the trial if it is unpromising.

        A trial is unpromising if its mean is worse than the median of the means that finished trials had after as many
        seeds (Optuna's `MedianPruner`, the median stopping rule of Golovin et al., 2017, "Google Vizier", section 3.2).

        Args:
            trial: a running one.
            results: of its first seeds, at least one and not of all.

        Returns:
            The pruned trial; None if its other seeds are to be run.
        """
        from optuna.trial import Trial, TrialState

        by_seed = dict(zip(self.seeds, results, strict=False))
        with self._readable():
            [stored] = [each for each in self._whole() if each.number == trial.number]
            if len(results) not in stored.intermediate_values:  # a search that goes on repeats what is stored
                # The object that Study.ask returned may belong to an earlier process.
                Trial(self._study, stored._trial_id).report(float(np.mean(results)), len(results))
                [stored] = [each for each in self._whole() if each.number == trial.number]
            if not self._pruner().prune(self._study, stored):
                return None
            self._study.set_user_attr(f"results of trial {trial.number}", by_seed)
            self._study.tell(trial.number, state=TrialState.PRUNED)
        return TuningTrial(trial.number, trial.overrides, "pruned", None, by_seed)

    def ranking(self) -> list[TuningTrial]:
        """Trials with a value, the best first, earlier ones before equal later ones."""
        sign = -1.0 if self.settings.direction == "maximize" else 1.0
        return sorted(
            (trial for trial in self.trials() if trial.value is not None), key=lambda trial: sign * (trial.value or 0.0)
        )

    def importances(self) -> dict[str, float]:
        """Share of each searched key in how good trials differ from others (PED-ANOVA, arXiv 2304.10255).

        Descending, sum 1; empty with fewer than 4 trials or where results do not differ, which cannot tell.
        """
        import optuna

        values = [trial.value for trial in self.ranking()]
        if len(values) < 4 or len(set(values)) == 1 or len(self.space) < 2:
            return {}
        found = optuna.importance.get_param_importances(self._study)
        return found if math.isfinite(sum(found.values())) else {}

    def draw_importances(self) -> Path | None:
        """Draw the importances as bars in `importances.png`; None if they are unknown, or without matplotlib."""
        from importlib.util import find_spec

        shares = self.importances()
        if not shares or find_spec("matplotlib") is None:
            return None
        from llmrl.analysis.figures import new_figure

        figure = new_figure(6.0, 1.0 + 0.35 * len(shares))
        panel = figure.subplots()
        names = list(shares)[::-1]
        panel.barh(names, [shares[name] for name in names], color="#0072B2")
        panel.set_xlabel("importance (PED-ANOVA), sum 1")
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        write_bytes(self.folder / IMPORTANCES_NAME, picture.getvalue())
        return self.folder / IMPORTANCES_NAME

    def write(self, command: str) -> None:
        """Replace `trials.csv`, and `best.yaml` once there is a best trial; `command` runs that one again."""
        import yaml

        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["trial", "state", self.settings.aggregate, *self.space, *(f"seed={s}" for s in self.seeds)])
        for trial in self.trials():
            values = [text.removeprefix(f"{key}=") for key, text in zip(self.space, trial.overrides, strict=True)]
            results = [trial.results.get(seed) for seed in self.seeds]
            writer.writerow([trial.number, trial.state, trial.value, *values, *results])
        write_atomic(self.folder / TRIALS_NAME, table.getvalue())
        if ranking := self.ranking():
            best = ranking[0]
            content = {
                "study": self.settings.study,
                "trial": best.number,
                self.settings.aggregate: best.value,
                "direction": self.settings.direction,
                "results": dict(best.results),
                "overrides": best.overrides,
                "command": command,
            }
            write_atomic(self.folder / BEST_NAME, yaml.safe_dump(content, sort_keys=False, width=1000))

    def _whole(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if self._is_whole(trial)]

    def _is_whole(self, trial: FrozenTrial) -> bool:
        return set(trial.params) == set(self.space)

    def _sampler(self, index: int) -> BaseSampler:
        """A sampler for one trial: one that went on drawing could not be taken up by another process."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import RandomSampler, TPESampler

        seed = Seeds(self.settings.sampler_seed).integer(index)
        if self.settings.sampler == "random":
            return RandomSampler(seed=seed)
        # Trials that run at the same time count as bad ones meanwhile, so that a batch does not try one thing twice.
        # Groups: keys that are searched together are modeled jointly. Optuna calls this experimental.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)

    def _pruner(self) -> BasePruner:
        from optuna.pruners import MedianPruner, NopPruner

        if self.settings.pruner == "none":
            return NopPruner()
        return MedianPruner(n_startup_trials=self.settings.pruner_startup_trials, n_warmup_steps=0)

    def _purpose(self, fixed: Sequence[str]) -> dict[str, str]:
        """What the trials of a study must have in common to be compared, without what cannot change results."""
        objective = f"{self.settings.direction} the {self.settings.aggregate} over seeds {', '.join(self.seeds)}"
        return {
            "the objective": objective,
            **{key: f"searched, {dimension}" for key, dimension in self.space.items()},
            **split_overrides(fixed),
        }

    def _check_same(self, purpose: dict[str, str]) -> None:
        begun = self._study.user_attrs.get("purpose")
        if begun is None:
            self._study.set_user_attr("purpose", purpose)
            return
        absent = "not given"
        changed = [
            f"{key} was {begun.get(key, absent)} and is {purpose.get(key, absent)}"
            for key in dict.fromkeys([*begun, *purpose])
            if begun.get(key) != purpose.get(key)
        ]
        if changed:
            raise ConfigError(
                f"the study '{self.settings.study}' in {self.folder} was begun for something else: "
                f"{'; '.join(changed)}. Trials of both could not be compared. Give this search a name of its own with "
                "hydra.sweeper.study=<name>, or go on with the old one as it was"
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Errors of the database as one that a user can act on."""
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (OptunaError, SQLAlchemyError) as error:
            said = str(error.__cause__ or error).splitlines()[0]
            path, elsewhere = self.folder / STUDY_NAME, "hydra.sweeper.folder=<folder>"
            if "is full" in said or "disk I/O" in said:
                reason = why(path, OSError(errno.ENOSPC, said), elsewhere)
                raise RunFolderError(f"cannot write the study {path}: {reason}") from error
            raise RunFolderError(
                f"{path} cannot be used as a study ({said}); move it away to start a new one, or choose another place "
                f"with {elsewhere}"
            ) from error
