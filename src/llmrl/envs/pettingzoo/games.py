"""A world (a PettingZoo environment) with its episode, for simultaneous moves or turns; readers of its declarations.

A world may declare a mechanism, metrics and a step limit in attributes that PettingZoo does not define.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.spaces import Aggregate, Parameter, ParameterSpace


def _find_mechanism_layer(world: Any) -> Any:
    """Return the world or its unwrapped world, whichever has `set_mechanism`; the world if neither has."""
    return next((layer for layer in (world, world.unwrapped) if callable(getattr(layer, "set_mechanism", None))), world)


def read_mechanism(world_name: str, world: Any) -> ParameterSpace | None:
    """Return the space of the values that a principal can set in a world; None if it declares no mechanism.

    `world.mechanism` is a `ParameterSpace`, or a list with a mapping for each value: `name`, `low`, `high` and
    optionally `unit`, `description`, `decimals`, `choice`, `effect` (`llmrl.core.spaces.Parameter`). The argument of
    `world.set_mechanism(values)` contains the values in this order, float64 [d].

    Args:
        world_name: name of the world, for messages.
        world: the world.

    Raises:
        ConfigError: the declaration has another form, bounds are infinite or not ascending, or `set_mechanism` is
            missing.
    """
    declaration = _read_attribute(world, "mechanism")
    if declaration is None:
        return None
    if not callable(getattr(_find_mechanism_layer(world), "set_mechanism", None)):
        raise ConfigError(f"{world_name} declares a mechanism, but has no method set_mechanism(values); add it")
    if isinstance(declaration, ParameterSpace):
        space = declaration
    elif isinstance(declaration, Sequence) and not isinstance(declaration, str) and declaration:
        space = ParameterSpace("mechanism", tuple(_parse_parameter(world_name, parameter) for parameter in declaration))
    else:
        raise ConfigError(f"{world_name}: mechanism={declaration!r} must be a ParameterSpace or a list of mappings")
    for parameter in space.parameters:
        if not (np.isfinite(parameter.low) and np.isfinite(parameter.high) and parameter.low < parameter.high):
            raise ConfigError(
                f"{world_name}: mechanism: {parameter.name} needs finite bounds low < high, got {parameter}"
            )
    return space


def read_metrics(world_name: str, world: Any) -> dict[str, Aggregate]:
    """Return `world.episode_metrics`: key of an info whose number is a metric of an episode -> its aggregation.

    Raises:
        ConfigError: an aggregation does not exist.
    """
    declaration = _read_attribute(world, "episode_metrics")
    if declaration is None:
        return {}
    aggregates = get_args(Aggregate)
    if not isinstance(declaration, Mapping) or any(aggregate not in aggregates for aggregate in declaration.values()):
        raise ConfigError(
            f"{world_name}: episode_metrics={declaration!r} must map each name to its aggregation, one of "
            f"{', '.join(aggregates)}"
        )
    return {str(metric): aggregate for metric, aggregate in declaration.items()}


def read_max_cycles(world: Any) -> int | None:
    """Return `world.max_cycles`, the number of steps of all agents after which an episode ends; None if undefined."""
    limit = _read_attribute(world, "max_cycles")
    return int(limit) if isinstance(limit, int | np.integer) and limit > 0 else None


def _read_attribute(world: Any, name: str) -> Any:
    return getattr(world, name, getattr(world.unwrapped, name, None))


def _parse_parameter(world_name: str, declaration: Any) -> Parameter:
    if isinstance(declaration, Parameter):
        return declaration
    try:
        arguments = {"unit": "", "description": "", **declaration}
        return Parameter(**{**arguments, "low": float(arguments["low"]), "high": float(arguments["high"])})
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{world_name}: mechanism: {declaration!r} must be a mapping with name, low and high; the other fields of "
            "llmrl.core.spaces.Parameter are optional"
        ) from error


Actions = Mapping[str, Any]
"""Agent -> its action, an element of its action space."""


class Game(ABC):
    """A world with the state of its episode. Subclasses implement reset and step.

    Args:
        name: name of the world, for messages.
        world: the world.
        horizon: steps after which an episode is truncated; None: only the world ends it.

    Attributes:
        world: the world.
        agents: all agents, in the order of `possible_agents`.
        live_agents: agents that have neither terminated nor been truncated.
        acting_agents: agents whose actions the next step uses.
        observations: observation of each live agent; after the end, of the agents that were live until then.
        infos: info of each of these agents.
        step_infos: agent -> info about the last step.
        rewards: agent -> reward of the last step, for agents that were live before it.
        previous_agents: agents that were live before the last step.
        n_steps: number of steps of the episode so far.
        terminated, truncated: whether and how the episode ended. It is truncated if all remaining agents were
            truncated in the same step, or after `horizon` steps.
    """

    def __init__(self, name: str, world: Any, horizon: int | None) -> None:
        self.name, self.world, self.horizon = name, world, horizon
        self.agents: tuple[str, ...] = tuple(world.possible_agents)
        self.live_agents: tuple[str, ...] = ()
        self.acting_agents: frozenset[str] = frozenset()
        self.observations: dict[str, Any] = {}
        self.infos: dict[str, Mapping[str, Any]] = {}
        self.step_infos: dict[str, Mapping[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self.previous_agents: tuple[str, ...] = ()
        self.n_steps, self.terminated, self.truncated = 0, False, False
        self._mechanism_values: np.ndarray | None = None

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self.n_steps, self.terminated, self.truncated = 0, False, False
        self.rewards, self.step_infos, self.previous_agents = {}, {}, ()
        self._reset(seed)
        if not self.live_agents:
            raise EngineError(f"{self.name} has no agents after reset(seed={seed})")

    def step(self, actions: Actions) -> None:
        """Advance by one step; `actions` contains at least those of the `acting_agents`."""
        self.previous_agents = self.live_agents
        self._step(actions)
        self.n_steps += 1
        self.terminated = not self.live_agents and not self.truncated
        if self.horizon is not None and self.n_steps >= self.horizon and not self.terminated:
            self.truncated = True

    def set_mechanism(self, values: np.ndarray) -> None:
        """Set the values [d] of the mechanism that the world declares, unless they are already set."""
        if self._mechanism_values is None or not np.array_equal(values, self._mechanism_values):
            self._mechanism_values = values.copy()
            _find_mechanism_layer(self.world).set_mechanism(self._mechanism_values.copy())

    def _end(self, agents: Sequence[str], terminated: Mapping[str, bool], truncated: Mapping[str, bool]) -> None:
        """End the episode after the last live `agents`; it is truncated if all were truncated and not terminated."""
        self.truncated = all(truncated.get(agent, False) and not terminated.get(agent, False) for agent in agents)
        self.live_agents, self.acting_agents = (), frozenset()

    @abstractmethod
    def _reset(self, seed: int) -> None: ...

    @abstractmethod
    def _step(self, actions: Actions) -> None: ...


class ParallelGame(Game):
    """A `ParallelEnv` with the state of its episode; a step uses an action of every live agent."""

    def _reset(self, seed: int) -> None:
        observations, infos = self.world.reset(seed=seed)
        self._update(tuple(self.world.agents), observations, infos)
        self._check_observations()

    def _step(self, actions: Actions) -> None:
        previous_agents = self.live_agents
        observations, rewards, terminated, truncated, infos = self.world.step(
            {agent: actions[agent] for agent in previous_agents}
        )
        self.rewards = {agent: float(rewards.get(agent, 0.0)) for agent in previous_agents}
        self.step_infos = {agent: infos[agent] for agent in previous_agents if agent in infos}
        live_agents = tuple(agent for agent in self.world.agents if not (terminated.get(agent) or truncated.get(agent)))
        self._update(live_agents or previous_agents, observations, infos)
        if live_agents:
            self._check_observations()
        else:
            self._end(previous_agents, terminated, truncated)

    def _check_observations(self) -> None:
        if missing_agents := [agent for agent in self.live_agents if agent not in self.observations]:
            raise EngineError(
                f"{self.name} returned no observation for {', '.join(missing_agents)} in step {self.n_steps} of an "
                "episode, although they are among its agents"
            )

    def _update(self, agents: tuple[str, ...], observations: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self.observations = {agent: observations[agent] for agent in agents if agent in observations}
        self.infos = {agent: dict(infos.get(agent, {})) for agent in self.observations}
        self.live_agents, self.acting_agents = agents, frozenset(agents)


class AECGame(Game):
    """An `AECEnv` with the state of its episode; a step uses the action of the agent whose turn it is.

    PettingZoo gives a dead agent (terminated or truncated) a turn with the action None. These turns are not steps.
    """

    def _reset(self, seed: int) -> None:
        self.world.reset(seed=seed)
        self._remove_dead_agents()
        self._update()

    def _step(self, actions: Actions) -> None:
        previous_agents, agent = self.live_agents, self.world.agent_selection
        self.world.step(actions[agent])
        self.rewards = {name: float(self.world.rewards.get(name, 0.0)) for name in previous_agents}
        self.step_infos = {agent: self.world.infos[agent]} if agent in self.world.infos else {}
        if any(not self._is_dead(name) for name in self.world.agents):
            self._remove_dead_agents()
            self._update()
        else:
            self._end(previous_agents, self.world.terminations, self.world.truncations)
            self._update()
            self._remove_dead_agents()

    def _is_dead(self, agent: str) -> bool:
        return bool(self.world.terminations.get(agent, False) or self.world.truncations.get(agent, False))

    def _remove_dead_agents(self) -> None:
        """Step with the action None while it is the turn of a dead agent, which removes it."""
        while self.world.agents and self._is_dead(self.world.agent_selection):
            self.world.step(None)

    def _update(self) -> None:
        live_agents = tuple(agent for agent in self.world.agents if not self._is_dead(agent))
        # After the end, agents that PettingZoo has not yet removed observe the final state.
        observing_agents = live_agents or tuple(self.world.agents)
        self.observations = {agent: self.world.observe(agent) for agent in observing_agents}
        self.infos = {agent: dict(self.world.infos.get(agent, {})) for agent in observing_agents}
        self.live_agents = live_agents
        self.acting_agents = frozenset({self.world.agent_selection} if live_agents else ())
