"""Agents whose policy has few parameters, which a proposer searches (`loop=search`): layers, projections and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmrl.agents.controllers.labels import (
    count_inputs,
    count_states,
    describe_states,
    format_action_label,
    join_abbreviated,
    list_input_names,
)
from llmrl.agents.controllers.linear import LayeredController, LayerSettings, ProjectedController
from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop, Controller
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace

if TYPE_CHECKING:
    import torch

MAX_STATES = 100_000
"""Maximum number of states of a table."""


class ControllerPolicy(PolicyWithoutValues):
    """Policy of all agents in a game (copy of the environment): a `Controller` with one parameter vector [d]."""

    def __init__(self, controller: Controller, spec: EnvSpec) -> None:
        self.controller, self.n_agents = controller, spec.n_agents
        self.channels = (controller.channel,)
        self.parameters = controller.space.round_values(np.zeros(controller.space.dim))

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return deterministic actions [n_envs, n_agents] int64, or [n_envs, n_agents, a] float32."""
        import torch  # imported here, so that options are checked without torch

        inputs = observation[self.controller.channel].cpu().numpy()
        flat_inputs = inputs.reshape(-1, *inputs.shape[2:])
        flat_inputs = flat_inputs.astype(np.int64 if self.controller.channel == "state" else np.float64)
        actions = self.controller.act(flat_inputs, np.tile(self.parameters, (len(flat_inputs), 1)))
        dtype = torch.int64 if actions.ndim == 1 else torch.float32
        return PolicyOutput(
            torch.as_tensor(actions, dtype=dtype).reshape(len(inputs), self.n_agents, *actions.shape[1:])
        )


class SearchAgent(NonLearningAgent):
    """Agent with a `Controller`, whose parameters a principal sets.

    The initial parameters are 0, or as close to 0 as the bounds allow.

    Attributes:
        has_parameters: whether `set_parameters` or a checkpoint has set the parameters.
    """

    loop: ClassVar[AgentLoop] = "search"

    def __init__(self, spec: EnvSpec, controller: Controller) -> None:
        self.controller = controller
        self.policy = ControllerPolicy(controller, spec)
        self.has_parameters = False

    def set_parameters(self, parameters: np.ndarray) -> None:
        """Use `parameters` [d] from now on."""
        self.policy.parameters = np.array(parameters, dtype=np.float64)
        self.has_parameters = True

    def describe(self) -> dict[str, Any]:
        space = self.controller.space
        low, high = space.low, space.high
        bounds_text = f"{low.min():g} to {high.max():g}"
        decimals = {p.decimals for p in space.parameters}
        decimals_text = "any" if decimals == {None} else "/".join(sorted(str(n) for n in decimals))
        return {"policy": space.name, "parameters": space.dim, "bounds": bounds_text, "decimals": decimals_text}

    def state_dict(self) -> State:
        return {"parameters": self.policy.parameters.copy()}

    def load_state_dict(self, state: State) -> None:
        self.set_parameters(state["parameters"])


class LayeredAgent(SearchAgent):
    """Linear policy (`agent=linear`, ProPS, arXiv 2511.21928) or small multilayer perceptron (`agent=mlp_policy`).

    Args:
        spec: spec of the environment.
        settings: options.
    """

    def __init__(self, spec: EnvSpec, settings: LayerSettings) -> None:
        super().__init__(spec, LayeredController(spec, settings))


class Bins:
    """Discretization of an observation: each number is in one of several bins of equal width; states are combinations.

    Numbers below a range are in its first bin, and those above it in its last.

    Args:
        spec: spec of the environment.
        ranges: low, high and number of bins, for each number of the channel `vector`.

    Attributes:
        n_states: number of states, the product of the numbers of bins.

    Raises:
        ConfigError: not every number has a range, a range is invalid, or there are too many states.
        Incompatible: there is no channel `vector`.
    """

    def __init__(self, spec: EnvSpec, ranges: Sequence[Sequence[float]]) -> None:
        n_inputs, names = count_inputs(spec, "agent.bins"), list_input_names(spec)
        if len(ranges) != n_inputs:
            raise ConfigError(
                f"agent.bins has {len(ranges)} ranges, but env={spec.name} observes {n_inputs} numbers "
                f"({', '.join(names)}); write [low, high, bins] for each"
            )
        for name, bin_range in zip(names, ranges, strict=True):
            if (
                len(bin_range) != 3
                or not np.isfinite(bin_range).all()
                or bin_range[0] >= bin_range[1]
                or bin_range[2] < 1
                or bin_range[2] != int(bin_range[2])
            ):
                raise ConfigError(
                    f"agent.bins: {list(bin_range)} for {name} must be [low, high, bins] with low < high and bins >= 1"
                )
        self._low = np.array([low for low, _, _ in ranges], dtype=np.float64)
        self._high = np.array([high for _, high, _ in ranges], dtype=np.float64)
        self._n_bins = np.array([int(count) for _, _, count in ranges], dtype=np.int64)
        self.n_states = int(np.prod(self._n_bins.astype(object)))
        if self.n_states > MAX_STATES:
            raise ConfigError(
                f"agent.bins results in {self.n_states:,} states; use fewer bins, at most {MAX_STATES:,} states"
            )
        # State index: the bin of the last number varies fastest, as in a C-ordered array.
        self._strides = np.append(np.cumprod(self._n_bins[:0:-1])[::-1], 1)
        self._input_names = names

    def compute_states(self, observation: np.ndarray) -> np.ndarray:
        """Return the states, [n] int64, of observations [n, k]."""
        fraction = (observation - self._low) / (self._high - self._low)
        # Clip before the conversion, because infinity cannot be converted to an integer.
        bins = np.floor(np.clip(fraction, 0.0, 1.0) * self._n_bins).astype(np.int64)
        return np.minimum(bins, self._n_bins - 1) @ self._strides

    @property
    def description(self) -> str:
        """Description of the states for prompts, one line for each number."""
        lines = [
            "In state s each number of the observation lies in a bin, counted from 0 (// divides without a remainder, "
            "% is the remainder):"
        ]
        dimensions = zip(self._input_names, self._low, self._high, self._n_bins, self._strides, strict=True)
        for name, low, high, count, stride in dimensions:
            index = f"(s // {stride}) % {count}" if stride > 1 else f"s % {count}"
            width = (high - low) / count
            lines.append(f"- {name}: bin {index} of {count}, each {width:.4g} wide, from {low:g} to {high:g}")
        return "\n".join(lines) + "\nNumbers outside a range are in its first or last bin.\n"


class TabularController:
    """Controller with a table of the action in each state; the state is observed, or computed by `bins`.

    Args:
        spec: spec of the environment.
        bins: discretization of the channel `vector`; None: the channel `state` is used.

    Raises:
        ConfigError: actions are not discrete.
        Incompatible: there are no `bins` and no channel `state`.
    """

    def __init__(self, spec: EnvSpec, bins: Bins | None) -> None:
        self.channel, self._bins = "state" if bins is None else "vector", bins
        n_states = count_states(spec, "agent=tabular") if bins is None else bins.n_states
        n_actions = spec.require_discrete_actions("agent=tabular")
        actions = join_abbreviated([format_action_label(spec, i) for i in range(n_actions)])
        self.layout = (
            f"params[s] is the number of the action taken in state s, for s from 0 to {n_states - 1}.\n"
            f"{describe_states(spec) if bins is None else bins.description}The actions are: {actions}."
        )
        parameters = (
            Parameter(f"params[{s}]", 0.0, n_actions - 1.0, "action", f"action in state {s}", 0, choice=True)
            for s in range(n_states)
        )
        self.space = ParameterSpace("table of actions", tuple(parameters))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return actions [n] for states [n], or observations [n, k], under tables [n, n_states]."""
        states = observation if self._bins is None else self._bins.compute_states(observation)
        return parameters[np.arange(len(states)), states].astype(np.int64)


class TabularAgent(SearchAgent):
    """Agent `agent=tabular`, a table with the action in each state.

    Args:
        spec: spec of the environment.
        bins: [low, high, number of bins] of each number of the channel `vector`; None: the channel `state` is used.

    Raises:
        ConfigError, Incompatible: see `Bins` and `TabularController`.
    """

    def __init__(self, spec: EnvSpec, bins: list[list[float]] | None = None) -> None:
        super().__init__(spec, TabularController(spec, None if bins is None else Bins(spec, bins)))


@dataclass(frozen=True, kw_only=True)
class ProjectionSettings(LayerSettings):
    """Options of `ProjectionAgent`; `bound` and `decimals` are those of z (`ProjectedController`).

    Attributes:
        rank: number of directions, at most the number of the policy's parameters.
    """

    rank: PositiveInt


class ProjectionAgent(SearchAgent):
    """Agent `agent=projection`, whose policy has many parameters but is searched along a few random directions.

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree for the directions.
    """

    def __init__(self, spec: EnvSpec, settings: ProjectionSettings, seeds: Seeds) -> None:
        policy = LayeredController(spec, replace(settings, decimals=None))
        super().__init__(spec, ProjectedController(policy, seeds, settings.rank, settings.bound, settings.decimals))
