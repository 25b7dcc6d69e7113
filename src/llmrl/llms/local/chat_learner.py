"""Interface of learners that train a local chat model from its replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from llmrl.core.records import State, TokenSample
from llmrl.core.seeding import Seeds

if TYPE_CHECKING:
    import numpy as np
    import torch


class ReplyRecorder(Protocol):
    """Recorder of the sampled replies of all players of all games, with their rewards."""

    def begin(self, games: Iterable[int]) -> None:
        """Discard the records of unfinished episodes of `games`, which begin new ones."""
        ...

    def add_reply(
        self, game: int, agent: int, sample: TokenSample, observation: str, is_valid: bool, step: int
    ) -> None:
        """Record a reply of a player.

        Args:
            game, agent: indices of the game and of the player in it.
            sample: sampled tokens.
            observation: text that identifies the observation.
            is_valid: whether the reply could be parsed.
            step: step of the episode in which the reply was given.
        """
        ...

    def add_reward(self, game: int, agent: int, reward: float) -> None:
        """Add a reward to a player's newest reply."""
        ...

    def end(self, game: int) -> None:
        """End the episode of a game, from which can now be learned."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is recorded."""
        ...

    def set_values(self, values: np.ndarray) -> None:
        """Set the values of the states of ended episodes, [n_steps, n_envs, n_agents]."""
        ...

    def take(self) -> Sequence[Any]:
        """Return the trajectories of ended episodes, and remove them."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class ChatLearner(Protocol):
    """Learner of a local chat model.

    Attributes:
        group_size, n_continuations, gamma: see `llmrl.core.learner_protocols.ComparesEpisodes`.
    """

    group_size: int
    n_continuations: int
    gamma: float

    def recorder(self, n_envs: int, n_agents: int) -> ReplyRecorder:
        """Return an empty recorder of trajectories for `update`."""
        ...

    def update(self, trajectories: Sequence[Any], generator: torch.Generator) -> dict[str, float]:
        """Train on trajectories of replies with their rewards; return metrics."""
        ...

    def reset(self) -> None:
        """Restore the initial weights and forget the state of the optimizer."""
        ...

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter in peft's format; do nothing if all weights are trained."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return a description of the learner for the summary of a run."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class LearnerFactory(Protocol):
    """Settings of a learner, an option of `llm/learn`."""

    def learner(self, chat: Any, seeds: Seeds) -> ChatLearner:
        """Return a learner of the weights of `chat`, a `LocalChat`."""
        ...
