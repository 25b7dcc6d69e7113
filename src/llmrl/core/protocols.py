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
    """A vectorized environment: `n_envs` games of `n_agents` agents that are stepped together.

    There is no autoreset: an ended game waits for `reset`. `Step.observation` is therefore always the observation after
    the step, also the final one of an episode, from which values of truncated episodes are bootstrapped.
    """

    spec: EnvSpec

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes in the games where `mask` is true; return the observation of all games.

        Args:
            mask: [n_envs] bool; None: all games.
            seed: seed of the environment's random stream; None: the stream continues. A sequence of G seeds divides the
                games into G equal groups of consecutive games with a stream each. Until the next seed, group g
                draws the numbers of an environment of n_envs / G games after `reset(seed=seed[g])`, and
                `share_random_numbers` has no effect. Only environments with a mechanism (`design.replicates`), or whose
                games can be played separately, need to accept sequences.

        Raises:
            ConfigError: `n_envs` is not a multiple of the number of seeds.
        """
        ...

    def step(self, action: Array) -> Step:
        """Advance all games by one step. An ended game does not change, with rewards of 0, until it is reset.

        `action` is [n_envs, n_agents] int, or [n_envs, n_agents, a] for continuous actions. It is a NumPy array; if
        `spec.device` is set, it may also be a tensor on that device.
        """
        ...

    def share_random_numbers(self, n_groups: int) -> None:
        """Give game i of each of `n_groups` equal groups the same random numbers from the next reset on.

        Common random numbers reduce the variance of comparisons between groups. A group is a block of consecutive
        games; one group makes all games independent.
        """
        ...

    def set_mechanism(self, values: Array) -> None:
        """Set the mechanism's values of all games, [d], or of each game, [n_envs, d], from the next step on."""
        ...

    def set_context(self, context: int) -> None:
        """Set the context (index into `spec.contexts`) of all games from their next reset on."""
        ...

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of the whole map of game `index`, [height, width, 3] uint8."""
        ...

    def state_dict(self) -> State:
        """Return the state for an exact continuation; unless `spec.deterministic`, the games are not included."""
        ...

    def load_state_dict(self, state: State) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Resizable(VecEnv, Protocol):
    """An environment whose games do not depend on the number of games, so that several runs can share one batch."""

    def resized(self, n_envs: int) -> Resizable:
        """Return a new environment with the same options and `n_envs` games, none of which has been reset."""
        ...

    def set_context(self, context: int | np.ndarray) -> None:
        """Set one context of all games, or the context of each game, [n_envs], from their next reset on."""
        ...


@runtime_checkable
class Forkable(VecEnv, Protocol):
    """An environment whose games can be continued from a saved state with other random numbers."""

    def fork(self, state: State, seed: int) -> None:
        """Restore the games of `state` (from `state_dict`), and draw all further random numbers from `seed`.

        Different seeds give independent continuations of the same state, which `load_state_dict` would always continue
        with the same random numbers. A later `state_dict` contains the new random stream.
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
    """A policy, which selects actions. `channels` lists the names of the observation channels that it reads."""

    channels: tuple[str, ...]

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions for observations [n_envs, n_agents, ...] without gradients.

        Args:
            observation: tensors by channel.
            state: `PolicyOutput.state` of the previous step, with zeros where an episode starts; None at first.
            generator: source of random numbers.
            greedy: whether to return the most probable actions instead of samples, if the policy has probabilities.
        """
        ...

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values [n_envs, n_agents] without gradients. It is called only for policies that learn."""
        ...


@runtime_checkable
class NeedsCamera(Protocol):
    """A policy that receives frames of the games through `camera`, which the caller sets before it acts."""

    camera: Camera | None


@runtime_checkable
class Memoizing(Protocol):
    """A policy that can cache intermediate results while its weights and settings do not change.

    It caches inside the context `fixed_weights` only; outside, every output is computed from the current weights.
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

    Optional members: `layout`, a description of the parameters for a language model; `clip_actions`, whether actions
    are clipped to their bounds (True); `bind_parameters(parameters)`, which returns a faster `act(observation)` for
    fixed parameters.

    Attributes:
        channel: observation channel that it reads, `vector` or `state`.
        space: space of its parameters.
    """

    channel: str
    space: ParameterSpace

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return the actions of n games, [n] int64, or [n, a] float64 if actions are continuous.

        `observation` is [n, k] float64, or states [n] int64. `parameters` [n, d] has one vector per game.
        """
        ...


@runtime_checkable
class SearchableAgent(Protocol):
    """An agent whose policy is a `Controller` with the parameters of the last `set_parameters`."""

    controller: Controller

    def set_parameters(self, parameters: np.ndarray) -> None:
        """Set the parameters of the policy, [d]."""
        ...


AgentLoop = Literal["learn", "clone", "baseline", "search", "play"]
"""Loop of an agent in games without a principal.

- learn: rollouts, and `Agent.update` after each.
- clone: epochs over recorded behavior; the agent has `imitate` (`llmrl.loops.clone.Imitator`).
- baseline: the training loop of a library; the agent has `fit` (`llmrl.loops.baseline.ExternallyTrained`).
- search: a principal proposes its parameters; the agent is a `SearchableAgent`.
- play: the agent never learns.
"""


@runtime_checkable
class Agent(Protocol):
    """A policy, with the learning algorithm that updates it if there is one.

    Attributes:
        loop: loop of the agent; a class attribute, because the loop is selected before an agent is built.
        policy: policy of the agent.
        learns: whether `update` changes the policy, so that rollouts must be recorded for it.
    """

    loop: ClassVar[AgentLoop]
    policy: Policy
    learns: bool

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Improve the policy from one rollout and return metrics. Minibatches are drawn with `generator`."""
        ...

    def reset(self) -> None:
        """Restore the initial weights: random ones, or the weights of the run that the agent was initialized from."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return entries of the plan that `dry_run=true` prints, e.g. numbers of parameters."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Teacher(Protocol):
    """A part that adds a loss to the loss of PPO on every minibatch, computed from advice on the states of a rollout.

    Optional methods, for `dry_run=true`: `describe()`, which returns texts by name, and
    `count_taught_updates(updates)`, which returns the number of updates with advice among the first `updates`.

    Attributes:
        channels: observation channels that the teacher reads. Rollouts contain them even if the student does not read
            them.
    """

    channels: tuple[str, ...]

    @property
    def policy(self) -> Policy | None:
        """The teacher as a policy, for evaluations and displays; None if it cannot play."""
        ...

    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Return the teacher's advice on the states of a rollout, tensors [T, n_envs, n_agents, ...] by name.

        It is called once per update, before the first minibatch, and minibatches contain the result. It is empty if
        there is no advice.

        Raises:
            LLMError: a language model of the teacher could not be reached.
        """
        ...

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted loss (a scalar) and metrics for student `logits` [batch, n_actions].

        Metrics are detached scalar tensors on the device, because to read one in every minibatch would synchronize a
        GPU. `minibatch` contains the advice and the observation channels of the student, [batch, ...], and `action`,
        `advantage` and `value`, each [batch].
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics to log after an update."""
        ...

    def reset(self) -> None:
        """Reset the state that depends on the student, e.g. schedules, but not what is stored about the environment."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Proposer(Protocol):
    """An optimizer with an ask/tell interface over bounded vectors. Principals and policy searches are proposers.

    Attributes:
        parallel: whether one `ask` can return several vectors.
    """

    parallel: bool

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        """Return the next vectors to evaluate, [n, d], inside the bounds; `n` is 1 unless `parallel`."""
        ...

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the optimizer with the outcomes of the vectors of the last `ask`, in order; return metrics to log."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Recommender(Protocol):
    """A proposer that selects the recommended vectors.

    For other proposers, the recommendation is the incumbent: the vector with the highest mean of all its measurements.
    Outcomes of confirmed candidates are passed to `tell` only if the class attribute `learns_from_others` is true.
    """

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vectors that the principal's rule ranks highest in a context, best first, [m, d] with m <= n.

        The caller appends incumbents, so a rule that selects one vector returns it alone. The method changes no state
        and draws no random numbers. `estimates` pools all measurements so far, by context index.
        """
        ...


@runtime_checkable
class EstimatesCalls(Protocol):
    """A proposer or an agent that can estimate its requests to chat models before a run."""

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the estimate for `steps` calls of `ask(n=n)`, made after `n_earlier_outcomes` outcomes.

        For an agent that only plays, the estimate is for `n` episodes of `steps` steps.
        """
        ...


@runtime_checkable
class AcceptsBriefing(Protocol):
    """A proposer that receives facts about its run."""

    def brief(self, briefing: PrincipalBriefing) -> None:
        """Store facts about the run. It is called when the run is built and again when it begins."""
        ...


@runtime_checkable
class GradientProposer(Proposer, Protocol):
    """A proposer that uses `Outcome.gradient`, for which the agents' updates must be differentiable."""

    needs_gradient: bool
    """Always true."""

    @property
    def meta_settings(self) -> MetaSettings:
        """Settings of the gradient estimate at the vector of the last `ask`."""
        ...


@runtime_checkable
class MetaLearner(Protocol):
    """The updates of the agents in one principal step, as a differentiable function of the mechanism's values."""

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Update the policy as `Agent.update` does, and record how the weights depend on the mechanism's values."""
        ...

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Return the estimated derivative of the objective by the mechanism's values, [d].

        `rollouts` are the validation rollouts, and `outcome` is their outcome.
        """
        ...


@runtime_checkable
class DifferentiableAgent(Protocol):
    """An agent whose updates can be differentiated."""

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaLearner:
        """Return a learner for one principal step under mechanism values [d]; it changes the agent's weights."""
        ...
