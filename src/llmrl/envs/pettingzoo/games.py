"""One game of a world: agents who act together or take turns, in one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from llmrl.core.errors import EngineError
from llmrl.envs.pettingzoo.declarations import governed

Actions = Mapping[str, Any]
"""Agent -> an element of its action space."""


class Game(ABC):
    """One game of a world. A subclass says how it begins, and what a step is.

    Args:
        name: the world's name in messages.
        world: PettingZoo's environment.
        horizon: steps after which an episode is truncated; None: the world alone decides.

    Attributes:
        world: the environment.
        agents: all agents, in the world's order.
        live: agents that are in the game.
        deciding: agents whose action the next step takes.
        seen: observation of each agent that is in the game; when it is over, of those that were in it to the end.
        infos: info of each of these.
        told: agents with the info that is about the last step.
        rewards: reward of the last step by agent; nothing of agents that were not in the game.
        present: agents that were in the game when the last step began.
        steps: steps of the episode.
        terminated, truncated: how the game ended. It is truncated if all who were left were truncated together, or
            after `horizon` steps.
    """

    def __init__(self, name: str, world: Any, horizon: int | None) -> None:
        self.name, self.world, self.horizon = name, world, horizon
        self.agents: tuple[str, ...] = tuple(world.possible_agents)
        self.live: tuple[str, ...] = ()
        self.deciding: frozenset[str] = frozenset()
        self.seen: dict[str, Any] = {}
        self.infos: dict[str, Mapping[str, Any]] = {}
        self.told: dict[str, Mapping[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self.present: tuple[str, ...] = ()
        self.steps, self.terminated, self.truncated = 0, False, False
        self._values: np.ndarray | None = None

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self.steps, self.terminated, self.truncated = 0, False, False
        self.rewards, self.told, self.present = {}, {}, ()
        self._reset(seed)
        if not self.live:
            raise EngineError(f"{self.name} has no agents after reset(seed={seed})")

    def step(self, actions: Actions) -> None:
        """Play a step; `actions` has at least those of the agents that are `deciding`."""
        self.present = self.live
        self._step(actions)
        self.steps += 1
        self.terminated = not self.live and not self.truncated
        if self.horizon is not None and self.steps >= self.horizon and not self.terminated:
            self.truncated = True

    def impose(self, values: np.ndarray) -> None:
        """Set the mechanism of a world that has one of its own, to `values` [d]; nothing if they hold already."""
        if self._values is None or not np.array_equal(values, self._values):
            self._values = values.copy()
            governed(self.world).set_mechanism(self._values.copy())

    @abstractmethod
    def _reset(self, seed: int) -> None: ...

    @abstractmethod
    def _step(self, actions: Actions) -> None: ...


class SimultaneousGame(Game):
    """A game of a `ParallelEnv`: a step takes an action of every agent that is in the game."""

    def _reset(self, seed: int) -> None:
        seen, infos = self.world.reset(seed=seed)
        self._look(tuple(self.world.agents), seen, infos)
        self._check_shown()

    def _step(self, actions: Actions) -> None:
        before = self.live
        seen, rewards, terminated, truncated, infos = self.world.step({agent: actions[agent] for agent in before})
        self.rewards = {agent: float(rewards.get(agent, 0.0)) for agent in before}
        self.told = {agent: infos[agent] for agent in before if agent in infos}
        gone = {agent for agent in {*terminated, *truncated} if terminated.get(agent) or truncated.get(agent)}
        left = tuple(agent for agent in self.world.agents if agent not in gone)
        self.truncated = not left and all(
            truncated.get(agent, False) and not terminated.get(agent, False) for agent in before
        )
        self._look(left or before, seen, infos)
        if left:
            self._check_shown()
        else:
            self.live, self.deciding = (), frozenset()

    def _check_shown(self) -> None:
        if unseen := [agent for agent in self.live if agent not in self.seen]:
            raise EngineError(
                f"{self.name} showed nothing to {', '.join(unseen)} in step {self.steps} of an episode, although they "
                "are among its agents"
            )

    def _look(self, agents: tuple[str, ...], seen: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self.seen = {agent: seen[agent] for agent in agents if agent in seen}
        self.infos = {agent: dict(infos.get(agent, {})) for agent in self.seen}
        self.live, self.deciding = agents, frozenset(agents)


class TurnGame(Game):
    """A game of an `AECEnv`: a step takes the action of the agent whose turn it is.

    Agents that have died are taken out of the game at once, and not in turns of their own."""

    def _reset(self, seed: int) -> None:
        self.world.reset(seed=seed)
        self._take_out()
        self._look()

    def _step(self, actions: Actions) -> None:
        before, agent = self.live, self.world.agent_selection
        self.world.step(actions[agent])
        self.rewards = {each: float(self.world.rewards.get(each, 0.0)) for each in before}
        self.told = {agent: self.world.infos[agent]} if agent in self.world.infos else {}
        left = [each for each in self.world.agents if not self._ended(each)]
        self.truncated = not left and all(
            self.world.truncations.get(each, False) and not self.world.terminations.get(each, False) for each in before
        )
        if left:
            self._take_out()
        self._look()
        if not left:
            self._take_out()
            self.live, self.deciding = (), frozenset()

    def _ended(self, agent: str) -> bool:
        return bool(self.world.terminations.get(agent, False) or self.world.truncations.get(agent, False))

    def _take_out(self) -> None:
        """Let agents that have ended leave, as long as it is their turn."""
        while self.world.agents and self._ended(self.world.agent_selection):
            self.world.step(None)

    def _look(self) -> None:
        live = tuple(agent for agent in self.world.agents if not self._ended(agent))
        # When it is over, those that were in the game see how it ended.
        shown = live or tuple(self.world.agents)
        self.seen = {agent: self.world.observe(agent) for agent in shown}
        self.infos = {agent: dict(self.world.infos.get(agent, {})) for agent in shown}
        self.live = live
        self.deciding = frozenset({self.world.agent_selection} if live else ())


def game_of(name: str, world: Any, horizon: int | None) -> Game:
    """Return a game of a world, by which of PettingZoo's two interfaces it has."""
    kind = TurnGame if hasattr(world, "agent_iter") else SimultaneousGame
    return kind(name, world, horizon)
