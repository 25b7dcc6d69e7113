"""A task to propose parameters for, and what is asked of a proposer in it."""

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
from llmrl.finetuning.examples import Target, held_out_of, make_examples, split
from llmrl.finetuning.questions import Question, Questions
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
class Task:
    """A game and a policy in it.

    Attributes:
        name: what results call it.
        spec: of the environment.
        identity: what tells it from other tasks, see `task_of`.
        play: plays parameters of the policy.
        questions: of the proposer about it.
        versions: packages whose version may change returns.
        limits: a bad and a good return of it, which other tasks' scores are scaled by; None: the lowest and the highest
            among its trials.
    """

    name: str
    spec: EnvSpec
    identity: Mapping[str, Any]
    play: Play
    questions: Questions
    versions: Mapping[str, str]
    limits: tuple[float | None, float | None] = (None, None)

    @property
    def space(self) -> ParameterSpace:
        return self.questions.space


@dataclass(frozen=True)
class Data:
    """What a proposer is asked in a task.

    Attributes:
        train, held_out: questions; no trial is in both.
        values: mean returns of all trials, [n].
        train_values: of those to train on, [m].
    """

    train: Sequence[Question]
    held_out: Sequence[Question]
    values: np.ndarray
    train_values: np.ndarray

    def metrics(self) -> dict[str, float]:
        """data/trials, best, mean of their values; data/prompts, held_out_prompts; data/prompts_with_target, for which
        something better is known; data/trials_shown a prompt; data/trials_left_out of prompts that were too long."""
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
    """Which trials there are, and what prompts are made of them.

    Args:
        trials: random parameters to be played.
        episodes: of each; search runs have their own, which must be the same.
        low, high: bounds of random parameters; None: those of the policy, which prompts tell, as always of choices.
        runs: folders of search runs, or folders around such ones, whose proposals are used.
        prompts: to train on.
        held_out: prompts to evaluate on.
        share: of the trials (of several runs: of the runs) that are held out for these, in (0, 1).
        examples: trials each prompt shows, the most; `fewest`, the least (None: as many). Any number between is as
            likely.
        target: of the better parameters that are known, the reply to learn: see `make_examples`.
        iterations: how many the prompt says a search has (the loop's own, where the adapter is used).

    Raises:
        ConfigError: there is no source of trials, or a number makes no sense.
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

    def check(self, task: Task) -> None:
        """Find out whether the data is there and of this task, before any is made.

        Raises:
            ConfigError: it is not.
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
        self, task: Task, store: Path, seeds: Seeds, before_chunk: Callable[[int], None] = lambda done: None
    ) -> Data:
        """Play, or read, the trials and make the questions.

        Args:
            task: whose.
            store: folder of kept trials.
            seeds: node of the seed tree.
            before_chunk: see `random_trials`.

        Raises:
            ConfigError: data of another task, or too little.
        """
        series = [read_search_run(folder, task.space, task.identity) for folder in find_search_runs(self.runs)]
        # Of choices there are no others than the policy's.
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
        task.questions.proposer.expect(self.iterations, self._episodes(series))
        train, held_out = split(series, self.share, seeds.child("split"))
        values, train_values = (
            np.array([trial.value for one in part for trial in one.trials]) for part in (series, train)
        )
        return Data(
            self._questions(task, train, self.prompts, seeds.child("train"), "to train on"),
            self._questions(task, held_out, self.held_out, seeds.child("held out"), "held out"),
            values,
            train_values,
        )

    def for_transfer(self, trials: int) -> Dataset:
        """The same prompts of another task, of which nothing is known but random trials, half of them held out."""
        return Dataset(
            trials, self.episodes, None, None, None, 1, self.held_out, 0.5, self.examples, self.fewest, self.target,
            self.iterations,
        )  # fmt: skip

    def _episodes(self, series: Sequence[Series]) -> int:
        """How many episodes a proposal has, which prompts tell.

        Raises:
            ConfigError: not as many everywhere.
        """
        found = {one.episodes or self.episodes for one in series} | ({self.episodes} if self.trials else set())
        if len(found) > 1:
            raise ConfigError(
                f"there are data of {' and '.join(map(str, sorted(found)))} episodes a proposal, and prompts tell one "
                "number; give dataset.runs with equal search.episodes"
                + (f", and dataset.episodes={self.episodes} as they have (or dataset.trials=0)" if self.trials else "")
            )
        return found.pop()

    def _questions(self, task: Task, series: Sequence[Series], n: int, seeds: Seeds, which: str) -> list[Question]:
        examples = make_examples(
            series, n, self.fewest, self.examples, self.target, seeds, which, task.questions.proposable
        )
        return [task.questions.ask(example) for example in examples]


def write_questions(path: Path, questions: Sequence[Question], replies: Sequence[str | None]) -> None:
    """One JSON object a line: the prompt, how many trials it shows, the best of them, and the reply to learn."""
    lines = [
        {"prompt": q.text, "shown": len(q.shown), "best": max(trial.value for trial in q.shown), "reply": reply}
        for q, reply in zip(questions, replies, strict=True)
    ]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))
