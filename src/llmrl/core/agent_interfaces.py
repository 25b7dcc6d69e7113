"""Base classes of agents that only play and of policies without values, and interfaces of agents with special needs.

Special needs in training are rollouts of a minimum length, and episodes in groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from llmrl.core.protocols import AgentLoop
from llmrl.core.state_fields import StateFields

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


class PolicyWithoutValues:
    """Base class of policies without a value function."""

    channels: tuple[str, ...]

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros [n_envs, n_agents]."""
        import torch

        inputs = observation[self.channels[0]]
        return torch.zeros(inputs.shape[:2], device=inputs.device)


class NonLearningAgent(StateFields):
    """Base class of agents that never learn.

    A subclass with state that must survive a resume overrides `state_dict` and `load_state_dict`.
    """

    loop: ClassVar[AgentLoop] = "play"
    learns = False

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """Do nothing, because the agent has learned nothing."""


@runtime_checkable
class RequiresMinRolloutSteps(Protocol):
    """An agent whose updates need rollouts of a minimum length."""

    def min_rollout_steps(self, games: int) -> int:
        """Return the smallest number of steps of each of `games` games that an update can learn from."""
        ...


@runtime_checkable
class RecordsEpisodes(Protocol):
    """An agent that records the episodes that it learns from."""

    def pause_recording(self) -> AbstractContextManager[None]:
        """Return a context in which episodes are not recorded, for evaluations."""
        ...


@contextmanager
def pause_recording(agents: Iterable[object]) -> Iterator[None]:
    """Return a context in which none of `agents` records episodes."""
    with ExitStack() as stack:
        for agent in agents:
            if isinstance(agent, RecordsEpisodes):
                stack.enter_context(agent.pause_recording())
        yield


@runtime_checkable
class LearnsFromEpisodeGroups(RecordsEpisodes, Protocol):
    """An agent that learns from groups of complete episodes with the same initial state.

    Attributes:
        group_size: number of successive games with the same initial state; None: the agent learns from rollouts of any
            games.
        n_continuations: number of continuations that estimate the value of each state of an episode; 0: no values are
            needed.
        gamma: discount per step of these values.
    """

    group_size: int | None
    n_continuations: int
    gamma: float

    def truncate_episodes(self) -> None:
        """Truncate the recorded episodes that are still in progress."""
        ...

    def set_state_values(self, values: np.ndarray) -> None:
        """Set the values of the states of the recorded episodes, [n_steps, n_envs, n_agents]."""
        ...


@runtime_checkable
class TrainsAdapter(Protocol):
    """An agent or principal that may train a low-rank adapter of a language model."""

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter into `folder` in peft's format; do nothing if none is trained."""
        ...
