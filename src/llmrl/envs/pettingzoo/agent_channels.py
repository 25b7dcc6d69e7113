"""What agents of different kinds observe and do, as channels and actions that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Observation
from llmrl.core.spaces import Channel, ContinuousActions
from llmrl.envs.gym.channel_spaces import Encode, continuous_actions, observation_channels, to_actions
from llmrl.envs.gym.faults import MISREAD, outside

if TYPE_CHECKING:
    from gymnasium import Space

    from llmrl.envs.pettingzoo.games import Actions, Game

MASK = "action_mask"


def without_mask(space: Space[Any]) -> tuple[Space[Any], bool]:
    """Return an observation space without the entry `action_mask`, and whether it had one.

    What is left of a Dict is its only entry if that is called `observation`, as in PettingZoo's classic games."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space, False
    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return (rest["observation"] if list(rest) == ["observation"] else spaces.Dict(rest)), True


class AgentView:
    """What one agent observes and does.

    Args:
        name: the world's name in messages.
        world: the environment.
        agent: the agent.

    Attributes:
        space: observation space without the mask.
        action_space: action space.
        n_actions: number of discrete actions; 0 where an action is several numbers.
        numbers: numbers of an action, or None.
        channels: channel -> (channel, how it is made), as if the agent were alone.

    Raises:
        ConfigError: an action space that nobody here can play.
    """

    def __init__(self, name: str, world: Any, agent: str) -> None:
        from gymnasium import spaces

        whole = world.observation_space(agent)
        self.space, self._masked = without_mask(whole)
        self._nested = self._masked and self.space is not whole and not isinstance(self.space, spaces.Dict)
        self.action_space = world.action_space(agent)
        self.numbers = continuous_actions(self.action_space, f"{name} ({agent})")
        self.n_actions = int(self.action_space.n) if self.numbers is None else 0
        self.channels: dict[str, tuple[Channel, Encode]] = observation_channels(self.space)

    def picked(self, seen: Any) -> Any:
        """Return an observation without the mask."""
        if not self._masked:
            return seen
        return seen["observation"] if self._nested else {key: x for key, x in seen.items() if key != MASK}

    def mask(self, seen: Any, info: Mapping[str, Any]) -> Any:
        """Return which actions the world calls legal, in the observation or in the info; None if it does not say."""
        return seen[MASK] if self._masked else info.get(MASK)


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
        n_actions: number of discrete actions; 0 where an action is several numbers.
        numbers: numbers of an action, or None.

    Raises:
        ConfigError: agents that choose and agents that set numbers in one world, or an unsupported action space.
    """

    def __init__(self, name: str, world: Any, agents: Sequence[str]) -> None:
        self._name, self.agents = name, tuple(agents)
        self.views = {agent: AgentView(name, world, agent) for agent in agents}
        self.channels = {
            channel: _widest([view.channels.get(channel, (None, None))[0] for view in self.views.values()])
            for channel in dict.fromkeys(channel for view in self.views.values() for channel in view.channels)
        }
        kinds = {view.numbers is None: agent for agent, view in self.views.items()}
        if len(kinds) > 1:
            shown = ", ".join(f"{agent} {self.views[agent].action_space}" for agent in kinds.values())
            raise ConfigError(
                f"agents of {name} act in different ways ({shown}); all must choose one of several actions, or all set "
                "numbers"
            )
        self.n_actions = max(view.n_actions for view in self.views.values())
        self.numbers = _widest_numbers([view.numbers for view in self.views.values() if view.numbers is not None])
        if self.n_actions:
            self.channels[MASK] = Channel((self.n_actions,), "bool", 0, 1)

    def actions(self, action: np.ndarray, games: Sequence[Game], playing: np.ndarray, clip: bool) -> list[Actions]:
        """Return what agents do in each game, as the world takes it.

        Args:
            action: [n_envs, n_agents] choices, or [n_envs, n_agents, a] numbers.
            games: the games.
            playing: games that are played; actions of others are not looked at, [n_envs] bool.
            clip: whether real numbers are clipped to their bounds.

        Raises:
            ValueError: an agent that decides chooses an action that it does not have.
        """
        columns = {}
        for j, (agent, view) in enumerate(self.views.items()):
            own = action[:, j : j + 1]
            if view.numbers is not None:
                columns[agent] = to_actions(view.action_space, own[..., : view.numbers.dim], clip)
                continue
            wrong = [
                i
                for i in np.flatnonzero(playing & ((own[:, 0] < 0) | (own[:, 0] >= view.n_actions))).tolist()
                if agent in games[i].deciding
            ]
            if wrong:
                raise ValueError(
                    f"{agent} of {self._name} has {view.n_actions} actions and cannot take action "
                    f"{int(own[wrong[0], 0])}; action_mask says what it can"
                )
            columns[agent] = [int(x) for x in to_actions(view.action_space, own)]
        return [{agent: column[i] for agent, column in columns.items()} for i in range(len(games))]

    def observe(self, games: Sequence[Game]) -> Observation:
        """Return what all agents observe; those who are not in a game observe zeros.

        Raises:
            EngineError: an observation that is not in its space.
        """
        shape = len(games), len(self.agents)
        found: Observation = {
            name: np.zeros((*shape, *channel.shape), dtype=channel.dtype)
            for name, channel in self.channels.items()
            if name != MASK
        }
        for j, (agent, view) in enumerate(self.views.items()):
            at = [i for i, game in enumerate(games) if agent in game.seen]
            if not at:
                continue
            for name, (channel, encode) in view.channels.items():
                own = tuple(slice(size) for size in channel.shape)
                for i, value in zip(at, self._encoded(encode, view, agent, [games[i] for i in at]), strict=True):
                    found[name][(i, j, *own)] = value
        if MASK in self.channels:
            found[MASK] = self._masks(games)
        return found

    def _encoded(self, encode: Encode, view: AgentView, agent: str, games: Sequence[Game]) -> np.ndarray:
        seen = [view.picked(game.seen[agent]) for game in games]
        try:
            return np.asarray(encode(seen))[:, 0]
        except MISREAD as fault:
            for one, game in zip(seen, games, strict=True):
                if not view.space.contains(one):
                    raise outside(f"{self._name} ({agent})", view.space, one, game.steps) from fault
            raise

    def _masks(self, games: Sequence[Game]) -> np.ndarray:
        """Return legal actions, [n_envs, n_agents, n_actions]: the first alone of who has nothing to decide."""
        masks = np.zeros((len(games), len(self.agents), self.n_actions), dtype=bool)
        for i, game in enumerate(games):
            for j, (agent, view) in enumerate(self.views.items()):
                if agent in game.deciding:
                    masks[i, j, : view.n_actions] = self._legal(agent, view, game)
        masks[..., 0] |= ~masks.any(-1)
        return masks

    def _legal(self, agent: str, view: AgentView, game: Game) -> np.ndarray | bool:
        told = view.mask(game.seen[agent], game.infos.get(agent, {}))
        if told is None:
            return True
        legal = np.asarray(told, dtype=bool)
        if legal.shape != (view.n_actions,):
            raise EngineError(
                f"{self._name} ({agent}): its action_mask has the shape {list(legal.shape)}, and there are "
                f"{view.n_actions} actions"
            )
        return legal


def _widest(channels: Sequence[Channel | None]) -> Channel:
    """Return a channel that holds each of `channels`, one for each agent; None: the agent has no such channel."""
    own = [channel for channel in channels if channel is not None]
    shape = tuple(max(sizes) for sizes in zip(*(channel.shape for channel in own), strict=True))
    bounds = min(channel.low for channel in own), max(channel.high for channel in own)
    first = own[0]
    if len(own) < len(channels) or any(channel.shape != shape for channel in own):
        bounds = min(bounds[0], 0.0), max(bounds[1], 0.0)  # what is filled up is zeros
    parts: tuple[Mapping[str, slice], ...] = ()
    named = any(channel.parts for channel in own)
    if len(shape) == 1 and (named or any(channel is None or channel.shape != shape for channel in channels)):
        parts = tuple({} if channel is None else _parts(channel) for channel in channels)
    return replace(first, shape=shape, low=bounds[0], high=bounds[1], parts=parts)


def _parts(channel: Channel) -> Mapping[str, slice]:
    return channel.parts[0] if channel.parts else {"observation": slice(0, channel.shape[0])}


def _widest_numbers(numbers: Sequence[ContinuousActions]) -> ContinuousActions | None:
    """Return the numbers of the longest action, with bounds that hold those of every agent."""
    if not numbers:
        return None
    longest = max(numbers, key=lambda each: each.dim)
    low = tuple(min(each.low[i] for each in numbers if i < each.dim) for i in range(longest.dim))
    high = tuple(max(each.high[i] for each in numbers if i < each.dim) for i in range(longest.dim))
    whole = tuple(all(each.whole[i] for each in numbers if i < each.dim) for i in range(longest.dim))
    return ContinuousActions(longest.names, low, high, whole)
