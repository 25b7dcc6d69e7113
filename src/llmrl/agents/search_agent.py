"""Agents whose policy has a few parameters, which a proposer searches (`loop=search`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from llmrl.agents.controllers.linear import LayeredController, LayerSettings, ProjectedController
from llmrl.agents.controllers.tabular import Bins, QTableController, TabularController
from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop, Controller
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec

if TYPE_CHECKING:
    import torch

DEFAULT_VALUE_BOUND = 1.0
"""Default bound of a table's values, of which only the order matters."""


class ControllerPolicy(PolicyWithoutValues):
    """Policy of all agents of a game: a `Controller` with one vector of parameters [d]."""

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
    ) -> PolicyOutput:
        """Return deterministic actions [n_envs, n_agents] int64, or [n_envs, n_agents, a] float32."""
        import torch  # imported here, so that options are checked without torch

        inputs = observation[self.controller.channel].cpu().numpy()
        flat = inputs.reshape(-1, *inputs.shape[2:])
        flat = flat.astype(np.int64 if self.controller.channel == "state" else np.float64)
        actions = self.controller.act(flat, np.tile(self.parameters, (len(flat), 1)))
        dtype = torch.int64 if actions.ndim == 1 else torch.float32
        return PolicyOutput(
            torch.as_tensor(actions, dtype=dtype).reshape(len(inputs), self.n_agents, *actions.shape[1:])
        )


class SearchAgent(NonLearningAgent):
    """Agent that plays a `Controller` with the parameters last set; a principal improves them.

    The initial parameters are 0, or as close to 0 as the bounds allow.

    Attributes:
        has_parameters: whether parameters were set.
    """

    loop: ClassVar[AgentLoop] = "search"

    def __init__(self, spec: EnvSpec, controller: Controller) -> None:
        self.controller = controller
        self.policy = ControllerPolicy(controller, spec)
        self.has_parameters = False

    def set_parameters(self, parameters: np.ndarray) -> None:
        """Play with `parameters` [d] from now on."""
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


class TabularAgent(SearchAgent):
    """Agent `agent=tabular`, a table with actions or values for every state.

    The state is the observed number, or is computed with `bins`.

    Args:
        spec: spec of the environment.
        entries: `actions`: one integer per state, the action taken; `values`: one number per state and action, the
            largest of which determines the action.
        bound, decimals: bound and precision of `values`, as in `LayerSettings`.
        bins: [low, high, number of bins of equal width] for each number of a numeric observation; None: the observation
            is the index of the state.

    Raises:
        ConfigError: the observation is not a state index and there are no bins, the bins do not fit it, or `bound` or
            `decimals` is given for a table of actions.
    """

    def __init__(
        self,
        spec: EnvSpec,
        entries: Literal["actions", "values"] = "actions",
        bound: PositiveFloat | None = None,
        decimals: NonNegativeInt | None = None,
        bins: list[list[float]] | None = None,
    ) -> None:
        state_bins = None if bins is None else Bins(spec, bins)
        if entries == "actions":
            if bound is not None or decimals is not None:
                raise ConfigError(
                    f"agent.bound={bound}, agent.decimals={decimals}: a table of actions holds integers; use null for "
                    "both, or agent.entries=values"
                )
            controller: Controller = TabularController(spec, state_bins)
        else:
            controller = QTableController(spec, DEFAULT_VALUE_BOUND if bound is None else bound, decimals, state_bins)
        super().__init__(spec, controller)


@dataclass(frozen=True, kw_only=True)
class ProjectionSettings(LayerSettings):
    """Options of `ProjectionAgent`: those of the policy, of which bound and decimals apply to the coefficients.

    Attributes:
        rank: number of directions, at most the number of the policy's parameters.
    """

    rank: PositiveInt


class ProjectionAgent(SearchAgent):
    """Policy with many parameters that is searched along a few random directions, `agent=projection`.

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree of the directions.
    """

    def __init__(self, spec: EnvSpec, settings: ProjectionSettings, seeds: Seeds) -> None:
        policy = LayeredController(spec, replace(settings, decimals=None))
        super().__init__(spec, ProjectedController(policy, seeds, settings.rank, settings.bound, settings.decimals))
