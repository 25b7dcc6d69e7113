"""The interfaces of the parts of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.records import (
    Array,
    CallEstimate,
    MetaSettings,
    Observation,
    Outcome,
    PolicyOutput,
    PrincipalBriefing,
    State,
    Step,
)
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.welfare_measures import Objective

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


Camera = Callable[[int], Sequence[np.ndarray]]
"""Function from the index of a game to a frame for each of its agents, [height, width, 3] uint8 each."""


@runtime_checkable
class VecEnv(Protocol):
    """A vectorized environment: `n_envs` games of `n_agents` agents, stepped in lock step.

    A game that ends stays ended until it is reset. `Step.observation` therefore always shows the state reached, from
    which truncated episodes are bootstrapped without a special case.
    """

    spec: EnvSpec

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes in the games where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the environment's random stream first. A sequence of G seeds divides the games into G equal
        groups, in order, each with its own stream. Group g then draws, in this reset and in later ones without `seed`,
        what an environment of n_envs / G games draws after `reset(seed=seed[g])`. Equal seeds thus give equal games.
        `pair_games` has no effect until the next single seed. Only environments with a mechanism (`design.replicates`),
        or whose games can be played separately, need to accept sequences.

        Raises:
            ConfigError: `n_envs` is not a multiple of the number of seeds.
        """
        ...

    def step(self, action: Array) -> Step:
        """Advance all games by one step. A game that has ended stays as it is, with rewards of 0, until it is reset.

        `action` is [n_envs, n_agents] int, or [n_envs, n_agents, a] where an action is several numbers. It is a NumPy
        array; if `spec.device` is set, it may also be a tensor on that device.
        """
        ...

    def pair_games(self, groups: int) -> None:
        """Give game i of each of `groups` equal groups the same random numbers from the next reset on.

        These are common random numbers for a comparison of groups. Groups are consecutive games; 1 makes all games
        independent.
        """
        ...

    def set_mechanism(self, values: Array) -> None:
        """Set the mechanism's values of all games, [d], or of each game, [n_envs, d], from the next step on."""
        ...

    def set_context(self, context: int) -> None:
        """Set the context (index into `spec.contexts`) of all games from their next reset on."""
        ...

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame that shows the whole world of game `index`, [height, width, 3] uint8."""
        ...

    def state_dict(self) -> State:
        """Return the state that an exact continuation needs; without the games if not `spec.deterministic`."""
        ...

    def load_state_dict(self, state: State) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Resizable(VecEnv, Protocol):
    """An environment whose games do not depend on the number of games, so that several runs can share one batch."""

    def resized(self, n_envs: int) -> Resizable:
        """Return the same environment with `n_envs` games, none of which has been reset."""
        ...

    def set_context(self, context: int | np.ndarray) -> None:
        """Set one context of all games, as in `VecEnv`, or the context of each game, [n_envs]."""
        ...


@runtime_checkable
class Forkable(VecEnv, Protocol):
    """An environment whose games can be continued from a saved state with other random numbers."""

    def fork(self, state: State, seed: int) -> None:
        """Restore the games of `state` (`state_dict`), and draw all further random numbers from `seed`.

        Forks with different seeds are independent continuations of the same state; `load_state_dict` alone would repeat
        the same one. States of a fork restore the fork.
        """
        ...


@runtime_checkable
class ChannelsOnRequest(Protocol):
    """An environment with observation channels that are computed only on request."""

    def provide(self, channels: Sequence[str]) -> None:
        """Add these channels to the observations from now on."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A policy, which chooses actions. `channels` names the observation channels that it reads."""

    channels: tuple[str, ...]

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions for [n_envs, n_agents] observations with `generator`, without gradients.

        `state` is the `state` of the last `PolicyOutput` (None at the first step), with zeros where an episode starts.
        `greedy` takes the most probable action instead of a sample, if the policy knows it.
        """
        ...

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values [n_envs, n_agents], without gradients. Called only for policies that learn."""
        ...


@runtime_checkable
class NeedsCamera(Protocol):
    """A policy that receives frames of the games through `camera`, which the caller sets before it acts."""

    camera: Camera | None


@runtime_checkable
class Memoizing(Protocol):
    """A policy that caches intermediate results over many steps while its weights and settings do not change.

    The caller marks the beginning and end of these steps. Otherwise, every output is computed from the current weights.
    """

    def fixed_weights(self) -> AbstractContextManager[None]:
        """Return a context manager in which the policy's weights and settings must not change.

        It may be nested. The cache is empty at its start and cleared at its end.
        """
        ...


def fixed_weights(policy: Policy) -> AbstractContextManager[None]:
    """Return `policy.fixed_weights()`, or a context manager that does nothing if the policy is not `Memoizing`."""
    return policy.fixed_weights() if isinstance(policy, Memoizing) else nullcontext()


@runtime_checkable
class Controller(Protocol):
    """A policy with a small parameter vector that a proposer searches.

    It uses NumPy only and can be pickled, because it plays in worker processes without torch.

    `channel` is the observation channel that it reads, `vector` or `state`. `space` describes its parameters.

    Optional: `layout`, a description of the numbers for a language model; `clip_actions`, whether actions are clipped
    to their bounds (True); `bind_parameters(parameters)`, which returns a faster `act(observation)` for fixed
    parameters.
    """

    channel: str
    space: ParameterSpace

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return the actions of n games, [n] int64, or [n, a] float64 where an action is several numbers.

        `observation` is [n, k] float64, or states [n] int64. `parameters` [n, d] has one vector per game.
        """
        ...


@runtime_checkable
class SearchableAgent(Protocol):
    """An agent whose policy is a `Controller` with the parameters last set."""

    controller: Controller

    def set_parameters(self, parameters: np.ndarray) -> None:
        """Use these parameters, [d], from now on."""
        ...


AgentLoop = Literal["learn", "clone", "baseline", "search", "play"]
"""The loop that an agent is made for, in games without a principal.

- learn: rollouts, and `Agent.update` after each.
- clone: epochs over recorded behavior; the agent has `imitate` (`llmrl.loops.clone.Imitator`).
- baseline: a loop of its own; the agent has `fit` (`llmrl.loops.baseline.ExternallyTrained`).
- search: a principal proposes its parameters; the agent is a `SearchableAgent`.
- play: the agent never learns.
"""


@runtime_checkable
class Agent(Protocol):
    """A policy, with the learner that improves it if there is one.

    Attributes:
        loop: the loop that the agent is made for; a class attribute, because the loop is chosen before an agent is
            built.
        policy: the policy that plays.
        learns: whether rollouts are kept for `update`; false for an agent that only plays.
    """

    loop: ClassVar[AgentLoop]
    policy: Policy
    learns: bool

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Improve the policy from one rollout and return metrics. Minibatches are drawn with `generator`."""
        ...

    def reset(self) -> None:
        """Restore the initial weights, which are those of another run if the agent was started from one."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts for the plan that `dry_run=true` prints, e.g. parameter counts."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Teacher(Protocol):
    """A source of advice for a student policy: a loss that PPO adds to its own on every minibatch.

    `channels` names the observation channels that the teacher reads. Rollouts contain them even if the student does
    not read them.

    Optional, for `dry_run=true`: `describe()`, which returns texts by name, and `count_taught_updates(updates)`, which
    returns in how many of the first updates it advises.
    """

    channels: tuple[str, ...]

    @property
    def policy(self) -> Policy | None:
        """The teacher as a policy, for evaluating it and displaying it next to a student; None if it cannot play."""
        ...

    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Return the teacher's advice on the states of a rollout, tensors [T, n_envs, n_agents, ...] by name.

        Called once per update, before the first minibatch; minibatches contain the result. Empty if there is no advice.

        Raises:
            LLMError: a language model that the teacher asks could not be reached.
        """
        ...

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted loss (a scalar) and metrics for student `logits` [batch, n_actions].

        Metrics are detached scalars on the device, because reading one in every minibatch would make a GPU wait.
        `minibatch` holds the results of `advise`, the observation channels that the student reads, [batch, ...], and
        `action`, `advantage`, `value`, each [batch].
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return numbers to log after an update."""
        ...

    def reset(self) -> None:
        """Prepare for a student with initial weights. Knowledge about the environment is kept."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Proposer(Protocol):
    """An ask/tell optimizer, which proposes vectors inside bounds and is told their outcomes.

    Principals and policy searches are proposers.

    `parallel`: whether it can propose several vectors before it is told the outcome of the first.
    """

    parallel: bool

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        """Return the next vectors to evaluate, [n, d], inside the bounds; `n` is 1 unless `parallel`."""
        ...

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Learn from the outcomes of the vectors of the last `ask`, in their order; return metrics to log."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Recommender(Protocol):
    """A proposer with a rule of its own for the vector that it recommends.

    Without this method the recommendation is the incumbent: the vector with the highest mean of all its measurements.
    Outcomes of confirmed candidates are passed to `tell` only if the class attribute `learns_from_others` is true.
    """

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vectors that the principal's rule ranks highest in a context, best first, [m, d] with m <= n.

        Incumbents follow these vectors, so a rule that names one vector returns it alone. The method changes no state
        and draws no random numbers. `estimates` pools all measurements so far, by context index.
        """
        ...


@runtime_checkable
class EstimatesCalls(Protocol):
    """A proposer or an agent that can estimate its requests to chat models before a run."""

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the estimate for `steps` calls of `ask(n=n)` after `n_earlier_outcomes` other outcomes.

        For an agent that only plays, the estimate is for `n` episodes of `steps` steps.
        """
        ...


@runtime_checkable
class AcceptsBriefing(Protocol):
    """A proposer that is told facts about its run."""

    def brief(self, briefing: PrincipalBriefing) -> None:
        """Store the facts about the run. Called when the run is built and again when it begins."""
        ...


@runtime_checkable
class GradientProposer(Proposer, Protocol):
    """A proposer that learns from `Outcome.gradient`, which requires differentiable learning of the agents."""

    needs_gradient: bool
    """Always true."""

    @property
    def meta_settings(self) -> MetaSettings:
        """Settings of the gradient estimate for the vector of the last `ask`."""
        ...


@runtime_checkable
class MetaLearner(Protocol):
    """The agents' learning during one principal step, as a differentiable function of the mechanism's values."""

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Update the policy as `Agent.update` does, and track how the new weights depend on the mechanism's values."""
        ...

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Return the estimated derivative, [d], of the objective with respect to the mechanism's values.

        `rollouts` are the validation rollouts, `outcome` their outcome.
        """
        ...


@runtime_checkable
class DifferentiableAgent(Protocol):
    """An agent whose learning is differentiable."""

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaLearner:
        """Return a learner for one principal step under mechanism values [d]; it changes the agent's weights."""
        ...
