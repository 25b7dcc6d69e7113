"""Agents whose policy is a function of a few numbers that a proposer searches (`loop=search`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.agents.controllers.bins import Bins
from llmrl.agents.controllers.linear import Activation, LayeredController, LayerSettings, Output
from llmrl.agents.controllers.projection import Basis, ProjectedController
from llmrl.agents.controllers.tabular import QTableController, TabularController
from llmrl.core.errors import ConfigError
from llmrl.core.only_plays import OnlyPlays
from llmrl.core.protocols import AgentLoop, Controller
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import Act, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec

VALUE_BOUND = 1.0
"""Largest magnitude of a table's values where none is given: only their order matters."""


class ControllerPolicy:
    """A `Controller` under one vector of parameters, [d], as a policy; all agents of a game play by it."""

    def __init__(self, controller: Controller, spec: EnvSpec) -> None:
        self.controller, self.n_agents = controller, spec.n_agents
        self.channels = (controller.channel,)
        self.parameters = controller.space.rounded(np.zeros(controller.space.dim))

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> Act:
        """The same action for the same observation, `greedy` or not."""
        seen = observation[self.controller.channel].cpu().numpy()
        flat = seen.reshape(-1, *seen.shape[2:])
        flat = flat.astype(np.int64 if self.controller.channel == "state" else np.float64)
        chosen = self.controller.act(flat, np.tile(self.parameters, (len(flat), 1)))
        dtype = torch.int64 if chosen.ndim == 1 else torch.float32
        return Act(torch.as_tensor(chosen, dtype=dtype).reshape(len(seen), self.n_agents, *chosen.shape[1:]))

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it expects nothing."""
        return torch.zeros(next(iter(observation.values())).shape[:2])


class SearchAgent(OnlyPlays):
    """Plays a `Controller` with the parameters it was last given; what improves them is a principal.

    Before it is given any they are all 0, or as near to it as the bounds allow.

    Attributes:
        given: it was given some.
    """

    loop: ClassVar[AgentLoop] = "search"

    def __init__(self, spec: EnvSpec, controller: Controller) -> None:
        self.controller = controller
        self.policy = ControllerPolicy(controller, spec)
        self.given = False

    def adopt(self, parameters: np.ndarray) -> None:
        """Play with these parameters, [d], from now on."""
        self.policy.parameters = np.array(parameters, dtype=np.float64)
        self.given = True

    def describe(self) -> dict[str, Any]:
        space = self.controller.space
        low, high = space.low, space.high
        bounds = f"{low.min():g} to {high.max():g}"
        digits = {p.decimals for p in space.parameters}
        told = "any" if digits == {None} else "/".join(sorted(str(digit) for digit in digits))
        return {"policy": space.name, "parameters": space.dim, "bounds": bounds, "decimals": told}

    def state_dict(self) -> State:
        return {"parameters": self.policy.parameters.copy()}

    def load_state_dict(self, state: State) -> None:
        self.adopt(state["parameters"])


class LinearAgent(SearchAgent):
    """`agent=linear`: the weighted sums of the observation decide (ProPS, arXiv 2511.21928).

    Args:
        spec: of the environment.
        bias: a constant is added to each sum.
        bound: every weight lies between -bound and bound.
        decimals: digits after the point of every weight; None: all.
        output, clip_actions: what sums decide, see `Decision`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        bias: bool = True,
        bound: PositiveFloat = 6.0,
        decimals: NonNegativeInt | None = 1,
        output: Output = "raw",
        clip_actions: bool = True,
    ) -> None:
        layers = LayerSettings((), bias, "tanh", bound, decimals, output, clip_actions)
        super().__init__(spec, LayeredController(spec, layers))


class MLPAgent(SearchAgent):
    """`agent=mlp_policy`: a small multilayer perceptron decides.

    Args:
        spec: of the environment.
        hidden: units of each hidden layer.
        activation: of hidden layers; `leaky_relu` has slope 0.2 below zero.
        bias, bound, decimals, output, clip_actions: as in `LinearAgent`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[PositiveInt] = (11,),
        activation: Activation = "tanh",
        bias: bool = True,
        bound: PositiveFloat = 6.0,
        decimals: NonNegativeInt | None = 1,
        output: Output = "raw",
        clip_actions: bool = True,
    ) -> None:
        layers = LayerSettings(hidden, bias, activation, bound, decimals, output, clip_actions)
        super().__init__(spec, LayeredController(spec, layers))


class TabularAgent(SearchAgent):
    """`agent=tabular`: a table with a row for every state of a game, which its observation is the number of, or `bins`
    make of it.

    Args:
        spec: of the environment.
        entries: `actions`, one whole number a state, the action taken in it; or `values`, one number a state and
            action, of which the largest decides.
        actions: numbers of the actions that may be entered, without gaps; None: all. Of `actions` only.
        bound, decimals: of `values`, as in `LinearAgent`.
        bins: of an observation of numbers, for each of them low, high and how many bins of equal width; None: the
            observation is the number of a state.

    Raises:
        ConfigError: the environment shows no number of a state and there are no bins, or they do not fit it.
    """

    def __init__(
        self,
        spec: EnvSpec,
        entries: Literal["actions", "values"] = "actions",
        actions: list[NonNegativeInt] | None = None,
        bound: PositiveFloat | None = None,
        decimals: NonNegativeInt | None = None,
        bins: list[list[float]] | None = None,
    ) -> None:
        cut = None if bins is None else Bins(spec, bins)
        if entries == "actions":
            if bound is not None or decimals is not None:
                raise ConfigError(
                    f"agent.bound={bound}, agent.decimals={decimals}: a table of actions holds whole numbers; leave "
                    "both null, or choose agent.entries=values"
                )
            controller: Controller = TabularController(spec, actions, cut)
        else:
            if actions is not None:
                raise ConfigError(
                    f"agent.actions={actions}: a table of values has one for every action; leave it null, or choose "
                    "agent.entries=actions"
                )
            controller = QTableController(spec, VALUE_BOUND if bound is None else bound, decimals, cut)
        super().__init__(spec, controller)


class ProjectionAgent(SearchAgent):
    """`agent=projection`: a policy with many numbers that is searched along a few random directions.

    Args:
        spec: of the environment.
        seeds: of the directions.
        rank: how many, at most as many as the policy has numbers.
        basis: see `ProjectedController`.
        hidden: units of each hidden layer of the policy; none: it is linear.
        activation, bias, bound, decimals, output, clip_actions: as in `MLPAgent`; bounds and decimals are those of the
            amounts of the directions.
    """

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        rank: PositiveInt = 5,
        basis: Basis = "orthonormal",
        hidden: Sequence[PositiveInt] = (),
        activation: Activation = "tanh",
        bias: bool = True,
        bound: PositiveFloat = 6.0,
        decimals: NonNegativeInt | None = 1,
        output: Output = "raw",
        clip_actions: bool = True,
    ) -> None:
        layers = LayerSettings(hidden, bias, activation, bound, None, output, clip_actions)
        inner = LayeredController(spec, layers)
        super().__init__(spec, ProjectedController(inner, seeds, rank, basis, bound, decimals))
