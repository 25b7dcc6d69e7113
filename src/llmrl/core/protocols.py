"""The few interfaces every part is written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.objectives import Objective
from llmrl.core.records import (
    Act,
    Array,
    Briefing,
    CallEstimate,
    ChatReply,
    ChatRequest,
    MetaSettings,
    Observation,
    Outcome,
    State,
    Step,
)
from llmrl.core.spaces import EnvSpec, ParameterSpace

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


Camera = Callable[[int], Sequence[np.ndarray]]
"""From the number of a game to what each of its agents is shown of it, [height, width, 3] uint8 each."""


@runtime_checkable
class VecEnv(Protocol):
    """`n_envs` games of `n_agents` agents stepped together.

    A game that ends stays ended until it is reset, so that `Step.observation` is always the state reached:
    truncation is bootstrapped from it without a special case.
    """

    spec: EnvSpec

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes in the games where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the environment's random stream first. A sequence of G seeds divides the games into G equal
        groups, in order, each with a stream of its own: group g then draws, in this reset and in later ones without
        `seed`, what an environment of n_envs / G games draws after `reset(seed=seed[g])`. So equal seeds give equal
        games, whatever `pair_games` says, which counts again from the next plain seed on. Only environments with a
        mechanism need take sequences (`design.societies`).

        Raises:
            ConfigError: the games cannot be divided so.
        """
        ...

    def step(self, action: Array) -> Step:
        """Advance all games by one step; `action` is [n_envs, n_agents] int, or [n_envs, n_agents, a] where an action
        is several numbers; a tensor on `spec.device` or a NumPy array where there is a device, else a NumPy array. A
        game that ended stays as it is, with rewards of 0, until it is reset."""
        ...

    def pair_games(self, groups: int) -> None:
        """Let game i of each of `groups` equal groups of games (in order) draw the same random numbers from the next
        reset on: common random numbers for groups that are compared. 1 makes all games independent."""
        ...

    def set_mechanism(self, values: Array) -> None:
        """Impose mechanism values [d] on all games, or [n_envs, d] on each; from the next step on."""
        ...

    def set_context(self, context: int) -> None:
        """Choose the context (index into `spec.contexts`) of all games; takes effect at the next reset."""
        ...

    def render(self, index: int = 0) -> np.ndarray:
        """A picture of the whole world of one game, [height, width, 3] uint8."""
        ...

    def state_dict(self) -> State:
        """Everything needed to go on exactly; empty where `spec.deterministic` is false."""
        ...

    def load_state_dict(self, state: State) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Resizable(VecEnv, Protocol):
    """An environment whose games do not depend on how many there are beside them, so that the games of several runs
    can be played as one batch."""

    def resized(self, n_envs: int) -> Resizable:
        """Return the same environment with so many games, none of them begun."""
        ...

    def set_context(self, context: int | np.ndarray) -> None:
        """As `VecEnv`; also [n_envs] contexts, one a game."""
        ...


@runtime_checkable
class ChannelsOnRequest(Protocol):
    """An environment with channels that are only computed if somebody reads them."""

    def provide(self, channels: Sequence[str]) -> None:
        """Observe these channels, too, from now on."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. `channels` names the observation channels it reads."""

    channels: tuple[str, ...]

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> Act:
        """Sample actions for [n_envs, n_agents] observations with `generator`, without gradients.

        `state` is what the last `Act` gave (None at the very start), with zeros where an episode starts. `greedy`
        takes the likeliest action instead of a sample, where the policy knows it.
        """
        ...

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """State values [n_envs, n_agents], without gradients. Only asked of policies that learn."""
        ...


@runtime_checkable
class LooksAtFrames(Protocol):
    """A policy that is shown pictures of the games. Whoever plays it gives it a camera."""

    camera: Camera | None


@runtime_checkable
class Memoizing(Protocol):
    """A policy that computes some things once for many steps, while nothing that they depend on changes.

    Who plays a rollout tells it so. Outside of `unchanged`, every output is computed from the weights of that moment.
    """

    def unchanged(self) -> AbstractContextManager[None]:
        """A span in which the policy's weights and settings stay as they are; such spans may be nested. It begins with
        nothing kept, and nothing is kept after it."""
        ...


def unchanged(policy: Policy) -> AbstractContextManager[None]:
    """A span in which the policy stays as it is, whether or not it is `Memoizing`."""
    return policy.unchanged() if isinstance(policy, Memoizing) else nullcontext()


@runtime_checkable
class Controller(Protocol):
    """A policy that is a function of a few numbers, which a proposer searches. NumPy only, and picklable: it plays in
    worker processes that know nothing of torch.

    `channel` names what it reads: `vector` or `state`. `space` says what its numbers are, in their flat order.
    """

    channel: str
    space: ParameterSpace

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Actions [n] int64 (or [n, a] float64 where an action is several numbers) of n games, each under its own row
        of `parameters` [n, d], for what is observed in them: [n, k] float64, or states [n] int64."""
        ...


@runtime_checkable
class SearchableAgent(Protocol):
    """An agent whose policy is a `Controller` with the parameters it was last given."""

    controller: Controller

    def adopt(self, parameters: np.ndarray) -> None:
        """Play with these parameters, [d], from now on."""
        ...


AgentLoop = Literal["learn", "clone", "baseline", "search", "play"]
"""Which loop an agent is made for, where no principal governs its games.

- learn: rollouts, and `Agent.update` after each.
- clone: epochs over what others did; it has `imitate` (`llmrl.loops.clone.Imitator`).
- baseline: a loop of its own; it has `fit` (`llmrl.loops.baseline.ExternallyTrained`).
- search: a principal proposes its parameters; it is a `SearchableAgent`.
- play: it never learns.
"""


@runtime_checkable
class Agent(Protocol):
    """A policy, and the learner that improves it where there is one.

    Attributes:
        loop: which loop it is made for; an attribute of the class, as the loop is chosen before an agent is built.
        policy: what plays.
        learns: rollouts are kept for `update`; false where an agent that could learn is to play only.
    """

    loop: ClassVar[AgentLoop]
    policy: Policy
    learns: bool

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Improve the policy from one rollout, drawing minibatches with `generator`; returns metrics."""
        ...

    def reset(self) -> None:
        """Go back to the original weights (after loading, if a run was given to start from)."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the plan that `dry_run=true` prints, e.g. parameter counts."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Teacher(Protocol):
    """An extra loss that pulls a student's policy somewhere; PPO adds it to its own on every minibatch.

    `channels` names the observation channels it reads; they are in its rollouts whether or not the student reads them.
    """

    channels: tuple[str, ...]

    @property
    def policy(self) -> Policy | None:
        """The teacher as a player, to be measured itself and to be shown beside a student; None if it cannot play."""
        ...

    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """What the teacher says about the states of a rollout: tensors [T, n_envs, n_agents, ...] by name.

        Asked once an update, before its first minibatch; what it gives is in the minibatches. Empty where it has
        nothing to say.

        Raises:
            LLMError: a language model it asks could not be reached.
        """
        ...

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Weighted loss (a scalar) and metrics (scalars without a graph, left on the device: to read one off in every
        minibatch would make a GPU wait) for student `logits` [batch, n_actions].

        `minibatch` holds what `advise` gave, the observation channels the student reads, [batch, ...], and `action`,
        `advantage`, `value`, each [batch].
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers to log after an update."""
        ...

    def reset(self) -> None:
        """Teach a student that begins anew; what was learnt about the world is kept."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Proposer(Protocol):
    """Ask/tell: proposes vectors inside bounds, learns their outcomes. Principals and policy search are proposers.

    `parallel` tells whether it can propose several vectors before it learns the outcome of the first.
    """

    parallel: bool

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        """The next vectors to try, [n, d], inside the bounds; `n` is 1 unless `parallel`."""
        ...

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Learn what the vectors of the last `ask` gave, in their order; returns metrics to log."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Bandit(Protocol):
    """A proposer that chooses one of finitely many vectors of `space`, its arms; in each context anew."""

    space: ParameterSpace

    @property
    def n_arms(self) -> int: ...


@runtime_checkable
class ChatModel(Protocol):
    """Answers batches of chat requests; replies come in the order of the requests."""

    label: str
    """What readers of results should see, e.g. `gpt-4o (litellm)` or `scripted (not a language model)`."""

    feed_thoughts: bool
    """Whether a reply that is shown back to it is to have its thoughts before it."""

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Raises LLMError if a request failed for good, BudgetExhausted if it may not be paid for any more."""
        ...

    def check(self) -> None:
        """Raise LLMError before a run starts if it could never answer (missing key, unreachable server)."""
        ...

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether `messages` and a reply fit into the model's context window; true where that is not known."""
        ...


@runtime_checkable
class Judging(Protocol):
    """A chat model that counts how many of its replies could not be read: a logged one does."""

    def check_understood(self) -> None:
        """Raises TooManyInvalid if these are more than the run allows."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Tells how likely given texts are as the continuation of a prompt: what a policy over text actions needs.

    Only models whose weights are at hand can do it; hosted chat models give no such numbers.
    """

    label: str
    """What readers of results should see, e.g. `google/flan-t5-small (local scorer)`."""

    def score(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> torch.Tensor:
        """log p(candidate | prompt), [n_prompts, n_candidates] float32, with gradients where torch records them.

        `candidates` are the same for all prompts, or a list for each prompt; shorter lists are padded with -inf. They
        are read as they stand in the text that a prompt and a candidate make together: the space between the two is in
        one of them (`EnvSpec.continuations`).
        """
        ...

    def check(self) -> None:
        """Raise LLMError before a run starts if it could never answer (missing package, no such weights)."""
        ...


@runtime_checkable
class Meter(Protocol):
    """Running totals of something that costs, kept across a resume: a logged chat model is one."""

    def metrics(self) -> dict[str, float]: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class Estimating(Protocol):
    """A part that knows before a run what it will ask of a chat model."""

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        """For `steps` calls of `ask` for `n` proposals each; the outcomes of `known` others are told before them."""
        ...


@runtime_checkable
class Briefed(Protocol):
    """A proposer that is told of the run it is part of."""

    def brief(self, briefing: Briefing) -> None:
        """Take in what is known of the run, when it is built and once more when it begins."""
        ...


@runtime_checkable
class GradientProposer(Proposer, Protocol):
    """A proposer that learns from `Outcome.gradient`, for which the agents' learning must be differentiable."""

    needs_gradient: bool
    """True."""

    @property
    def meta_settings(self) -> MetaSettings:
        """How it wants the gradient of the vector of the last `ask` estimated."""
        ...


@runtime_checkable
class MetaLearner(Protocol):
    """The learning of agents during one principal step, as a differentiable function of the mechanism's values."""

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """What `Agent.update` does, keeping how the new weights depend on the values."""
        ...

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Estimated derivative, [d], of the objective of validation `rollouts` by the values; `outcome` is theirs."""
        ...


@runtime_checkable
class DifferentiableAgent(Protocol):
    """An agent whose learning can be differentiated."""

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaLearner:
        """The agent's learner for one principal step under mechanism values [d]; it changes the agent's weights."""
        ...
