"""A resumable hyperparameter search: Optuna's study in an SQLite file, and files with its trials.

The parameters of a trial are a function of the sampler's seed, the number of earlier trials and their results so far. A
search that is killed and started again therefore tries the same parameters. The only exception is a kill while a batch
is drawn: the trials drawn before the kill then form a smaller batch.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.run.files import write_atomic
from llmrl.run.folder import make_write_error, split_overrides
from llmrl.run.ownership import Ownership
from llmrl.statistics.estimators import interquartile_mean, mean
from llmrl.tuning.space import SearchSpace, check_optuna, describe_distribution, format_overrides

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

STUDY_FILE_NAME, BEST_TRIAL_FILE_NAME, TRIALS_FILE_NAME = "study.db", "best.yaml", "trials.csv"
"""Names of the database, of the file with the best trial, and of the table of all trials."""
AGGREGATE_FUNCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": mean,
    "median": np.median,
    "iqm": interquartile_mean,
    "min": np.min,
    "max": np.max,
}
RunResult = float | str
"""Result of a run (the number that is maximized or minimized), or a one-line error message if the run failed."""


@dataclass(frozen=True)
class TuningSettings:
    """Settings of the sweeper, documented in `conf/hydra/sweeper/optuna.yaml`."""

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
    """One choice of parameters.

    Attributes:
        number: number of the trial in the study, from 0.
        overrides: Hydra overrides that set the parameters.
        state: `running` until all seeds have results or the trial is pruned.
        value: aggregate of the results over seeds; None unless `finished`.
        results: results by seed; empty while running, and only those of the first seeds if pruned.
    """

    number: int
    overrides: list[str]
    state: Literal["running", "finished", "failed", "pruned"] = "running"
    value: float | None = None
    results: Mapping[str, RunResult] = field(default_factory=dict)


class Study:
    """A new or resumed study in `folder`, used by one process at a time; a context manager that releases the folder.

    Args:
        folder: folder of the study's files; created if it does not exist.
        settings: settings of the search.
        space: search space.
        seeds: seeds with which every trial is run, as text.
        fixed_overrides: overrides that all trials have in common.

    Raises:
        ConfigError: Optuna is missing, or the study was started with another objective, space or common overrides.
        RunFolderError: another process works on the study, or its files cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        settings: TuningSettings,
        space: SearchSpace,
        seeds: Sequence[str],
        fixed_overrides: Sequence[str],
    ) -> None:
        check_optuna()
        import optuna

        # Optuna would print a line for every trial, which the sweeper already prints.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.settings, self.space, self.seeds = settings, space, list(seeds)
        self.folder = folder.expanduser().absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise make_write_error(self.folder, error) from error
        self._ownership = Ownership(self.folder)
        try:
            with self._translate_errors():
                self._study = optuna.create_study(
                    storage=f"sqlite:///{self.folder / STUDY_FILE_NAME}",
                    study_name=settings.study,
                    direction=settings.direction,
                    load_if_exists=True,
                )
                self._check_unchanged(fixed_overrides)
        except BaseException:
            self._ownership.release()
            raise

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ownership.release()

    def list_trials(self) -> list[TuningTrial]:
        """Return all trials, ordered by number, without those for which a killed process drew only some parameters."""
        results = self._study.user_attrs
        state_names = {"RUNNING": "running", "COMPLETE": "finished", "FAIL": "failed", "PRUNED": "pruned"}
        return [
            TuningTrial(
                trial.number,
                format_overrides(self.space, trial.params),
                state_names[trial.state.name],  # type: ignore[arg-type]
                trial.value if trial.state.name == "COMPLETE" else None,
                results.get(f"results of trial {trial.number}", {}),
            )
            for trial in self._get_drawn_trials()
        ]

    def next_batch(self) -> list[TuningTrial]:
        """Return the next trials to run; empty if `settings.trials` trials are finished or pruned.

        Unfinished trials of a killed search are returned as a batch without new trials, so that new trials are drawn
        after the same results as in an uninterrupted search.
        """
        from optuna.trial import TrialState

        trials = self.list_trials()
        n_missing = self.settings.trials - sum(trial.state in ("finished", "pruned") for trial in trials)
        batch_size = max(0, min(self.settings.parallel_trials, n_missing))
        if running := [trial for trial in trials if trial.state == "running"][:batch_size]:
            return running
        batch = []
        with self._translate_errors():
            for incomplete_trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if not self._has_all_parameters(incomplete_trial):
                    self._study.tell(incomplete_trial.number, state=TrialState.FAIL)
            for trial_index in range(len(trials), len(trials) + batch_size):
                self._study.sampler = self._build_sampler(trial_index)
                optuna_trial = self._study.ask(dict(self.space))
                batch.append(TuningTrial(optuna_trial.number, format_overrides(self.space, optuna_trial.params)))
        return batch

    def tell(self, trial: TuningTrial, results: Sequence[RunResult]) -> TuningTrial:
        """Record the results of a trial, one for each seed; return the updated trial, which fails if a run failed."""
        from optuna.trial import TrialState

        results_by_seed = dict(zip(self.seeds, results, strict=True))
        with self._translate_errors():
            # Stored before the state changes: after a kill in between, the trial is still running, and is continued.
            self._study.set_user_attr(f"results of trial {trial.number}", results_by_seed)
            if any(isinstance(result, str) for result in results):
                self._study.tell(trial.number, state=TrialState.FAIL)
                return replace(trial, state="failed", results=results_by_seed)
            value = float(AGGREGATE_FUNCTIONS[self.settings.aggregate](np.array(results, dtype=np.float64)))
            self._study.tell(trial.number, value)
        return replace(trial, state="finished", value=value, results=results_by_seed)

    def prune(self, trial: TuningTrial, results: Sequence[float]) -> TuningTrial | None:
        """Record the results of a trial's first seeds, and end the trial if it is unpromising.

        A trial is unpromising if its mean is worse than the median of the means that finished trials had after as many
        seeds (Optuna's `MedianPruner`, the median stopping rule of Golovin et al., 2017, "Google Vizier", section 3.2).

        Args:
            trial: running trial.
            results: results of its first seeds, at least one and not all.

        Returns:
            The pruned trial; None if the trial continues with its other seeds.
        """
        from optuna.pruners import MedianPruner
        from optuna.trial import Trial, TrialState

        pruner = MedianPruner(n_startup_trials=self.settings.pruner_startup_trials, n_warmup_steps=0)
        results_by_seed = dict(zip(self.seeds, results, strict=False))
        with self._translate_errors():
            [stored_trial] = [x for x in self._get_drawn_trials() if x.number == trial.number]
            # A resumed search reports results again, but Optuna stores only one value for a number of seeds.
            if len(results) not in stored_trial.intermediate_values:
                # The object that Study.ask returned may belong to an earlier process.
                Trial(self._study, stored_trial._trial_id).report(float(np.mean(results)), len(results))
                [stored_trial] = [x for x in self._get_drawn_trials() if x.number == trial.number]
            if not pruner.prune(self._study, stored_trial):
                return None
            self._study.set_user_attr(f"results of trial {trial.number}", results_by_seed)
            self._study.tell(trial.number, state=TrialState.PRUNED)
        return replace(trial, state="pruned", results=results_by_seed)

    def rank_trials(self) -> list[TuningTrial]:
        """Return the trials with a value, best first; trials with equal values are ordered by number."""
        sign = -1.0 if self.settings.direction == "maximize" else 1.0
        trials = [trial for trial in self.list_trials() if trial.value is not None]
        return sorted(trials, key=lambda trial: sign * (trial.value or 0.0))

    def compute_importances(self) -> dict[str, float]:
        """Return the importance of each searched key (PED-ANOVA, arXiv 2304.10255), in descending order, with sum 1.

        Return {} if fewer than 4 trials have a value, all values are equal, or only one key is searched.
        """
        import optuna

        values = [trial.value for trial in self.rank_trials()]
        if len(values) < 4 or len(set(values)) == 1 or len(self.space) < 2:
            return {}
        importances_by_key = optuna.importance.get_param_importances(self._study)
        return importances_by_key if math.isfinite(sum(importances_by_key.values())) else {}

    def write(self, command: str) -> None:
        """Write `trials.csv` and, if a trial has a value, `best.yaml`; `command` is the command of the best trial."""
        import yaml

        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["trial", "state", self.settings.aggregate, *self.space, *(f"seed={s}" for s in self.seeds)])
        for trial in self.list_trials():
            values = [text.removeprefix(f"{key}=") for key, text in zip(self.space, trial.overrides, strict=True)]
            results = [trial.results.get(seed) for seed in self.seeds]
            writer.writerow([trial.number, trial.state, trial.value, *values, *results])
        write_atomic(self.folder / TRIALS_FILE_NAME, table.getvalue())
        if ranking := self.rank_trials():
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
            write_atomic(self.folder / BEST_TRIAL_FILE_NAME, yaml.safe_dump(content, sort_keys=False, width=1000))

    def _get_drawn_trials(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if self._has_all_parameters(trial)]

    def _has_all_parameters(self, trial: FrozenTrial) -> bool:
        return set(trial.params) == set(self.space)

    def _build_sampler(self, trial_index: int) -> BaseSampler:
        """Return a sampler for one trial; the state of a sampler for all trials would be lost with the process."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import RandomSampler, TPESampler

        seed = Seeds(self.settings.sampler_seed).integer(trial_index)
        if self.settings.sampler == "random":
            return RandomSampler(seed=seed)
        # constant_liar: running trials count as bad ones, so that a batch does not repeat parameters.
        # multivariate, group: keys that occur in the same trials are modeled jointly. Optuna calls all experimental.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)

    def _check_unchanged(self, fixed_overrides: Sequence[str]) -> None:
        """Raise ConfigError unless objective, search space and fixed overrides are those of the study's first start."""
        objective = f"{self.settings.direction} the {self.settings.aggregate} over seeds {', '.join(self.seeds)}"
        properties = {
            "the objective": objective,
            **{key: f"searched, {describe_distribution(distribution)}" for key, distribution in self.space.items()},
            **split_overrides(fixed_overrides),
        }
        stored_properties = self._study.user_attrs.get("purpose")
        if stored_properties is None:
            self._study.set_user_attr("purpose", properties)
            return
        differences = [
            f"{key} was {stored_properties.get(key, 'not given')} and is {properties.get(key, 'not given')}"
            for key in dict.fromkeys([*stored_properties, *properties])
            if stored_properties.get(key) != properties.get(key)
        ]
        if differences:
            raise ConfigError(
                f"the study '{self.settings.study}' in {self.folder} was started with other settings: "
                f"{'; '.join(differences)}. Give this search another name with hydra.sweeper.study=<name>, or continue "
                "the old one with its settings"
            )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of the database to RunFolderError with advice."""
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (OptunaError, SQLAlchemyError) as error:
            message = str(error.__cause__ or error).splitlines()[0]
            raise RunFolderError(
                f"{self.folder / STUDY_FILE_NAME} cannot be used as a study ({message}); free some space if the disk "
                "is full, move the file away to start a new study, or choose another folder with "
                "hydra.sweeper.folder=<folder>"
            ) from error
