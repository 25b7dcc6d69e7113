"""Common channels and actions for the agents of a world (a PettingZoo environment), whose spaces may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Observation
from llmrl.core.spaces import Channel, ContinuousActions
from llmrl.envs.env_errors import ENCODING_ERROR_TYPES, build_observation_error
from llmrl.envs.gym.channel_spaces import Encoder, build_channels, convert_actions, find_continuous_actions

if TYPE_CHECKING:
    from gymnasium import Space

    from llmrl.envs.pettingzoo.games import Actions, Game

MASK_KEY = "action_mask"
"""Key of an agent's observation or info: the mask of its legal actions."""
TEXT_KEY = "text"
"""Key of an agent's info: the world's text observation, which is used unchanged."""


class AgentInterface:
    """The observation channels and actions of one agent.

    Args:
        world_name: name of the world, for messages.
        world: the world.
        agent: name of the agent.

    Attributes:
        observation_space: observation space without the mask.
        action_space: action space.
        n_actions: number of discrete actions; 0 if an action consists of numbers.
        continuous_actions: the numbers in an action; None for discrete actions.
        channels: name -> (channel, encoder), before they are merged with those of other agents.

    Raises:
        ConfigError: the action space is not supported.
    """

    def __init__(self, world_name: str, world: Any, agent: str) -> None:
        from gymnasium import spaces

        self.observation_space: Space[Any] = world.observation_space(agent)
        self._has_mask = isinstance(self.observation_space, spaces.Dict) and MASK_KEY in self.observation_space.spaces
        self._has_nested_member = False
        if isinstance(self.observation_space, spaces.Dict) and self._has_mask:
            subspaces = {key: space for key, space in self.observation_space.spaces.items() if key != MASK_KEY}
            # In PettingZoo's classic environments, the only other member is called `observation`.
            self._has_nested_member = list(subspaces) == ["observation"]
            self.observation_space = subspaces["observation"] if self._has_nested_member else spaces.Dict(subspaces)
        self.action_space = world.action_space(agent)
        self.continuous_actions = find_continuous_actions(self.action_space, f"{world_name} ({agent})")
        self.n_actions = int(self.action_space.n) if self.continuous_actions is None else 0
        self.channels: dict[str, tuple[Channel, Encoder]] = build_channels(self.observation_space)

    def strip_mask(self, observation: Any) -> Any:
        """Return an observation without the mask."""
        if not self._has_mask:
            return observation
        if self._has_nested_member:
            return observation["observation"]
        return {key: x for key, x in observation.items() if key != MASK_KEY}

    def find_mask(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the action mask in the observation or the info; None if there is none."""
        return observation[MASK_KEY] if self._has_mask else info.get(MASK_KEY)


class SharedChannels:
    """Channels and actions of all agents of a world.

    A channel is as large as that of the agent with the largest one; smaller observations are padded with zeros. The
    number of actions is that of the agent with most actions.

    Args:
        world_name: name of the world, for messages.
        world: the world; only its spaces are read.
        agents: names of the agents.

    Attributes:
        interfaces: name of each agent -> its interface.
        channels: observation channels.
        n_actions: number of discrete actions; 0 if an action consists of numbers.
        continuous_actions: the numbers in an action; None for discrete actions.

    Raises:
        ConfigError: some agents have discrete and some continuous actions, or an action space is not supported.
    """

    def __init__(self, world_name: str, world: Any, agents: Sequence[str]) -> None:
        self._world_name, self.agents = world_name, tuple(agents)
        self.interfaces = {agent: AgentInterface(world_name, world, agent) for agent in agents}
        interfaces = self.interfaces.values()
        self.channels = {
            channel: _merge_channels([interface.channels.get(channel, (None, None))[0] for interface in interfaces])
            for channel in dict.fromkeys(channel for interface in interfaces for channel in interface.channels)
        }
        agent_by_action_type = {
            interface.continuous_actions is None: agent for agent, interface in self.interfaces.items()
        }
        if len(agent_by_action_type) > 1:
            examples = ", ".join(
                f"{agent} {self.interfaces[agent].action_space}" for agent in agent_by_action_type.values()
            )
            raise ConfigError(
                f"agents of {world_name} have different kinds of actions ({examples}); all must choose one of several "
                "actions, or all set numbers"
            )
        self.n_actions = max(interface.n_actions for interface in interfaces)
        self.continuous_actions = _merge_continuous_actions(
            [interface.continuous_actions for interface in interfaces if interface.continuous_actions is not None]
        )
        if self.n_actions:
            self.channels[MASK_KEY] = Channel((self.n_actions,), "bool", 0, 1)

    def build_actions(self, action: np.ndarray, games: Sequence[Game], active: np.ndarray, clip: bool) -> list[Actions]:
        """Return, for each game, the actions of all agents as elements of their action spaces.

        Args:
            action: [n_envs, n_agents] choices, or [n_envs, n_agents, a] numbers.
            games: the games.
            active: whether each game is advanced, [n_envs] bool; actions in other games are not checked.
            clip: whether real numbers are clipped to their bounds.

        Raises:
            ValueError: an agent whose action is needed chooses an action that it does not have.
        """
        actions_by_agent = {}
        for j, (agent, interface) in enumerate(self.interfaces.items()):
            agent_action = action[:, j : j + 1]
            if interface.continuous_actions is not None:
                numbers = agent_action[..., : interface.continuous_actions.dim]
                actions_by_agent[agent] = convert_actions(interface.action_space, numbers, clip)
                continue
            is_invalid = active & ((agent_action[:, 0] < 0) | (agent_action[:, 0] >= interface.n_actions))
            for i in np.flatnonzero(is_invalid).tolist():
                if agent in games[i].acting_agents:
                    raise ValueError(
                        f"{agent} of {self._world_name} has {interface.n_actions} actions and cannot take action "
                        f"{int(agent_action[i, 0])}; take one that is legal in action_mask"
                    )
            actions_by_agent[agent] = [int(x) for x in convert_actions(interface.action_space, agent_action)]
        return [{agent: actions[i] for agent, actions in actions_by_agent.items()} for i in range(len(games))]

    def observe(self, games: Sequence[Game]) -> Observation:
        """Return the observations of all agents; agents that have left a game observe zeros.

        Raises:
            EngineError: an observation is not in its space.
        """
        observation: Observation = {
            name: np.zeros((len(games), len(self.agents), *channel.shape), dtype=channel.dtype)
            for name, channel in self.channels.items()
            if name != MASK_KEY
        }
        for j, (agent, interface) in enumerate(self.interfaces.items()):
            indices = [i for i, game in enumerate(games) if agent in game.observations]
            if not indices:
                continue
            for name, (channel, encode) in interface.channels.items():
                encoded = self._encode(encode, interface, agent, [games[i] for i in indices])
                observation[name][(indices, j, *(slice(size) for size in channel.shape))] = encoded
        if MASK_KEY in self.channels:
            observation[MASK_KEY] = self._build_masks(games)
        return observation

    def _encode(self, encode: Encoder, interface: AgentInterface, agent: str, games: Sequence[Game]) -> np.ndarray:
        """Return the channel of `encode` that an agent observes in each of `games`."""
        observations = [interface.strip_mask(game.observations[agent]) for game in games]
        try:
            return np.asarray(encode(observations))[:, 0]
        except ENCODING_ERROR_TYPES as error:
            for observation, game in zip(observations, games, strict=True):
                if not interface.observation_space.contains(observation):
                    name, space = f"{self._world_name} ({agent})", interface.observation_space
                    raise build_observation_error(name, space, observation, game.n_steps) from error
            raise

    def _build_masks(self, games: Sequence[Game]) -> np.ndarray:
        """Return legal actions, [n_envs, n_agents, n_actions] bool; only action 0 for agents without a decision."""
        masks = np.zeros((len(games), len(self.agents), self.n_actions), dtype=bool)
        for i, game in enumerate(games):
            for j, (agent, interface) in enumerate(self.interfaces.items()):
                if agent in game.acting_agents:
                    masks[i, j, : interface.n_actions] = self._find_legal_actions(agent, interface, game)
        masks[..., 0] |= ~masks.any(-1)
        return masks

    def _find_legal_actions(self, agent: str, interface: AgentInterface, game: Game) -> np.ndarray | bool:
        """Return whether each action of an agent is legal, [n_actions] bool; True if all are."""
        action_mask = interface.find_mask(game.observations[agent], game.infos.get(agent, {}))
        if action_mask is None:
            return True
        is_legal = np.asarray(action_mask, dtype=bool)
        if is_legal.shape != (interface.n_actions,):
            raise EngineError(
                f"{self._world_name} ({agent}): its action_mask has the shape {list(is_legal.shape)}, but it must have "
                f"one entry for each of {interface.n_actions} actions"
            )
        return is_legal


def _merge_channels(channels: Sequence[Channel | None]) -> Channel:
    """Return a channel that can contain the channels of all agents; None: an agent has no such channel."""
    existing = [channel for channel in channels if channel is not None]
    shape = tuple(max(sizes) for sizes in zip(*(channel.shape for channel in existing), strict=True))
    bounds = min(channel.low for channel in existing), max(channel.high for channel in existing)
    first_channel = existing[0]
    if len(existing) < len(channels) or any(channel.shape != shape for channel in existing):
        bounds = min(bounds[0], 0.0), max(bounds[1], 0.0)  # padding is zero
    parts: tuple[Mapping[str, slice], ...] = ()
    has_parts = any(channel.parts for channel in existing)
    if len(shape) == 1 and (has_parts or any(channel is None or channel.shape != shape for channel in channels)):
        parts = tuple(
            {} if channel is None else channel.parts[0] if channel.parts else {"observation": slice(0, *channel.shape)}
            for channel in channels
        )
    return replace(first_channel, shape=shape, low=bounds[0], high=bounds[1], parts=parts)


def _merge_continuous_actions(action_spaces: Sequence[ContinuousActions]) -> ContinuousActions | None:
    """Return the numbers in the longest action, with bounds that include those of all agents; None without numbers."""
    if not action_spaces:
        return None
    longest_action = max(action_spaces, key=lambda space: space.dim)
    low = tuple(min(space.low[i] for space in action_spaces if i < space.dim) for i in range(longest_action.dim))
    high = tuple(max(space.high[i] for space in action_spaces if i < space.dim) for i in range(longest_action.dim))
    is_integer = tuple(all(x.is_integer[i] for x in action_spaces if i < x.dim) for i in range(longest_action.dim))
    return ContinuousActions(longest_action.names, low, high, is_integer)
