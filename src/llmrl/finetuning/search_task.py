"""Policy-search tasks, and datasets of prompts that request parameters for them."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.trials import (
    Bounds,
    PlayFn,
    TrialSeries,
    count_held_out,
    find_search_runs,
    load_or_play_trials,
    locate_trials,
    make_examples,
    read_search_run,
    split_series,
)
from llmrl.run.files import write_atomic

_VERSIONED_PACKAGES = ("gymnasium", "mujoco", "numpy")
"""Packages whose versions may change the returns of episodes."""


@dataclass
class SearchTask:
    """Environment with a parametrized policy.

    Attributes:
        name: name of the task in results.
        spec: spec of the environment.
        identity: config entries that define the task, see `get_task_identity`.
        play: function that plays episodes with parameters of the policy.
        prompt_format: format of the proposer's prompts in this task.
        return_limits: returns that are scaled to 0 and to 1; None: the lowest and the highest mean return of trials.
    """

    name: str
    spec: EnvSpec
    identity: Mapping[str, Any]
    play: PlayFn
    prompt_format: PromptFormat
    return_limits: tuple[float | None, float | None] = (None, None)

    @property
    def space(self) -> ParameterSpace:
        """Parameter space of the policy."""
        return self.prompt_format.space


@dataclass(frozen=True)
class PromptDataset:
    """Prompts for training and for evaluation, made from the trials of a task.

    Attributes:
        train, held_out: prompts to train on and to evaluate on, without common trials.
        trial_values: mean returns of all trials, [n].
        train_values: mean returns of the training trials, [m].
    """

    train: Sequence[ProposalPrompt]
    held_out: Sequence[ProposalPrompt]
    trial_values: np.ndarray
    train_values: np.ndarray

    def metrics(self) -> dict[str, float]:
        """Return statistics of the trials and of the prompts.

        These are data/trials (number), data/best and data/mean (of mean returns); data/prompts, data/held_out_prompts
        and data/prompts_with_target (numbers); data/trials_shown (mean per prompt) and data/trials_excluded (total).
        """
        prompts = [*self.train, *self.held_out]
        return {
            "data/trials": float(len(self.trial_values)),
            "data/best": float(self.trial_values.max()),
            "data/mean": float(self.trial_values.mean()),
            "data/prompts": float(len(self.train)),
            "data/held_out_prompts": float(len(self.held_out)),
            "data/prompts_with_target": float(sum(prompt.example.target is not None for prompt in self.train)),
            "data/trials_shown": float(np.mean([len(prompt.shown_trials) for prompt in prompts])),
            "data/trials_excluded": float(sum(prompt.n_omitted for prompt in prompts)),
        }


@dataclass(frozen=True)
class Dataset:
    """Settings of trials and prompts (`dataset=`).

    Attributes:
        trials: number of random vectors of parameters to play.
        episodes: episodes of each trial; search runs must have the same number per proposal.
        low, high: bounds of random parameters; None: the bounds of the policy's parameter space, which prompts state.
            They are ignored if a parameter is discrete.
        runs: folders of search runs, or folders that contain them, whose proposals are used as trials.
        prompts: number of prompts to train on.
        held_out: number of prompts to evaluate on.
        share: share of the trials (with several runs: of the runs) held out for evaluation, in (0, 1).
        examples: maximum number of trials in a prompt; the number is drawn uniformly.
        min_trials: minimum number of trials in a prompt; None: `examples`.
        iterations: number of iterations of the search that prompts state.

    Raises:
        ConfigError: there is no source of trials, or numbers are inconsistent.
    """

    trials: NonNegativeInt
    episodes: PositiveInt
    low: float | None
    high: float | None
    runs: list[str] | None
    prompts: PositiveInt
    held_out: PositiveInt
    share: UnitInterval
    examples: PositiveInt
    min_trials: PositiveInt | None
    iterations: PositiveInt

    def __post_init__(self) -> None:
        if not self.trials and not self.runs:
            raise ConfigError(
                "the dataset has no trials; set dataset.trials to a number of random parameters, or "
                "dataset.runs=[<folder>] to the folder of a search run"
            )
        if not 0.0 < self.share < 1.0:
            raise ConfigError(
                f"dataset.share={self.share:g} must be between 0 and 1 (exclusive), so that some trials are held out"
            )
        if self.min_trials is not None and self.min_trials > self.examples:
            raise ConfigError(f"dataset.min_trials={self.min_trials} must be at most dataset.examples={self.examples}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ConfigError(f"dataset.low={self.low:g} must be below dataset.high={self.high:g}")

    @property
    def min_examples(self) -> int:
        """Minimum number of trials in a prompt."""
        return self.min_trials or self.examples

    def check_trials(self, task: SearchTask) -> None:
        """Check search runs and numbers of trials.

        Raises:
            ConfigError: a run is missing or of another task, numbers of episodes differ, or there are too few trials.
        """
        search_series = self._read_search_series(task)
        self._get_episodes_per_proposal(search_series)
        n_held_out = count_held_out(self.trials, self.share)
        if not search_series and min(n_held_out, self.trials - n_held_out) < self.examples:
            raise ConfigError(
                f"dataset.examples={self.examples} trials per prompt are needed, but of dataset.trials={self.trials} "
                f"{n_held_out} are held out (dataset.share={self.share:g}) and {self.trials - n_held_out} are for "
                "training; increase dataset.trials, or decrease dataset.examples"
            )

    def prepare(
        self, task: SearchTask, trials_dir: Path, seeds: Seeds, on_progress: Callable[[int], None] = lambda n: None
    ) -> PromptDataset:
        """Play or read the trials, and return the prompts made from them.

        Args:
            task: task of the trials.
            trials_dir: folder in which random trials are stored.
            seeds: node of the seed tree.
            on_progress: see `load_or_play_trials`.

        Raises:
            ConfigError: the trials are of another task, or there are too few.
        """
        all_series = self._read_search_series(task)
        # Numbers between `low` and `high` need not be choices of a discrete parameter.
        bounds: Bounds = (None, None) if task.space.is_choice.any() else (self.low, self.high)
        if self.trials:
            identity = {
                "task": dict(task.identity),
                "seed": [seeds.seed, seeds.child("trials").integer("identity")],
                "episodes": self.episodes,
                "bounds": list(bounds),
                "versions": {name: importlib.metadata.version(name) for name in filter(find_spec, _VERSIONED_PACKAGES)},
            }
            folder = locate_trials(trials_dir, identity)
            trial_seeds, n, episodes = seeds.child("trials"), self.trials, self.episodes
            all_series.append(
                load_or_play_trials(task.play, task.space, trial_seeds, n, episodes, folder, bounds, on_progress)
            )
        task.prompt_format.proposer.on_search_start(self.iterations, self._get_episodes_per_proposal(all_series))
        train_series, held_out_series = split_series(all_series, self.share, seeds.child("split"))
        trial_values, train_values = (
            np.array([trial.value for series in series_list for trial in series.trials])
            for series_list in (all_series, train_series)
        )
        return PromptDataset(
            self._make_prompts(task, train_series, self.prompts, seeds.child("train"), "to train on"),
            self._make_prompts(task, held_out_series, self.held_out, seeds.child("held out"), "held out"),
            trial_values,
            train_values,
        )

    def for_transfer(self, trials: int) -> Dataset:
        """Return the settings for a transfer task: `trials` random trials, half of them held out, and no runs."""
        return replace(self, trials=trials, low=None, high=None, runs=None, prompts=1, share=0.5)

    def _read_search_series(self, task: SearchTask) -> list[TrialSeries]:
        """Return the trials of each search run."""
        return [read_search_run(folder, task.space, task.identity) for folder in find_search_runs(self.runs or [])]

    def _get_episodes_per_proposal(self, all_series: Sequence[TrialSeries]) -> int:
        """Return the number of episodes per proposal, which prompts state.

        Raises:
            ConfigError: the number differs between series.
        """
        counts = {series.episodes or self.episodes for series in all_series} | (
            {self.episodes} if self.trials else set()
        )
        if len(counts) > 1:
            raise ConfigError(
                f"prompts state one number of episodes per proposal, but trials have "
                f"{' and '.join(map(str, sorted(counts)))}; use dataset.runs with equal search.episodes"
                + (f", and the same dataset.episodes={self.episodes} (or dataset.trials=0)" if self.trials else "")
            )
        return counts.pop()

    def _make_prompts(
        self, task: SearchTask, all_series: Sequence[TrialSeries], n: int, seeds: Seeds, usage: str
    ) -> list[ProposalPrompt]:
        """Return `n` prompts with trials of `all_series`; `usage` describes these trials in error messages."""
        examples = make_examples(
            all_series, n, self.min_examples, self.examples, seeds, usage, task.prompt_format.is_evaluated_unchanged
        )
        return [task.prompt_format.make_prompt(example) for example in examples]


def write_prompts(path: Path, prompts: Sequence[ProposalPrompt], replies: Sequence[str | None]) -> None:
    """Write one JSON object per line: prompt, number of trials shown, their best value, and target reply."""
    lines = [
        {
            "prompt": prompt.text,
            "shown": len(prompt.shown_trials),
            "best": max(trial.value for trial in prompt.shown_trials),
            "reply": reply,
        }
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))
