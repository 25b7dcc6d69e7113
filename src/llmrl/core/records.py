"""The records that pass between parts. Leading axes are [n_envs, n_agents], with time [T] in front in a rollout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Array = Any
"""A NumPy array or a torch tensor: environments give either, the rollout converts once."""


def on_host(x: Array) -> np.ndarray:
    """A NumPy array of the same numbers, to write or show them; a tensor's device is waited for."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


Observation = dict[str, Array]
"""Channel name -> [n_envs, n_agents, *channel.shape]."""


def embedded(text: str) -> Any:
    """A text that is JSON, as what it says, to become part of other JSON; any other stays a text."""
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


State = dict[str, Any]
"""What `state_dict` returns: nested dicts and lists of tensors, arrays, numbers, strings, booleans and None."""


@dataclass
class Step:
    """What one step of all games gives.

    Attributes:
        observation: the state reached, also for games that ended in this step (they wait for `reset`).
        reward: what the agents learn from, after the mechanism, [n_envs, n_agents] float32.
        base_reward: before the mechanism, and what welfare is measured on, [n_envs, n_agents] float32.
        terminated: the game reached an end of its own, [n_envs] bool.
        truncated: the game was cut at its horizon, [n_envs] bool.
        info: per-step numbers named in `EnvSpec.per_step`, each [n_envs].
        exposure: derivative of `reward` by each of the mechanism's d values, [n_envs, n_agents, d] float32; given
            where `EnvSpec.exposure` says so.
    """

    observation: Observation
    reward: Array
    base_reward: Array
    terminated: Array
    truncated: Array
    info: dict[str, Array] = field(default_factory=dict)
    exposure: Array | None = None


@dataclass
class Act:
    """What a policy decides for every agent.

    Attributes:
        action: [n_envs, n_agents] int64; [n_envs, n_agents, a] float32 where an action is several numbers.
        log_prob: [n_envs, n_agents], None for policies that have none (a bot, a chat model).
        value: [n_envs, n_agents] state value, or None.
        features: output of a frozen core, [n_envs, n_agents, F], to be computed once per rollout; else None.
        state: what the policy remembers, to hand back at the next step: [n_envs, n_agents, k] numbers, where a row of
            zeros is the start of an episode. None for policies that remember nothing.
        logits: unnormalised log-probabilities of all actions, [n_envs, n_agents, n_actions], for displays; or None.
        entropy: of the policy in what each agent observes, in nats, [n_envs, n_agents]; None where nobody knows.
        notes: what the policy has to say about each action, `notes[env][agent]`: small dicts of texts, numbers and
            truth values, empty where it says nothing (a game that waits); None for policies that never do.
    """

    action: torch.Tensor
    log_prob: torch.Tensor | None = None
    value: torch.Tensor | None = None
    features: torch.Tensor | None = None
    state: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    notes: list[list[dict[str, Any]]] | None = None


@dataclass(frozen=True)
class Trace:
    """The first steps of one episode of a controller.

    Attributes:
        observations: what it read, [t, k] float64, or the number of a state, [t] int64.
        actions: what it did, one of several, [t] int64, or numbers, [t, a] float64.
        rewards: that it got, [t].
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


@dataclass
class Outcome:
    """What a principal learns about one proposal.

    Attributes:
        vector: the proposal that was evaluated, [d].
        value: the objective, mean over validation episodes (over societies, where there are several); of a policy's
            parameters, the return.
        values: the objective of each validation episode, [m], society by society.
        standard_error: of `value`, across societies where there are several; None where one episode cannot tell.
        context: index into `EnvSpec.contexts`, or None.
        returns: base return of each agent, mean over validation episodes, [n_agents].
        trajectories: `EnvSpec.told` entries at each step, mean over validation episodes, each [T].
        summaries: the same entries summed up over an episode, mean over validation episodes.
        welfare: every measure of welfare (`llmrl.rollout.welfare.measures`), mean over validation episodes.
        units: independent numbers that `value` is the mean of: episodes, or societies; None: as many as episodes.
        training: the objective in the first and in the last round of training under it, each the mean over the episodes
            of that round; None where there was no training.
        draw: name of the random numbers it was measured with; two measurements of a vector under one name are the same
            (`llmrl.core.pooling`). None: its own.
        steps: the beginning of its first episode; None where nobody wants to see it.
        gradient: estimated derivative of `value` by `vector` through the agents' learning, [d]; only for proposers
            that ask for it (`GradientProposer`).
    """

    vector: np.ndarray
    value: float
    values: np.ndarray
    standard_error: float | None = None
    context: int | None = None
    returns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    trajectories: dict[str, np.ndarray] = field(default_factory=dict)
    summaries: dict[str, float] = field(default_factory=dict)
    welfare: dict[str, float] = field(default_factory=dict)
    gradient: np.ndarray | None = None
    units: int | None = None
    draw: str | None = None
    training: tuple[float, float] | None = None
    steps: Trace | None = None


@dataclass(frozen=True)
class Briefing:
    """What a principal that reads is told of the run it is part of.

    Attributes:
        steps: principal steps of the whole run.
        adapt_rounds: training rounds of a society under each proposal, with one update after each.
        validate_episodes: episodes that a payoff is the mean of.
        societies: that learn by themselves under each proposal.
        reset: before each step the agents go back to the weights that the run began with.
        without: payoff where nothing is set, measured beforehand, by context (None: there are none); empty: it is not
            known.
        games: of a society, played side by side in each round.
        updates: of a society after each training round, or within it; 0: agents that do not learn.
        counted: steps at the end of the run whose mean objective is its result.
    """

    steps: int
    adapt_rounds: int
    validate_episodes: int
    societies: int
    reset: bool
    without: Mapping[str | None, float] = field(default_factory=dict)
    games: int = 1
    updates: int = 1
    counted: int = 1


@dataclass(frozen=True)
class MetaSettings:
    """How a principal wants the derivative of its objective estimated.

    Attributes:
        gamma: discount per step of what is still to come, [0, 1]; 1 is the objective itself.
        baseline: what returns are compared with: `others`, the mean of the other validation episodes at the same step
            (with one episode: `past_return`, taken as spread evenly over it), or `past`, `past_return` at every step.
        past_return: mean objective of earlier principal steps.
        through_observation: count that agents who see the mechanism's values act on them.
        differentiate_targets: count that the agents' value targets depend on the mechanism's values.
    """

    gamma: float = 1.0
    baseline: Literal["others", "past"] = "others"
    past_return: float = 0.0
    through_observation: bool = True
    differentiate_targets: bool = False


@dataclass(frozen=True)
class ChatRequest:
    """One question to a chat model.

    Attributes:
        messages: `{"role": "system"|"user"|"assistant", "content": str}` in order; with `images`, PNG files as data
            URLs, where there are any (`llmrl.llms.images`).
        schema: JSON schema the reply should satisfy; None for free text.
        purpose: short label for the call log, e.g. `principal`.
        prompt: name of the prompt file the question was made from, and
        prompt_hash: a hash of what that file says; both for the call log.
        repeat: 0 where this question is asked for the first time, 1 for an independent second answer to it, ...
        place: where in a run it is asked, if that is what tells it from equal ones: who asks at several places at once
            names them, as then nobody can say which question came first. "": equal ones are counted.
        read: what a reply means, for the call log; raises where it means nothing. None where anything goes.
    """

    messages: tuple[dict[str, Any], ...]
    schema: dict[str, Any] | None = None
    purpose: str = ""
    prompt: str = ""
    prompt_hash: str = ""
    repeat: int = 0
    place: str = ""
    read: Callable[[ChatReply], Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ChatReply:
    """The text a model gave and what it took.

    Attributes:
        text: the reply; empty if the model refused or the call failed.
        prompt_tokens, completion_tokens: as the provider counts them; `cached_tokens` of the prompt's came out of the
            provider's own cache and `cache_write_tokens` were put there; `reasoning_tokens` of the completion's are
            thoughts. None where it does not tell: unknown is never zero.
        cost: US dollars, None where a price or a count is unknown.
        latency: seconds until the reply was there, waits and retries included.
        finish: why the model stopped, in the provider's words (`stop`, `length`, `content_filter`, ...); "" unknown.
        attempts: requests that were sent for it; 0 if it comes from our cache.
        error: why there is no reply, where the client was told to go on without; else "".
        thoughts: what the model thought before it answered, where the provider tells it apart from an answer; else "".
    """

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    latency: float = 0.0
    finish: str = ""
    attempts: int = 1
    error: str = ""
    thoughts: str = ""

    @property
    def cut(self) -> bool:
        """Whether it ended because it grew too long."""
        return self.finish.lower() in ("length", "max_tokens", "model_length", "max_output_tokens")


REPLY_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
"""Fields of a reply that count tokens."""


def impossible(reply: ChatReply) -> list[str]:
    """Which numbers of a reply none can have: negative, not finite, or no numbers."""
    counts = [name for name in REPLY_COUNTS if not _counts(reply, name)]
    cost = reply.cost
    amount = cost is None or (isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < math.inf)
    return counts if amount else [*counts, "cost"]


def _counts(reply: ChatReply, name: str) -> bool:
    value = getattr(reply, name)
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


@dataclass(frozen=True)
class CallEstimate:
    """What a part expects to ask of a chat model over a whole run.

    Attributes:
        calls: requests if every reply is valid; `most_calls` if every reply needs all its repair turns.
        prompt_tokens: of `calls` requests, by estimate.
        completion_tokens: of `calls` replies, by estimate.
        quoted: earlier replies that are shown again in the prompts of `calls` requests, all together; they may be as
            long as a reply may be.
    """

    calls: int
    most_calls: int
    prompt_tokens: int
    completion_tokens: int
    quoted: int = 0
