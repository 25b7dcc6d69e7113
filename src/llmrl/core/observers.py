"""Callbacks for the steps of a rollout, for observers and for policies that receive the results of their actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.core.records import Observation, PolicyOutput, Step
from llmrl.core.rollouts import Episode, Rollout


@dataclass(frozen=True)
class Transition:
    """One step of all games.

    Attributes:
        observation: all channels of the environment before the step. An engine may overwrite these arrays two steps
            later, so copy what is needed longer.
        output: output of the policy.
        step: result of the step.
        ended: whether the game waits for its reset after the step, [n_envs] bool. The other fields have no meaning for
            games that waited before the step, too.
    """

    observation: Observation
    output: PolicyOutput
    step: Step
    ended: np.ndarray

    def select(self, games: slice, agents: slice | list[int]) -> Transition:
        """Return the transition of some games and agents; of the policy's output, only the actions are included."""
        step, jacobian = self.step, self.step.reward_jacobian
        step_part = Step(
            observation={name: array[games][:, agents] for name, array in step.observation.items()},
            reward=step.reward[games][:, agents],
            base_reward=step.base_reward[games][:, agents],
            terminated=step.terminated[games],
            truncated=step.truncated[games],
            info={name: array[games] for name, array in step.info.items()},
            reward_jacobian=None if jacobian is None else jacobian[games][:, agents],
        )
        observation_part = {name: array[games][:, agents] for name, array in self.observation.items()}
        return Transition(
            observation_part, PolicyOutput(self.output.action[games][:, agents]), step_part, self.ended[games]
        )


@runtime_checkable
class StepObserver(Protocol):
    """Callbacks for resets and steps: an `Observer`, or a policy that receives the results of its actions.

    A policy is called before observers.
    """

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Handle new episodes in the games where `games` [n_envs] is true; `observation` is that of all games."""
        ...

    def on_step(self, transition: Transition) -> None:
        """Handle a step of all games."""
        ...


class Observer:
    """Base class of passive observers of a rollout, which are passed to `Collector(observers=[...])`.

    Override the methods you need; by default they do nothing. Methods must not modify the arrays. An exception ends the
    run.

    Attributes:
        channels: observation channels that the observer reads, which are requested (`ChannelsOnRequest`).
    """

    channels: tuple[str, ...] = ()

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Handle new episodes in the games where `games` [n_envs] is true; `observation` is that of all games."""

    def on_step(self, transition: Transition) -> None:
        """Handle a step of all games."""

    def on_progress(self, steps: int) -> None:
        """Handle `steps` further steps of every game since the last call, for displays of progress.

        It is called at most about 20 times a second, and at the end of a rollout.
        """

    def on_episode_end(self, episode: Episode) -> None:
        """Handle a finished episode. It is called after the rollout, in the order of last steps, then of games."""

    def on_rollout(self, rollout: Rollout) -> None:
        """Handle a collected rollout. The next one overwrites its tensors."""

    def close(self) -> None:
        """Release resources at the end of a run. It is not called if the run is interrupted."""
