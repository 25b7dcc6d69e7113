"""Interface of learners that train a local chat model from its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.llms.local.trajectories import Trajectory, TrajectoryBuffer

if TYPE_CHECKING:
    import torch


Sharing = Literal["shared", "per_player", "per_member"]
"""Which players of a society have an adapter of their own: none, each of them, or each member of `agent=mixed`."""


class ChatLearner(Protocol):
    """Learner of the weights, or of one adapter, of a local chat model."""

    def update(self, trajectories: Sequence[Trajectory], generator: torch.Generator) -> dict[str, float]:
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


class ChatLearners(Protocol):
    """Learners of one local chat model: one for each adapter.

    Attributes:
        sharing: which players share an adapter.
        group_size, n_continuations, gamma: see `llmrl.core.agent_interfaces.ComparesEpisodes`.
    """

    sharing: Sharing
    group_size: int
    n_continuations: int
    gamma: float

    def recorder(self, n_envs: int, n_agents: int) -> TrajectoryBuffer:
        """Return an empty recorder of trajectories for `ChatLearner.update`."""
        ...

    def learner(self, adapter: str, seeds: Seeds | None = None) -> ChatLearner:
        """Return the learner of an adapter, always the same one.

        Args:
            adapter: name of the adapter.
            seeds: seed tree of the replies with this adapter; None: that of the model.

        Raises:
            ConfigError: all weights are trained, and there is another learner.
        """
        ...

    def seeds(self, adapter: str) -> Seeds:
        """Return the seed tree of the replies with an adapter."""
        ...

    def using(self, adapters: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which sequence i of a batch uses `adapters[i]`."""
        ...


@runtime_checkable
class LearnerFactory(Protocol):
    """Settings of learners, an option of `llm/learn`."""

    def learners(self, chat: Any, seeds: Seeds) -> ChatLearners:
        """Return learners of the weights of `chat`, a `LocalChat`."""
        ...
