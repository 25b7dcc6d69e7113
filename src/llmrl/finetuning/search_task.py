"""Tasks to propose parameters for, and datasets of a proposer's prompts in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.proposal_examples import Target, held_out_of, make_examples, split
from llmrl.finetuning.trials import (
    Play,
    RandomTrials,
    Series,
    find_search_runs,
    random_trials,
    read_search_run,
    trials_folder,
)
from llmrl.run.files import write_atomic


@dataclass
class SearchTask:
    """Environment with a parametrised policy.

    Attributes:
        name: name of the task in results.
        spec: spec of the environment.
        identity: description that distinguishes the task from others, see `task_of`.
        play: function that plays parameters of the policy.
        questions: format of the proposer's prompts in this task.
        versions: versions of packages that may affect returns.
        limits: returns that count as 0 and as 1 when scores are scaled; None: the lowest and the highest among its
            trials.
    """

    name: str
    spec: EnvSpec
    identity: Mapping[str, Any]
    play: Play
    questions: PromptFormat
    versions: Mapping[str, str]
    limits: tuple[float | None, float | None] = (None, None)

    @property
    def space(self) -> ParameterSpace:
        return self.questions.space


@dataclass(frozen=True)
class PromptDataset:
    """Prompts of a proposer in a task.

    Attributes:
        train, held_out: prompts to train on and to evaluate on, without common trials.
        values: mean returns of all trials, [n].
        train_values: mean returns of the training trials, [m].
    """

    train: Sequence[ProposalPrompt]
    held_out: Sequence[ProposalPrompt]
    values: np.ndarray
    train_values: np.ndarray

    def metrics(self) -> dict[str, float]:
        """Return data/trials (number), data/best and data/mean of their values; data/prompts, data/held_out_prompts and
        data/prompts_with_target (numbers); data/trials_shown (mean per prompt) and data/trials_left_out (total)."""
        every = [*self.train, *self.held_out]
        return {
            "data/trials": float(len(self.values)),
            "data/best": float(self.values.max()),
            "data/mean": float(self.values.mean()),
            "data/prompts": float(len(self.train)),
            "data/held_out_prompts": float(len(self.held_out)),
            "data/prompts_with_target": float(sum(q.example.target is not None for q in self.train)),
            "data/trials_shown": float(np.mean([len(q.shown) for q in every])),
            "data/trials_left_out": float(sum(q.left_out for q in every)),
        }


class Dataset:
    """Settings of the trials and of the prompts made from them.

    Args:
        trials: number of random vectors of parameters to play.
        episodes: episodes of each trial; search runs must have the same number per proposal.
        low, high: bounds of random parameters; None: the policy's, as stated in prompts. For discrete parameters the
            policy's bounds always apply.
        runs: folders of search runs, or folders around them, whose proposals are used.
        prompts: number of prompts to train on.
        held_out: number of prompts to evaluate on.
        share: share of the trials (with several runs: of the runs) held out for evaluation, in (0, 1).
        examples: most trials in a prompt.
        fewest: fewest trials in a prompt, of which the number is uniform; None: `examples`.
        target: choice of the target among known better parameters, see `make_examples`.
        iterations: length of the search as stated in the prompt; with the adapter in use, the loop's own.

    Raises:
        ConfigError: there is no source of trials, or numbers are inconsistent.
    """

    def __init__(
        self,
        trials: NonNegativeInt = 2048,
        episodes: PositiveInt = 20,
        low: float | None = None,
        high: float | None = None,
        runs: list[str] | None = None,
        prompts: PositiveInt = 512,
        held_out: PositiveInt = 64,
        share: UnitInterval = 0.1,
        examples: PositiveInt = 10,
        fewest: PositiveInt | None = None,
        target: Target = "better",
        iterations: PositiveInt = 100,
    ) -> None:
        if not trials and not runs:
            raise ConfigError(
                "there is no data: set dataset.trials to a number of random parameters, or dataset.runs=[<folder>] to "
                "the folder of a search run"
            )
        if not 0.0 < share < 1.0:
            raise ConfigError(
                f"dataset.share={share:g}: some trials are to be held out and some not; use 0 < share < 1"
            )
        if fewest is not None and fewest > examples:
            raise ConfigError(f"dataset.fewest={fewest} is more than dataset.examples={examples}")
        if low is not None and high is not None and not low < high:
            raise ConfigError(f"dataset.low={low:g} must be below dataset.high={high:g}")
        self.trials, self.episodes, self.low, self.high, self.runs = trials, episodes, low, high, runs or []
        self.prompts, self.held_out, self.share = prompts, held_out, share
        self.examples, self.fewest, self.target, self.iterations = examples, fewest or examples, target, iterations

    def check(self, task: SearchTask) -> None:
        """Check search runs and numbers of trials before anything is played.

        Raises:
            ConfigError: a run is missing or of another task, numbers of episodes differ, or trials are too few.
        """
        found = [read_search_run(folder, task.space, task.identity) for folder in find_search_runs(self.runs)]
        self._episodes(found)
        out = held_out_of(self.trials, self.share)
        if not found and min(out, self.trials - out) < self.examples:
            raise ConfigError(
                f"dataset.examples={self.examples} trials are to be shown in a prompt, and of "
                f"dataset.trials={self.trials} {out} are held out (dataset.share={self.share:g}) and "
                f"{self.trials - out} are to train on; raise dataset.trials, or lower dataset.examples"
            )

    def prepare(
        self, task: SearchTask, store: Path, seeds: Seeds, before_chunk: Callable[[int], None] = lambda done: None
    ) -> PromptDataset:
        """Play or read the trials, and return the prompts made from them.

        Args:
            task: task of the trials.
            store: folder of kept trials.
            seeds: node of the seed tree.
            before_chunk: see `random_trials`.

        Raises:
            ConfigError: the data is of another task, or there is too little.
        """
        series = [read_search_run(folder, task.space, task.identity) for folder in find_search_runs(self.runs)]
        # Discrete parameters have no other bounds than the policy's.
        low, high = (None, None) if task.space.choices.any() else (self.low, self.high)
        if self.trials:
            identity = {
                "task": dict(task.identity),
                "seed": [seeds.seed, seeds.child("trials").integer("identity")],
                "episodes": self.episodes,
                "bounds": [low, high],
                "versions": dict(task.versions),
            }
            folder = trials_folder(store, identity)
            wanted = RandomTrials(self.trials, self.episodes, low, high)
            series.append(random_trials(task.play, task.space, seeds.child("trials"), wanted, folder, before_chunk))
        task.questions.proposer.on_search_start(self.iterations, self._episodes(series))
        train, held_out = split(series, self.share, seeds.child("split"))
        values, train_values = (
            np.array([trial.value for one in part for trial in one.trials]) for part in (series, train)
        )
        return PromptDataset(
            self._questions(task, train, self.prompts, seeds.child("train"), "to train on"),
            self._questions(task, held_out, self.held_out, seeds.child("held out"), "held out"),
            values,
            train_values,
        )

    def for_transfer(self, trials: int) -> Dataset:
        """Return the settings for another task with random trials only, half of them held out."""
        return Dataset(
            trials, self.episodes, None, None, None, 1, self.held_out, 0.5, self.examples, self.fewest, self.target,
            self.iterations,
        )  # fmt: skip

    def _episodes(self, series: Sequence[Series]) -> int:
        """Return the number of episodes per proposal, as stated in prompts.

        Raises:
            ConfigError: the number differs between series.
        """
        found = {one.episodes or self.episodes for one in series} | ({self.episodes} if self.trials else set())
        if len(found) > 1:
            raise ConfigError(
                f"there are data of {' and '.join(map(str, sorted(found)))} episodes a proposal, and prompts tell one "
                "number; give dataset.runs with equal search.episodes"
                + (f", and dataset.episodes={self.episodes} as they have (or dataset.trials=0)" if self.trials else "")
            )
        return found.pop()

    def _questions(
        self, task: SearchTask, series: Sequence[Series], n: int, seeds: Seeds, which: str
    ) -> list[ProposalPrompt]:
        examples = make_examples(
            series, n, self.fewest, self.examples, self.target, seeds, which, task.questions.proposable
        )
        return [task.questions.ask(example) for example in examples]


def write_questions(path: Path, questions: Sequence[ProposalPrompt], replies: Sequence[str | None]) -> None:
    """Write one JSON object per line: prompt, number of trials shown, their best value, and target reply."""
    lines = [
        {"prompt": q.text, "shown": len(q.shown), "best": max(trial.value for trial in q.shown), "reply": reply}
        for q, reply in zip(questions, replies, strict=True)
    ]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))
