"""Evaluation of a proposer on held-out prompts, compared with baselines that use no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.rewards import REWARDS, EvaluatedReply, ReplyEvaluator, ReturnScale, Rewards
from llmrl.finetuning.trials import draw_vectors
from llmrl.statistics.estimators import wilson_bounds
from llmrl.statistics.intervals import mean_interval

RATE_MEASURES = ("valid_rate", "in_bounds_rate", "improvement_rate", "repeat_rate")
"""Measures that are shares of replies; they have Wilson intervals, whose width is not 0 for shares of 0 and 1."""
MEASURES = (*RATE_MEASURES, "return", "score", "rank", "reward")
"""All measures of a reply, see `EvaluatedTask._compute_measures`."""
EVALUATION_FILE = "evaluation.json"
"""File of the results in the run folder."""


@dataclass(frozen=True)
class ProposerEvaluation:
    """Settings of the evaluation of a proposer, before and after training.

    Attributes:
        rollouts: number of episodes per proposal.
        transfer_trials: number of random trials of each transfer task, from which its prompts are made.
    """

    rollouts: PositiveInt = 20
    transfer_trials: PositiveInt = 256


@dataclass
class EvaluatedTask:
    """Task with the prompts on which a proposer is evaluated.

    Attributes:
        name: name of the task.
        prompts: held-out prompts.
        evaluator: evaluator that plays the parameters in replies.
        rewards, scale: rewards of evaluated replies, and the scale of their returns.
    """

    name: str
    prompts: Sequence[ProposalPrompt]
    evaluator: ReplyEvaluator
    rewards: Rewards
    scale: ReturnScale

    def requests(self) -> list[ChatRequest]:
        """Return one request for each prompt. Invalid replies are not repaired; a failed call has the reply ""."""

        def read(reply: ChatReply) -> np.ndarray:
            return self.evaluator.prompt_format.parse_reply(reply.text, reply.is_truncated)

        return [
            ChatRequest(p.messages, purpose="finetune", prompt=p.template_name, prompt_hash=p.template_hash, parse=read)
            for p in self.prompts
        ]

    def measure_replies(self, replies: Sequence[str]) -> State:
        """Return the measures of the reply to each prompt, [n_prompts] each, see `_compute_measures`."""
        return self._compute_measures(self.evaluator(self.prompts, replies, "evaluation"))

    def measure_baselines(self, seeds: Seeds) -> dict[str, State]:
        """Return the measures of two baselines without a model for the same prompts.

        `random` draws parameters uniformly within their bounds. `incumbent` proposes the history's best vector again;
        its new return shows by how much the maximum over the history is biased upward.
        """
        vectors = draw_vectors(self.evaluator.prompt_format.space, seeds.child("random"), range(len(self.prompts)))
        incumbents = np.stack([max(prompt.shown_trials, key=lambda t: t.value).vector for prompt in self.prompts])
        return {
            name: self._compute_measures(self.evaluator.evaluate_vectors(self.prompts, proposals, "evaluation"))
            for name, proposals in (("random", vectors), ("incumbent", incumbents))
        }

    def _compute_measures(self, evaluated_replies: Sequence[EvaluatedReply]) -> State:
        """Return the measures of each reply, [n] each.

        valid_rate: 1 if the reply could be parsed. in_bounds_rate: 1 if its parameters are also within their bounds.
        improvement_rate: 1 if the return exceeds the highest value of the history. repeat_rate: 1 if the history
        already contains the parameters.
        return: mean over the episodes, NaN if nothing was played. score: return scaled to [0, 1], 0 if nothing was
        played. rank: share of the history with a lower value, ties counting half. reward: weighted sum of the rewards.
        """
        values = np.array([np.nan if reply.value is None else reply.value for reply in evaluated_replies])
        measures: State = {
            "valid_rate": [reply.vector is not None for reply in evaluated_replies],
            "in_bounds_rate": [reply.is_in_bounds for reply in evaluated_replies],
            # Comparisons with NaN are false.
            "improvement_rate": values > np.array([reply.history_values.max() for reply in evaluated_replies]),
            "repeat_rate": [reply.is_repeated for reply in evaluated_replies],
            "return": values,
            "score": [REWARDS["scaled_return"](reply, self.scale) for reply in evaluated_replies],
            "rank": [REWARDS["rank"](reply, self.scale) for reply in evaluated_replies],
            "reward": [self.rewards(reply, self.scale) for reply in evaluated_replies],
        }
        return {name: np.array(values, dtype=np.float64) for name, values in measures.items()}


def summarize_measures(measures: State) -> dict[str, dict[str, Any]]:
    """Return statistics of each measure.

    These are the `mean`, the bounds `low` and `high` of its 95 % interval, and the number `n` of replies with this
    measure.
    """
    return {name: _summarize(measures[name], is_rate=name in RATE_MEASURES) for name in MEASURES}


def summarize_differences(after: State, before: State) -> dict[str, dict[str, Any]]:
    """Return statistics of the differences `after` - `before` over the prompts for which both are finite."""
    return {name: _summarize(np.asarray(after[name]) - np.asarray(before[name]), is_rate=False) for name in MEASURES}


def _summarize(values: np.ndarray, is_rate: bool) -> dict[str, Any]:
    """Return the statistics of the finite `values` [n], with a Wilson interval for rates and a t interval otherwise."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return {"mean": None, "low": None, "high": None, "n": 0}
    if is_rate:
        low, high = wilson_bounds(finite.mean(), len(finite))
    else:
        interval = mean_interval(finite)
        low, high = interval.low, interval.high
    bounds = {"low": float(low), "high": float(high)} if np.isfinite(low) else {"low": None, "high": None}
    return {"mean": float(finite.mean()), **bounds, "n": len(finite)}
