"""How good a proposer is at prompts it was not trained on, beside what takes no model at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.intervals import mean_interval
from llmrl.analysis.statistics import wilson
from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import read_object
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import PromptFormat, ProposalPrompt
from llmrl.finetuning.reward_function import RewardFunction
from llmrl.finetuning.rewards import REWARDS, Attempt, Rewards, Scale
from llmrl.finetuning.trials import random_vectors

RATES = ("valid_rate", "inside_rate", "improvement_rate", "repeat_rate")
"""Shares of replies; their intervals are Wilson's, which tell something of 0 and 1 too."""
MEASURES = (*RATES, "return", "score", "rank", "reward")
"""What is measured of each reply; see `measure`."""
RESULTS = "evaluation.json"
"""In the run folder."""


@dataclass(frozen=True)
class ProposerEvaluation:
    """How a proposer is evaluated, before and after.

    Attributes:
        rollouts: episodes a proposal is judged by.
        transfer_trials: random parameters from which the prompts of each other task are made.
    """

    rollouts: PositiveInt = 20
    transfer_trials: PositiveInt = 256


def chat_requests(questions: PromptFormat, asked: Sequence[ProposalPrompt]) -> list[ChatRequest]:
    """What a model is asked; its first replies count, no chance of repair given, and "" where a call failed for
    good."""

    def read(reply: ChatReply) -> np.ndarray:
        return questions.read(reply.text, reply.cut)

    return [ChatRequest(q.messages, None, "finetune", q.name, q.hash, read=read) for q in asked]


def measure(attempts: Sequence[Attempt], rewards: Rewards, scale: Scale) -> State:
    """The measures of each reply, [n] each.

    valid_rate: numbers could be read; inside_rate: and are inside the bounds; improvement_rate: the return is above the
    best of the prompt's history; repeat_rate: a proposal of the history again; return: mean over the rollouts, NaN
    where nothing was played; score: the return scaled to [0, 1], 0 where nothing was played; rank: share of the history
    that was beaten, ties counting half; reward: the weighted sum of the rewards.
    """
    values = [np.nan if attempt.value is None else attempt.value for attempt in attempts]
    return {
        "valid_rate": np.array([float(attempt.vector is not None) for attempt in attempts]),
        "inside_rate": np.array([float(attempt.inside) for attempt in attempts]),
        "improvement_rate": np.array(
            [float(v > a.history.max()) for v, a in zip(values, attempts, strict=True)]  # NaN is above nothing
        ),
        "repeat_rate": np.array([float(attempt.repeats) for attempt in attempts]),
        "return": np.array(values),
        "score": np.array([REWARDS["scaled_return"](attempt, scale) for attempt in attempts]),
        "rank": np.array([REWARDS["rank"](attempt, scale) for attempt in attempts]),
        "reward": np.array([rewards(attempt, scale) for attempt in attempts]),
    }


def baselines(
    judge: RewardFunction, asked: Sequence[ProposalPrompt], rewards: Rewards, scale: Scale, seeds: Seeds
) -> State:
    """The same prompts answered without a model: `random` draws parameters inside the bounds, `incumbent` proposes the
    best of the history again, which tells how much of that best was luck."""
    vectors = random_vectors(judge.questions.space, seeds.child("random"), range(len(asked)), None, None)
    best = np.stack([max(question.shown, key=lambda trial: trial.value).vector for question in asked])
    return {
        "random": measure(judge.of_vectors(asked, vectors, "evaluation"), rewards, scale),
        "incumbent": measure(judge.of_vectors(asked, best, "evaluation"), rewards, scale),
    }


def summarize(measured: State) -> dict[str, dict[str, Any]]:
    """By measure: `mean`, the bounds `low` and `high` of its 95 % interval, and `n`, the replies it is over."""
    table: dict[str, dict[str, Any]] = {}
    for name in MEASURES:
        kept = np.asarray(measured[name], dtype=np.float64)
        kept = kept[np.isfinite(kept)]
        if not len(kept):
            table[name] = {"mean": None, "low": None, "high": None, "n": 0}
            continue
        low, high = _wilson_interval(kept) if name in RATES else _t_interval(kept)
        table[name] = {"mean": float(kept.mean()), "low": low, "high": high, "n": len(kept)}
    return table


def difference(after: State, before: State) -> dict[str, dict[str, Any]]:
    """`after` less `before`, prompt by prompt, with t intervals; over prompts where both have the measure."""
    table: dict[str, dict[str, Any]] = {}
    for name in MEASURES:
        gained = np.asarray(after[name], dtype=np.float64) - np.asarray(before[name], dtype=np.float64)
        kept = gained[np.isfinite(gained)]
        if len(kept):
            low, high = _t_interval(kept)
            table[name] = {"mean": float(kept.mean()), "low": low, "high": high, "n": len(kept)}
        else:
            table[name] = {"mean": None, "low": None, "high": None, "n": 0}
    return table


def read_results(run: Path) -> dict[str, Any] | None:
    """What `evaluation.json` of a run folder holds; None where there is none.

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
