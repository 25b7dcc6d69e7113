"""Interface of learners that train a local chat model from its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.llms.local.trajectories import Trajectory, TrajectoryBuffer

if TYPE_CHECKING:
    import torch


class ChatLearner(Protocol):
    """Learner of a local chat model.

    Attributes:
        group_size, n_continuations, gamma: see `llmrl.core.learner_protocols.ComparesEpisodes`.
    """

    group_size: int
    n_continuations: int
    gamma: float

    def recorder(self, n_envs: int, n_agents: int) -> TrajectoryBuffer:
        """Return an empty recorder of trajectories for `update`."""
        ...

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


@runtime_checkable
class LearnerFactory(Protocol):
    """Settings of a learner, an option of `llm/learn`."""

    def learner(self, chat: Any, seeds: Seeds) -> ChatLearner:
        """Return a learner of the weights of `chat`, a `LocalChat`."""
        ...
