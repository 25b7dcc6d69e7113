"""Training of a principal's chat model from the outcomes of its proposals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import TokenSample
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.llms.local.learning import ChatLearners, TrajectoryBuffer


class ProposalLearning(StateFields):
    """Training of a chat model on the proposals of each step, which form groups of `llm.learn.group_size`.

    The reward of a proposal is its value, standardized by the mean and standard deviation of all values so far, so the
    unit of `llm.learn.invalid_reward` is a standard deviation. A proposal without a value (no valid reply, or no finite
    return) has the reward of the lowest value so far.

    Args:
        learners: learners of the chat model.
        seeds: seed tree of the order of minibatches.

    Raises:
        ConfigError: the learner needs state values from continuations.
    """

    _state_fields = ("_learner", "_recorder", "_values", "_updates")

    def __init__(self, learners: ChatLearners, seeds: Seeds) -> None:
        if learners.n_continuations:
            raise ConfigError(
                "llm.learn.advantage=replay continues games from their saved states, and proposals have none; use "
                "episode, turn or anchor"
            )
        self._learners, self._learner, self._seeds = learners, learners.learner(""), seeds
        self._recorder = TrajectoryBuffer()  # replies of the last step; proposal i is game i of agent 0
        self._values: list[float] = []  # values of all proposals so far, without NaN
        self._updates = 0  # number of updates so far

    def check_group_size(self, n_proposals: int) -> None:
        """Raise ConfigError if the proposals of a step cannot be divided into groups."""
        if n_proposals % self._learners.group_size:
            raise ConfigError(
                f"a step has {n_proposals} separate proposals, which must be a multiple of llm.learn.group_size="
                f"{self._learners.group_size}; change it, or design.candidates or search.candidates"
            )

    def record_replies(self, replies: Sequence[Sequence[tuple[TokenSample, bool]]]) -> None:
        """Record the sampled replies of each proposal of a step: pairs of the sample and whether it was valid."""
        self._recorder = TrajectoryBuffer()
        for i, samples in enumerate(replies):
            for turn, (sample, is_valid) in enumerate(samples):
                self._recorder.add_reply(i, 0, sample, observation=f"turn {turn}", is_valid=is_valid, step=turn)

    def update(self, values: Sequence[float]) -> dict[str, float]:
        """Train on the recorded replies; return metrics (`learn/...`).

        Args:
            values: value of each proposal of the step, higher is better; NaN for a proposal without a value.
        """
        import torch

        self._values += [value for value in values if not np.isnan(value)]
        standard_deviation = float(np.std(self._values)) if self._values else 0.0
        for i, value in enumerate(values):
            if standard_deviation > 0:
                reward_value = min(self._values) if np.isnan(value) else value
                self._recorder.add_reward(i, 0, (reward_value - float(np.mean(self._values))) / standard_deviation)
            self._recorder.end_episode(i)
        generator = torch.Generator().manual_seed(self._seeds.child("minibatches").integer(self._updates))
        self._updates += 1
        return self._learner.update(self._recorder.pop_complete(), generator)

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter into `folder` in the format of peft; do nothing if no adapter is trained."""
        self._learner.write_adapter(folder)
