"""Records that parts exchange. Leading axes are [n_envs, n_agents], in rollouts [T, n_envs, n_agents]."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Array = Any
"""A NumPy array or a torch tensor. Environments return either, and the collector converts them."""


def to_numpy(x: Array) -> np.ndarray:
    """Return `x` as a NumPy array. A tensor on a GPU is copied, which waits for the GPU."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


Observation = dict[str, Array]
"""Channel name -> [n_envs, n_agents, *channel.shape]."""


def parse_if_json(text: str) -> Any:
    """Return the parsed JSON if `text` is a JSON object or array, to embed it in other JSON; else `text`."""
    with suppress(ValueError):
        return json.loads(text) if text.startswith(("{", "[")) else text
    return text


State = dict[str, Any]
"""A `state_dict`: nested dicts and lists of tensors, arrays, numbers, strings, booleans and None."""


@dataclass
class Step:
    """Result of one step of all games.

    Attributes:
        observation: observation after the step; for a game that ended, the final one of its episode.
        reward: reward after the mechanism, from which agents learn, [n_envs, n_agents] float32.
        base_reward: reward before the mechanism, from which welfare is computed, [n_envs, n_agents] float32.
        terminated: whether the episode reached a terminal state, [n_envs] bool.
        truncated: whether the episode ended at its horizon, [n_envs] bool.
        info: per-step metrics named in `EnvSpec.per_step`, each [n_envs].
        reward_jacobian: derivative of `reward` by each of the mechanism's d values, [n_envs, n_agents, d] float32;
            None unless `EnvSpec.has_reward_jacobian`.
    """

    observation: Observation
    reward: Array
    base_reward: Array
    terminated: Array
    truncated: Array
    info: dict[str, Array] = field(default_factory=dict)
    reward_jacobian: Array | None = None


@dataclass
class PolicyOutput:
    """Output of a policy for every agent.

    Attributes:
        action: [n_envs, n_agents] int64; continuous actions: [n_envs, n_agents, a] float32.
        log_prob: log-probability of the action, [n_envs, n_agents]; None if it is unknown (a bot, a chat model).
        value: state value, [n_envs, n_agents], or None.
        features: output of a frozen network core, [n_envs, n_agents, F], stored so that it is computed once per
            rollout; or None.
        state: recurrent state, which is passed to `act` at the next step, [n_envs, n_agents, k]; zeros at the start of
            an episode. None for policies without one.
        logits: unnormalized log-probabilities of all actions, [n_envs, n_agents, n_actions], for displays; or None.
        notes: facts on each action for records and displays, `notes[env][agent]`: dicts of texts, numbers and booleans,
            empty for a game that waits for its reset; None for policies without notes.
    """

    action: torch.Tensor
    log_prob: torch.Tensor | None = None
    value: torch.Tensor | None = None
    features: torch.Tensor | None = None
    state: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    notes: list[list[dict[str, Any]]] | None = None


@dataclass(frozen=True)
class EvaluationBatch:
    """Results of complete episodes of q parameter vectors under k seeds each.

    Attributes:
        returns: sum of the rewards of each episode, [q, k] float64.
        lengths: number of steps of each episode, [q, k] int64.
        successes: whether each episode was a success, [q, k] bool; None without a success criterion.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None = None


@dataclass
class Outcome:
    """The outcome of one proposal, which is passed to `Proposer.tell`.

    Attributes:
        vector: the proposal that was evaluated, [d].
        value: mean objective over validation episodes; for several societies, the mean of their means; for a policy's
            parameters, the mean return.
        values: objective of each validation episode, [m], ordered by society.
        standard_error: standard error of `value`, over societies if there are several, else over episodes; None if it
            cannot be estimated.
        context: index into `EnvSpec.contexts`, or None.
        returns: base return of each agent, mean over validation episodes, [n_agents].
        trajectories: `EnvSpec.principal_metrics` entries at each step, mean over validation episodes, each [T].
        summaries: the same entries aggregated over an episode, mean over validation episodes.
        welfare: every measure of welfare (`llmrl.rollout.episode_summaries.compute_welfare`), mean over validation
            episodes.
        gradient: estimated derivative of `value` by `vector` through the updates of the agents, [d]; only for a
            `GradientProposer`.
        n_units: number of independent values (episodes or societies) that `value` averages; None: one per episode.
        draw: name of the random numbers of this measurement. Two measurements of a vector with the same name count
            once (`llmrl.core.pooling`). None: no other measurement has the same random numbers.
        training_objectives: mean objective over the episodes of the first and of the last adaptation round under the
            proposal; None without adaptation.
        net_returns: return of each agent after the mechanism, mean over validation episodes, [n_agents].
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
    n_units: int | None = None
    draw: str | None = None
    training_objectives: tuple[float, float] | None = None
    net_returns: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Pretraining:
    """The training of the agents before the run.

    Attributes:
        env_steps: environment steps, summed over games.
        low, high: bounds of each value of the mechanisms during the training; empty: no mechanism was set.
    """

    env_steps: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class PrincipalBriefing:
    """Facts about the run that a language-model principal receives.

    Attributes:
        steps: number of principal steps with proposals.
        adapt_rounds: number of adaptation rounds of a society under each proposal.
        validate_episodes: number of episodes over which a payoff is averaged.
        replicates: number of societies that learn independently under each proposal.
        reset: whether the weights of agents are reset before each principal step.
        without: payoff without a mechanism, measured before the search, by context (key None: no contexts); empty if
            unknown.
        games: number of games that a society plays in parallel in each round.
        updates: number of updates of a society per round; 0: the agents do not learn.
        confirmations: number of measurements after the last proposal, which compare the leading vectors again.
        pretraining: training of the agents before the run; None: there was none, or it is unknown.
        observes_mechanism: whether agents observe the mechanism's values where the environment shows them.
        noise: standard deviation of payoffs of the same vector, measured before the search; None if unknown.
    """

    steps: int
    adapt_rounds: int
    validate_episodes: int
    replicates: int
    reset: bool
    without: Mapping[str | None, float] = field(default_factory=dict)
    games: int = 1
    updates: int = 1
    confirmations: int = 0
    pretraining: Pretraining | None = None
    observes_mechanism: bool = True
    noise: float | None = None


@dataclass(frozen=True)
class MetaSettings:
    """Settings of the estimated derivative of the objective by the mechanism's values.

    Attributes:
        gamma: discount factor per step of the future objective, [0, 1]; 1: no discount.
        baseline: baseline of returns. `others`: mean of the other validation episodes at the same step; with a single
            episode, `past_return` divided evenly among its steps. `past`: `past_return` at every step.
        past_return: mean objective of earlier principal steps.
        observation_gradient: whether to include the effect of observed mechanism values on the agents' actions.
        differentiate_targets: whether to include the dependence of the agents' value targets on the mechanism's values.
    """

    gamma: float = 1.0
    baseline: Literal["others", "past"] = "others"
    past_return: float = 0.0
    observation_gradient: bool = True
    differentiate_targets: bool = False


CHOSEN_MODEL = "llm"
"""Name of the language model that `llm=` chooses, among several of a run."""


@dataclass(frozen=True)
class ChatRequest:
    """A request to a chat model.

    Attributes:
        messages: `{"role": "system"|"user"|"assistant", "content": str}` in order; optionally with `images`, PNG files
            as data URLs (`llmrl.llms.images`).
        schema: JSON schema that the reply should satisfy; None for free text.
        purpose: short label for the call log, e.g. `principal`.
        prompt: name of the prompt file, for the call log.
        prompt_hash: hash of the prompt file's content, for the call log.
        repeat: index of this reply among independent replies to the same request, from 0.
        question_id: identifier of the request in the run, for equal requests that are sent concurrently and therefore
            in no fixed order. "": equal requests are counted instead.
        parse: parser of a reply, for the call log; raises if the reply is invalid. None: every reply is valid.
        model: name of the model, for runs with several; `CHOSEN_MODEL` is the one that `llm=` chooses. It is not part
            of the cache key of a request, because each model has cache keys of its own.
        adapter: name of the adapter of a model that learns; "" in a run with a single adapter.
    """

    messages: tuple[dict[str, Any], ...]
    schema: dict[str, Any] | None = None
    purpose: str = ""
    prompt: str = ""
    prompt_hash: str = ""
    repeat: int = 0
    question_id: str = ""
    parse: Callable[[ChatReply], Any] | None = field(default=None, compare=False)
    model: str = CHOSEN_MODEL
    adapter: str = ""


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Token ids of a reply that a local model sampled, for training on exactly these tokens.

    Attributes:
        prompt: token ids of the prompt.
        tokens: token ids of the reply, including its end token.
        log_probs: log-probabilities of `tokens` under the distribution that they were sampled from, [n_tokens] float32.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: np.ndarray


@dataclass(frozen=True)
class ChatReply:
    """The reply of a chat model with its token counts and its cost.

    Attributes:
        text: the reply; empty if the model refused or the call failed.
        prompt_tokens, completion_tokens: token counts of the provider; None (never 0) if it does not report them.
        cached_tokens, cache_write_tokens: prompt tokens read from and written to the provider's cache, or None.
        reasoning_tokens: completion tokens that are the model's reasoning, or None.
        cost: US dollars; None if a price or a count is unknown.
        latency: seconds until the reply arrived, including waits and retries.
        finish: stop reason of the provider (`stop`, `length`, `content_filter`, ...); "" if unknown.
        attempts: number of requests that were sent; 0 if the reply is from the cache of llmrl.
        error: reason why there is no reply, if the options allow to continue without one; else "".
        thoughts: reasoning of the model, if the provider returns it separately from the answer; else "".
        sample: sampled tokens, if the model learns from its replies; None otherwise, and for cached replies.
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
    sample: TokenSample | None = field(default=None, compare=False, repr=False)

    @property
    def is_truncated(self) -> bool:
        """True if the reply was cut at its maximum length."""
        return self.finish.lower() in ("length", "max_tokens", "model_length", "max_output_tokens")


TOKEN_COUNT_FIELDS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
"""Fields of `ChatReply` that count tokens."""


def find_impossible_fields(reply: ChatReply) -> list[str]:
    """Return the names of the counts and costs of a reply that are negative, not finite, or not numbers."""
    types = dict.fromkeys(TOKEN_COUNT_FIELDS, int) | {"cost": int | float}
    return [
        name
        for name in types
        if (x := getattr(reply, name)) is not None
        and (not isinstance(x, types[name]) or isinstance(x, bool) or not 0 <= x < math.inf)
    ]


@dataclass(frozen=True)
class CallEstimate:
    """Estimate of a part's requests to chat models over a whole run.

    Attributes:
        calls: number of requests if every reply is valid.
        max_calls: number of requests if every reply needs the maximum number of repair requests.
        prompt_tokens: estimated tokens of the prompts of all `calls`.
        completion_tokens: estimated tokens of the replies to all `calls`.
        n_quoted_replies: number of earlier replies in the prompts of all `calls`; each may have the maximum length.
        fraction_by_model: fraction of the requests and tokens by model (`ChatRequest.model`); fractions add up to 1.
    """

    calls: int
    max_calls: int
    prompt_tokens: int
    completion_tokens: int
    n_quoted_replies: int = 0
    fraction_by_model: Mapping[str, float] = field(default_factory=lambda: {CHOSEN_MODEL: 1.0})

    @classmethod
    def add_up(cls, estimates: Sequence[CallEstimate]) -> CallEstimate:
        """Return the sum of estimates; fractions are weighted by prompt tokens, which dominate costs."""
        n_prompt_tokens = sum(estimate.prompt_tokens for estimate in estimates)
        fraction_by_model: dict[str, float] = {}
        for estimate in estimates:
            weight = estimate.prompt_tokens / n_prompt_tokens if n_prompt_tokens else 1 / len(estimates)
            for model, fraction in estimate.fraction_by_model.items():
                fraction_by_model[model] = fraction_by_model.get(model, 0.0) + fraction * weight
        return cls(
            calls=sum(estimate.calls for estimate in estimates),
            max_calls=sum(estimate.max_calls for estimate in estimates),
            prompt_tokens=n_prompt_tokens,
            completion_tokens=sum(estimate.completion_tokens for estimate in estimates),
            n_quoted_replies=sum(estimate.n_quoted_replies for estimate in estimates),
            fraction_by_model=fraction_by_model or {CHOSEN_MODEL: 1.0},
        )
