"""Evaluation of a proposer on held-out prompts, in comparison with baselines that use no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import read_object
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.rewards import REWARDS, Attempt, RewardFunction, Rewards, Scale
from llmrl.finetuning.trials import random_vectors
from llmrl.statistics.estimators import wilson
from llmrl.statistics.intervals import mean_interval

RATES = ("valid_rate", "in_bounds_rate", "improvement_rate", "repeat_rate")
"""Measures that are shares of replies, with Wilson intervals, which are informative for 0 and 1, too."""
MEASURES = (*RATES, "return", "score", "rank", "reward")
"""All measures of a reply, see `measure`."""
RESULTS = "evaluation.json"
"""File of the results in the run folder."""


@dataclass(frozen=True)
class ProposerEvaluation:
    """Settings of the evaluation of a proposer, before and after training.

    Attributes:
        rollouts: number of episodes per proposal.
    """

    rollouts: PositiveInt = 20


def chat_requests(questions: PromptFormat, prompts: Sequence[ProposalPrompt]) -> list[ChatRequest]:
    """Return the requests of prompts to a model.

    Only the first reply to each counts, without repairs; it is "" if the call failed permanently.
    """

    def read(reply: ChatReply) -> np.ndarray:
        return questions.read(reply.text, reply.cut)

    return [ChatRequest(q.messages, None, "finetune", q.name, q.hash, read=read) for q in prompts]


def measure(attempts: Sequence[Attempt], rewards: Rewards, scale: Scale) -> State:
    """Return the measures of each reply, [n] each.

    valid_rate: 1 if the numbers could be parsed. in_bounds_rate: 1 if they are also within the bounds.
    improvement_rate: 1 if the return exceeds the best of the prompt's history. repeat_rate: 1 for a proposal that the
    history already contains.
    return: mean over the rollouts, NaN if nothing was played. score: return scaled to [0, 1], 0 if nothing was played.
    rank: share of the history with a lower value, ties counting half. reward: weighted sum of the rewards.
    """
    values = [np.nan if attempt.value is None else attempt.value for attempt in attempts]
    return {
        "valid_rate": np.array([float(attempt.vector is not None) for attempt in attempts]),
        "in_bounds_rate": np.array([float(attempt.in_bounds) for attempt in attempts]),
        "improvement_rate": np.array(
            [
                float(v > attempt.history.max()) for v, attempt in zip(values, attempts, strict=True)
            ]  # comparisons with NaN are false
        ),
        "repeat_rate": np.array([float(attempt.repeats) for attempt in attempts]),
        "return": np.array(values),
        "score": np.array([REWARDS["scaled_return"](attempt, scale) for attempt in attempts]),
        "rank": np.array([REWARDS["rank"](attempt, scale) for attempt in attempts]),
        "reward": np.array([rewards(attempt, scale) for attempt in attempts]),
    }


def baselines(
    judge: RewardFunction, prompts: Sequence[ProposalPrompt], rewards: Rewards, scale: Scale, seeds: Seeds
) -> State:
    """Return the measures of two baselines without a model for the same prompts.

    `random` draws parameters within the bounds. `incumbent` proposes the best of the history again, which shows how
    much of its value was luck.
    """
    vectors = random_vectors(judge.questions.space, seeds.child("random"), range(len(prompts)), None, None)
    best = np.stack([max(question.shown, key=lambda trial: trial.value).vector for question in prompts])
    return {
        "random": measure(judge.of_vectors(prompts, vectors, "evaluation"), rewards, scale),
        "incumbent": measure(judge.of_vectors(prompts, best, "evaluation"), rewards, scale),
    }


def summarize(measures: State) -> dict[str, dict[str, Any]]:
    """Return statistics of each measure.

    These are the `mean`, the bounds `low` and `high` of its 95 % interval, and the number `n` of replies with this
    measure.
    """
    table: dict[str, dict[str, Any]] = {}
    for name in MEASURES:
        finite = np.asarray(measures[name], dtype=np.float64)
        finite = finite[np.isfinite(finite)]
        if not len(finite):
            table[name] = {"mean": None, "low": None, "high": None, "n": 0}
            continue
        low, high = _wilson_interval(finite) if name in RATES else _t_interval(finite)
        table[name] = {"mean": float(finite.mean()), "low": low, "high": high, "n": len(finite)}
    return table


def difference(after: State, before: State) -> dict[str, dict[str, Any]]:
    """Return the paired differences `after` - `before` with t intervals, over prompts with both measures."""
    table: dict[str, dict[str, Any]] = {}
    for name in MEASURES:
        differences = np.asarray(after[name], dtype=np.float64) - np.asarray(before[name], dtype=np.float64)
        finite = differences[np.isfinite(differences)]
        if len(finite):
            low, high = _t_interval(finite)
            table[name] = {"mean": float(finite.mean()), "low": low, "high": high, "n": len(finite)}
        else:
            table[name] = {"mean": None, "low": None, "high": None, "n": 0}
    return table


def read_results(run: Path) -> dict[str, Any] | None:
    """Return the content of `evaluation.json` in a run folder; None if there is none.

    Raises:
        RunFolderError: it cannot be read.
    """
    try:
        return read_object(run / RESULTS)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(f"{run / RESULTS} cannot be read: {error}") from error


def _t_interval(scores: np.ndarray) -> tuple[float | None, float | None]:
    band = mean_interval(scores)
    return (float(band.low), float(band.high)) if np.isfinite(band.low) else (None, None)


def _wilson_interval(scores: np.ndarray) -> tuple[float, float]:
    low, high = wilson(scores.mean(), len(scores))
    return float(low), float(high)
