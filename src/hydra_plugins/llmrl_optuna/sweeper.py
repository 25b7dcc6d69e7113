"""The sweeper for Optuna. Hydra imports this module at every start, so it must not import heavy modules."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra_plugins.llmrl_launcher.sweeper import LlmrlSweeper
from hydra_plugins.llmrl_optuna import SEED

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from hydra_plugins.llmrl_optuna._grammar import SearchRequest
    from llmrl.sweeps.backends.protocol import JobOutcome
    from llmrl.tuning.study import RunResult, Study, TuningSettings, TuningTrial

_SETTINGS_CLASS = "llmrl.tuning.study.TuningSettings"
FAILED_STATES = ("failed", "lost", "unreadable")
"""States of runs that end a trial as failed. Runs in other unfinished states are resumed by the same command."""
_MAX_ROWS = 10
"""Maximum number of trials in each table of the report."""
_MIN_RELIABLE_TRIALS = 30
"""Number of trials below which the report warns of unreliable importances."""


class OptunaSweeper(LlmrlSweeper):
    """A sweeper that searches the swept keys with Optuna; the chosen launcher runs all seeds of a trial.

    Args:
        params: further keys to search, as the text of overrides by key.
        settings: fields of `llmrl.tuning.study.TuningSettings`, checked when the search starts.
    """

    def __init__(self, params: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(params)
        self.settings = settings
        self._n_launched = 0

    def sweep(self, arguments: list[str]) -> None:
        from llmrl.run.command_exit import exit_on_error

        with exit_on_error(self._get_command_name()):
            self._search(self.all_overrides(arguments))

    def _get_command_name(self) -> str:
        """Return the name of the command, for messages."""
        from llmrl.experiment.experiment import get_application

        assert self.config is not None
        return get_application(self.config).command

    def _search(self, arguments: list[str]) -> None:
        from hydra_plugins.llmrl_optuna._grammar import parse_search_request
        from llmrl.config.builder import Builder
        from llmrl.core.errors import ConfigError
        from llmrl.tuning.study import Study

        assert self.hydra_context is not None and self.config is not None and self.launcher is not None
        settings: TuningSettings = Builder().build(self.settings, "hydra.sweeper", _SETTINGS_CLASS)
        request = parse_search_request(arguments, self.hydra_context.config_loader)
        config = self._compose_all(request)
        runs_folder = Path(config["output_root"]) / config["name"]
        folder = Path(settings.folder or runs_folder / settings.study)
        seeds = request.seeds or [str(config[SEED])]
        if hasattr(self.launcher, "swept") and hasattr(self.launcher, "in_batches"):
            self.launcher.swept = set(request.space)  # so that labels of run folders contain the searched values
            self.launcher.in_batches = True
        n_failures = 0  # consecutive
        if config["dry_run"]:
            self._print_plan(request, settings, seeds)
            return
        with Study(folder, settings, request.space, seeds, request.fixed) as study:
            while batch := study.next_batch():
                trials = self._evaluate(request, study, batch)
                study.write(self._format_best_command(request, study))
                _print_trials(f"Search '{settings.study}'", study, trials)
                for trial in trials:
                    n_failures = n_failures + 1 if trial.state == "failed" else 0
                    if n_failures == settings.max_failures:
                        errors = [f"seed {seed}: {r}" for seed, r in trial.results.items() if isinstance(r, str)]
                        raise ConfigError(
                            f"{n_failures} trials in a row failed, the last with {errors[0]}. Tracebacks are in "
                            f"the run folders, all trials in {study.folder}. Repeat the command to go on with other "
                            "trials, with a larger hydra.sweeper.max_failures if some are bound to fail"
                        )
            self._print_report(request, study, runs_folder)

    def _print_plan(self, request: SearchRequest, settings: TuningSettings, seeds: Sequence[str]) -> None:
        """Print the plan of one trial, which has the first option of every choice and the lowest numbers."""
        from llmrl.tuning.space import list_options

        assert self.launcher is not None
        first_values = [f"{key}={list_options(distribution)[0]}" for key, distribution in request.space.items()]
        self.launcher.launch([[*request.fixed, *first_values, f"{SEED}={seed}"] for seed in seeds], initial_job_idx=0)
        sys.stdout.write(
            f"Above: one trial, {shlex.join(first_values)}. The search '{settings.study}' has {settings.trials} trials "
            f"of {len(seeds)} runs, {settings.parallel_trials} at a time.\n"
        )

    def _evaluate(self, request: SearchRequest, study: Study, batch: Sequence[TuningTrial]) -> list[TuningTrial]:
        """Compute the runs of the trials in `batch`, record the results, and return the final trials.

        Without a pruner, all seeds run together. With a pruner, they run one after the other, and pruned and failed
        trials have no further seeds.
        """
        assert self.launcher is not None
        seed_batches = [study.seeds] if study.settings.pruner == "none" else [[seed] for seed in study.seeds]
        results: dict[int, list[RunResult]] = {trial.number: [] for trial in batch}
        final_trials: dict[int, TuningTrial] = {}
        for seeds in seed_batches:
            active_trials = [trial for trial in batch if trial.number not in final_trials]
            if not active_trials:
                break
            jobs = [[*request.fixed, *trial.overrides, f"{SEED}={seed}"] for trial in active_trials for seed in seeds]
            run_results = [_get_run_result(job) for job in self.launcher.launch(jobs, initial_job_idx=self._n_launched)]
            self._n_launched += len(jobs)
            for i, trial in enumerate(active_trials):
                trial_results = results[trial.number]
                trial_results += run_results[i * len(seeds) : (i + 1) * len(seeds)]
                values = [result for result in trial_results if not isinstance(result, str)]
                n_missing = len(study.seeds) - len(trial_results)
                if len(values) < len(trial_results) or not n_missing:  # a failed trial needs no further seeds
                    final_trials[trial.number] = study.tell(trial, trial_results + ["not run"] * n_missing)
                elif (pruned := study.prune(trial, values)) is not None:
                    final_trials[trial.number] = pruned
        return [final_trials[trial.number] for trial in batch]

    def _compose_all(self, request: SearchRequest) -> dict[str, Any]:
        """Compose trials that contain every option of every choice once, so that errors are found before a run starts.

        Returns:
            `output_root`, `name`, `dry_run` and `seed` of the first trial.

        Raises:
            ConfigError: the value of `name` differs between trials.
        """
        from hydra.core.hydra_config import HydraConfig

        from llmrl.core.errors import ConfigError
        from llmrl.tuning.space import list_options

        assert self.hydra_context is not None and self.config is not None
        first_values = {key: list_options(distribution)[0] for key, distribution in request.space.items()}
        settings = [first_values]
        for key, distribution in request.space.items():
            settings += [{**first_values, key: option} for option in list_options(distribution)[1:]]
        previous_config, configs = HydraConfig.instance().cfg, []
        try:
            for setting in settings:
                overrides = [*request.fixed, *(f"{key}={text}" for key, text in setting.items())]
                config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
                HydraConfig.instance().set_config(config)  # `name` may interpolate the chosen options
                configs.append({key: config[key] for key in ("output_root", "name", "dry_run", SEED)})
        finally:
            HydraConfig.instance().cfg = previous_config
        if len({config["name"] for config in configs}) > 1:
            names = ", ".join(dict.fromkeys(config["name"] for config in configs))
            raise ConfigError(f"runs of this search would go to several folders, {names}; choose one with name=<name>")
        return configs[0]

    def _format_best_command(self, request: SearchRequest, study: Study) -> str:
        """Return the command with the runs of the best trial so far; empty if there is none."""
        if not (ranking := study.rank_trials()):
            return ""
        assert self.config is not None
        sources = self.config.hydra.runtime.config_sources
        folders = [source.path for source in sources if source.provider == "command-line"]
        arguments = [self._get_command_name(), *(text for folder in folders for text in ("--config-dir", folder))]
        arguments += ["--multirun"] if len(study.seeds) > 1 else []
        return shlex.join([*arguments, *request.fixed, *ranking[0].overrides, f"{SEED}={','.join(study.seeds)}"])

    def _print_report(self, request: SearchRequest, study: Study, runs_folder: Path) -> None:
        from llmrl.display.console import print_fields
        from llmrl.display.sweeps import print_next_commands
        from llmrl.tuning.study import BEST_TRIAL_FILE_NAME, TRIALS_FILE_NAME

        ranking = study.rank_trials()
        failed_trials = [trial for trial in study.list_trials() if trial.state == "failed"]
        n_pruned = sum(trial.state == "pruned" for trial in study.list_trials())
        _print_trials(f"Search '{study.settings.study}', best trials", study, ranking[:_MAX_ROWS])
        if failed_trials:
            _print_trials("Failed trials", study, failed_trials[-_MAX_ROWS:])
        rows = [
            (f"importance of {key}", f"{importance:.2f}") for key, importance in study.compute_importances().items()
        ]
        if rows and len(ranking) < _MIN_RELIABLE_TRIALS:
            rows.append(("reliability", f"importances of {len(ranking)} trials are mostly noise"))
        print_fields(
            f"Search '{study.settings.study}'",
            [
                ("trials", f"{len(ranking)} finished, {n_pruned} pruned, {len(failed_trials)} failed"),
                *rows,
                ("all trials", str(study.folder / TRIALS_FILE_NAME)),
                ("best trial", str(study.folder / BEST_TRIAL_FILE_NAME)),
            ],
        )
        # Outside the table, so that the command can be copied.
        sys.stdout.write(f"The best trial again: {self._format_best_command(request, study)}\n")
        if ranking and all(seed.isdigit() for seed in study.seeds):
            first_seed = max(map(int, study.seeds)) + 1
            new_seeds = ",".join(str(first_seed + i) for i in range(3))
            # The score of the best trial is biased upwards, because the trial was selected by it.
            sys.stdout.write(f"An unbiased estimate needs new seeds: the same with --multirun {SEED}={new_seeds}\n")
        print_next_commands(runs_folder)


def _get_run_result(job: JobReturn) -> RunResult:
    """Return the result of a run, or the error text of a failed one.

    Raises:
        ConfigError: the launcher did not wait for the result, or the run has none.
        BaseException: the run was interrupted, which ends the search. The same command resumes the search with this
            trial.
    """
    from hydra.core.utils import JobStatus

    from llmrl.core.errors import BudgetExhausted, ConfigError
    from llmrl.run.command_exit import EXIT_FAILED
    from llmrl.run.signals import Stopped

    if job.status is JobStatus.COMPLETED and job.return_value is not None:
        value = float(job.return_value)
        return value if math.isfinite(value) else f"the result is {value}"
    if job.status is not JobStatus.FAILED:
        raise ConfigError(
            f"a search needs the results of its runs, and there is none of {' '.join(job.overrides or ())}; leave out "
            "dry_run=true and hydra.launcher.wait=false, or repeat the command when the process that computes it ends"
        )
    error = job._return_value  # the property `return_value` would raise the error
    outcome: JobOutcome | None = getattr(job, "outcome", None)  # None with launchers of other packages
    if outcome is not None and outcome.state in FAILED_STATES:
        return outcome.error
    is_interruption = isinstance(error, Stopped | BudgetExhausted | KeyboardInterrupt | SystemExit)
    if outcome is not None or (is_interruption and getattr(error, "code", None) != EXIT_FAILED):
        raise error
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _print_trials(title: str, study: Study, trials: Sequence[TuningTrial]) -> None:
    from llmrl.display.console import print_table

    columns = ["trial", "settings", study.settings.aggregate, *(f"seed {seed}" for seed in study.seeds)]
    rows = []
    for trial in trials:
        results = [trial.results.get(seed, "-") for seed in study.seeds]
        cells = [result if isinstance(result, str) else f"{result:.4g}" for result in results]
        value = trial.state if trial.value is None else f"{trial.value:.4g}"
        rows.append([str(trial.number), " ".join(trial.overrides), value, *cells])
    n_done = sum(trial.state in ("finished", "pruned") for trial in study.list_trials())
    print_table(f"{title} ({n_done} of {study.settings.trials} trials)", columns, rows)
