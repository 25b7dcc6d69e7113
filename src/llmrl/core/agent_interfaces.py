"""Base classes of agents that never learn and of policies without values, and optional interfaces of agents."""

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

        channel = observation[self.channels[0]]
        return torch.zeros(channel.shape[:2], device=channel.device)


class NonLearningAgent(StateFields):
    """Base class of agents that never learn.

    A subclass with a state that a resumed run needs overrides `state_dict` and `load_state_dict`.
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

    def min_rollout_steps(self, n_games: int) -> int:
        """Return the minimum number of steps per game that an update needs in a rollout of `n_games` games."""
        ...


@runtime_checkable
class RecordsEpisodes(Protocol):
    """An agent that records episodes for its updates."""

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
        group_size: number of consecutive games with the same initial state; None: initial states may differ.
        n_continuations: number of continuations from each state of an episode, for an estimate of its value; 0: no
            values are needed.
        gamma: discount factor per step of these values.
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
        """Write the adapter to `folder` in peft's format; do nothing if there is none."""
        ...
