"""Channels and actions that agents with different observations and actions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Observation
from llmrl.core.spaces import Channel, ContinuousActions
from llmrl.envs.env_errors import READING_ERROR_TYPES, build_observation_error
from llmrl.envs.gym.channel_spaces import Encoder, convert_actions, find_continuous_actions, observation_channels

if TYPE_CHECKING:
    from gymnasium import Space

    from llmrl.envs.pettingzoo.games import Actions, Game

MASK = "action_mask"
"""Key of an agent's observation: the mask of its legal actions."""
TEXT_KEY = "text"
"""Key of an agent's info: the world's own text, which is used unchanged."""


class AgentView:
    """Observation and action channels of one agent.

    Args:
        name: the world's name in messages.
        world: the environment.
        agent: the agent.

    Attributes:
        space: observation space without the mask.
        action_space: action space.
        n_actions: number of discrete actions; 0 if an action is several numbers.
        numbers: numbers of an action, or None.
        channels: name -> (channel, encoder), as if the agent were the only one.

    Raises:
        ConfigError: an unsupported action space.
    """

    def __init__(self, name: str, world: Any, agent: str) -> None:
        from gymnasium import spaces

        self.space: Space[Any] = world.observation_space(agent)
        self._has_mask = isinstance(self.space, spaces.Dict) and MASK in self.space.spaces
        self._is_nested = False
        if isinstance(self.space, spaces.Dict) and self._has_mask:
            members = {key: member for key, member in self.space.spaces.items() if key != MASK}
            # In PettingZoo's classic games, the only other member is called `observation`.
            self._is_nested = list(members) == ["observation"]
            self.space = members["observation"] if self._is_nested else spaces.Dict(members)
        self.action_space = world.action_space(agent)
        self.numbers = find_continuous_actions(self.action_space, f"{name} ({agent})")
        self.n_actions = int(self.action_space.n) if self.numbers is None else 0
        self.channels: dict[str, tuple[Channel, Encoder]] = observation_channels(self.space)

    def strip_mask(self, observation: Any) -> Any:
        """Return an observation without the mask."""
        if not self._has_mask:
            return observation
        if self._is_nested:
            return observation["observation"]
        return {key: x for key, x in observation.items() if key != MASK}

    def mask(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the world's action mask, from the observation or the info; None if it reports none."""
        return observation[MASK] if self._has_mask else info.get(MASK)


class SharedChannels:
    """Channels and actions of all agents of a world.

    A channel is as large as the largest of any agent; the rest is zeros. Action sets are as large as the largest.

    Args:
        name: the world's name in messages.
        world: the environment; only its spaces are read.
        agents: names of the agents.

    Attributes:
        views: view of each agent.
        channels: observation channels.
        n_actions: number of discrete actions; 0 if an action is several numbers.
        numbers: numbers of an action, or None.

    Raises:
        ConfigError: agents that choose and agents that set numbers in one world, or an unsupported action space.
    """

    def __init__(self, name: str, world: Any, agents: Sequence[str]) -> None:
        self._name, self.agents = name, tuple(agents)
        self.views = {agent: AgentView(name, world, agent) for agent in agents}
        self.channels = {
            channel: _merge_channels([view.channels.get(channel, (None, None))[0] for view in self.views.values()])
            for channel in dict.fromkeys(channel for view in self.views.values() for channel in view.channels)
        }
        kinds = {view.numbers is None: agent for agent, view in self.views.items()}
        if len(kinds) > 1:
            action_spaces = ", ".join(f"{agent} {self.views[agent].action_space}" for agent in kinds.values())
            raise ConfigError(
                f"agents of {name} have different kinds of actions ({action_spaces}); all must choose one of several "
                "actions, or all set numbers"
            )
        self.n_actions = max(view.n_actions for view in self.views.values())
        self.numbers = _merge_numbers([view.numbers for view in self.views.values() if view.numbers is not None])
        if self.n_actions:
            self.channels[MASK] = Channel((self.n_actions,), "bool", 0, 1)

    def actions(self, action: np.ndarray, games: Sequence[Game], active: np.ndarray, clip: bool) -> list[Actions]:
        """Return the actions of all agents of each game in the form that the world takes.

        Args:
            action: [n_envs, n_agents] choices, or [n_envs, n_agents, a] numbers.
            games: the games.
            active: games that are played; actions of others are ignored, [n_envs] bool.
            clip: whether real numbers are clipped to their bounds.

        Raises:
            ValueError: an agent that decides chooses an action that it does not have.
        """
        columns = {}
        for j, (agent, view) in enumerate(self.views.items()):
            agent_action = action[:, j : j + 1]
            if view.numbers is not None:
                columns[agent] = convert_actions(view.action_space, agent_action[..., : view.numbers.dim], clip)
                continue
            is_invalid = active & ((agent_action[:, 0] < 0) | (agent_action[:, 0] >= view.n_actions))
            for i in np.flatnonzero(is_invalid).tolist():
                if agent in games[i].acting_agents:
                    raise ValueError(
                        f"{agent} of {self._name} has {view.n_actions} actions and cannot take action "
                        f"{int(agent_action[i, 0])}; take one that is legal in action_mask"
                    )
            columns[agent] = [int(x) for x in convert_actions(view.action_space, agent_action)]
        return [{agent: column[i] for agent, column in columns.items()} for i in range(len(games))]

    def observe(self, games: Sequence[Game]) -> Observation:
        """Return the observations of all agents; agents that are not in a game observe zeros.

        Raises:
            EngineError: an observation that is not in its space.
        """
        shape = len(games), len(self.agents)
        observation: Observation = {
            name: np.zeros((*shape, *channel.shape), dtype=channel.dtype)
            for name, channel in self.channels.items()
            if name != MASK
        }
        for j, (agent, view) in enumerate(self.views.items()):
            indices = [i for i, game in enumerate(games) if agent in game.observations]
            if not indices:
                continue
            for name, (channel, encode) in view.channels.items():
                slices = tuple(slice(size) for size in channel.shape)
                encoded = self._encode(encode, view, agent, [games[i] for i in indices])
                observation[name][(indices, j, *slices)] = encoded
        if MASK in self.channels:
            observation[MASK] = self._masks(games)
        return observation

    def _encode(self, encode: Encoder, view: AgentView, agent: str, games: Sequence[Game]) -> np.ndarray:
        observations = [view.strip_mask(game.observations[agent]) for game in games]
        try:
            return np.asarray(encode(observations))[:, 0]
        except READING_ERROR_TYPES as error:
            for observation, game in zip(observations, games, strict=True):
                if not view.space.contains(observation):
                    raise build_observation_error(
                        f"{self._name} ({agent})", view.space, observation, game.steps
                    ) from error
            raise

    def _masks(self, games: Sequence[Game]) -> np.ndarray:
        """Return legal actions, [n_envs, n_agents, n_actions] bool.

        Of an agent that has nothing to decide, only the first action is legal.
        """
        masks = np.zeros((len(games), len(self.agents), self.n_actions), dtype=bool)
        for i, game in enumerate(games):
            for j, (agent, view) in enumerate(self.views.items()):
                if agent in game.acting_agents:
                    masks[i, j, : view.n_actions] = self._legal(agent, view, game)
        masks[..., 0] |= ~masks.any(-1)
        return masks

    def _legal(self, agent: str, view: AgentView, game: Game) -> np.ndarray | bool:
        action_mask = view.mask(game.observations[agent], game.infos.get(agent, {}))
        if action_mask is None:
            return True
        legal = np.asarray(action_mask, dtype=bool)
        if legal.shape != (view.n_actions,):
            raise EngineError(
                f"{self._name} ({agent}): its action_mask has the shape {list(legal.shape)}, but it must have one "
                f"entry for each of {view.n_actions} actions"
            )
        return legal


def _merge_channels(channels: Sequence[Channel | None]) -> Channel:
    """Return a channel that holds each of `channels`, one for each agent; None: the agent has no such channel."""
    present = [channel for channel in channels if channel is not None]
    shape = tuple(max(sizes) for sizes in zip(*(channel.shape for channel in present), strict=True))
    bounds = min(channel.low for channel in present), max(channel.high for channel in present)
    template = present[0]
    if len(present) < len(channels) or any(channel.shape != shape for channel in present):
        bounds = min(bounds[0], 0.0), max(bounds[1], 0.0)  # padding is zero
    parts: tuple[Mapping[str, slice], ...] = ()
    has_parts = any(channel.parts for channel in present)
    if len(shape) == 1 and (has_parts or any(channel is None or channel.shape != shape for channel in channels)):
        parts = tuple({} if channel is None else _parts(channel) for channel in channels)
    return replace(template, shape=shape, low=bounds[0], high=bounds[1], parts=parts)


def _parts(channel: Channel) -> Mapping[str, slice]:
    return channel.parts[0] if channel.parts else {"observation": slice(0, channel.shape[0])}


def _merge_numbers(numbers: Sequence[ContinuousActions]) -> ContinuousActions | None:
    """Return the numbers of the longest action, with bounds that hold those of every agent."""
    if not numbers:
        return None
    max_action = max(numbers, key=lambda space: space.dim)
    low = tuple(min(space.low[i] for space in numbers if i < space.dim) for i in range(max_action.dim))
    high = tuple(max(space.high[i] for space in numbers if i < space.dim) for i in range(max_action.dim))
    integral = tuple(all(space.whole[i] for space in numbers if i < space.dim) for i in range(max_action.dim))
    return ContinuousActions(max_action.names, low, high, integral)
