"""The static description of an environment: observation channels, actions, mechanism and contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.metrics import DerivedMetric
from llmrl.core.welfare_measures import MEAN, Objective

Aggregate = Literal["sum", "mean", "last"]
"""Aggregation of the values of a per-step metric over an episode."""


@dataclass(frozen=True)
class Channel:
    """An observation channel of one agent. A text channel has dtype `object`, shape `()` and one `str` per agent.

    Attributes:
        shape: shape without the [n_envs, n_agents] axes.
        dtype: name of the NumPy dtype.
        low, high: inclusive bounds of all entries.
        parts: for each agent, slices of a one-dimensional channel by name. Entries outside these slices are padding.
            Empty if entries have no names.
        codes: for a map [width, height, k] with k integer codes per cell, the number of values of each code, which are
            0, 1, ... Empty if the entries are not codes.
        planes: binary features of a cell of such a map by name: (index of the code, lowest and highest value for which
            the feature is 1). Empty if the environment defines none.
        continuations: for a text channel, the text that later observations append to a text for each action, with its
            separator. Empty: a space and the action's name.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float = -np.inf
    high: float = np.inf
    parts: tuple[Mapping[str, slice], ...] = field(default=(), hash=False)
    codes: tuple[int, ...] = ()
    planes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict, hash=False)
    continuations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """One number that a proposer sets: its name, inclusive bounds, unit and description.

    Attributes:
        decimals: number of decimal places to which the number is rounded; 0: integers, None: no rounding.
        choice: whether the values are indices of discrete alternatives, so values out of bounds have no meaning.
        effect: phrase with the placeholder `{value}` that describes the effect of a value without the name of the
            parameter; empty: name and value describe it.
        effect_scale: factor by which the value is multiplied where it replaces `{value}`.
    """

    name: str
    low: float
    high: float
    unit: str
    description: str
    decimals: int | None = None
    choice: bool = False
    effect: str = ""
    effect_scale: float = 1.0


@dataclass(frozen=True)
class ParameterSpace:
    """The space of the d-dimensional vectors that a proposer sets: a mechanism's values or a policy's parameters.

    Attributes:
        name: kind of vector, e.g. `tax`.
        parameters: the d numbers, in the order of a vector's entries.
        contexts: names of the contexts, each of which has its own optimal vector. Empty: there is one optimal vector.
        sentence: description of a vector: a sentence in which `{effects}` stands for the effects of its parameters.
    """

    name: str
    parameters: tuple[Parameter, ...]
    contexts: tuple[str, ...] = ()
    sentence: str = "Sets {effects}."

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def low(self) -> np.ndarray:
        """Lower bounds, [d]."""
        return np.array([p.low for p in self.parameters], dtype=np.float64)

    @property
    def high(self) -> np.ndarray:
        """Upper bounds, [d]."""
        return np.array([p.high for p in self.parameters], dtype=np.float64)

    @property
    def is_choice(self) -> np.ndarray:
        """Mask of the numbers that are choices (`Parameter.choice`), [d] bool."""
        return np.array([p.choice for p in self.parameters], dtype=bool)

    @property
    def dim(self) -> int:
        return len(self.parameters)

    @property
    def n_context_rows(self) -> int:
        """Number of rows of a table with one row per context; 1 where there are no contexts."""
        return max(len(self.contexts), 1)

    def find_context_row(self, context: int | None) -> int:
        """Return the row of a context in a table with one row per context.

        Raises:
            ValueError: `context` is not a context of this space, or is None although there are contexts.
        """
        if not self.contexts and context is None:
            return 0
        if context is None or not 0 <= context < len(self.contexts):
            description = f"{self.name}'s {len(self.contexts)} contexts {self.contexts}"
            raise ValueError(f"context {context!r} is none of {description}")
        return context

    def round_values(self, values: np.ndarray, clip: bool = True) -> np.ndarray:
        """Return `values` [..., d] rounded to each parameter's decimals, and clipped to the bounds if `clip`."""
        clipped = np.clip(values, self.low, self.high) if clip else np.asarray(values, dtype=np.float64)
        decimals = [p.decimals for p in self.parameters]
        if all(n is None for n in decimals):
            return clipped
        scale = np.array([1.0 if n is None else 10.0**n for n in decimals])
        # float64 numbers this large are integers, and the product with `scale` might overflow.
        is_unrounded = np.array([n is None for n in decimals]) | (np.abs(clipped) >= 2.0**52)
        # Adding 0.0 turns -0.0 into 0.0.
        return np.where(is_unrounded, clipped, np.round(np.where(is_unrounded, 0.0, clipped) * scale) / scale + 0.0)

    def is_out_of_bounds(self, values: np.ndarray) -> np.ndarray:
        """Return the mask of the `values` [..., d] that are out of bounds or NaN, [..., d] bool."""
        return np.asarray(~((values >= self.low) & (values <= self.high)))

    @property
    def neutral(self) -> np.ndarray:
        """The vector that sets nothing, [d]: zeros, or the values nearest to zero inside the bounds."""
        return self.round_values(np.zeros(self.dim))

    @property
    def probe_vectors(self) -> np.ndarray:
        """Distinct vectors with which to test whether the parameters have any effect, [n, d] with n <= d + 3.

        They are `neutral`, the center, the upper bounds, and each upper bound with the other parameters neutral.
        """
        low, high, neutral = self.low, self.high, self.neutral
        single_maxima = [np.where(np.arange(self.dim) == i, high, neutral) for i in range(self.dim)]
        vectors = self.round_values(np.array([neutral, (low + high) / 2, high, *single_maxima]))
        return np.array(list(dict.fromkeys(tuple(vector) for vector in vectors.tolist())))

    def format_vector(self, values: np.ndarray) -> str:
        """Return a vector [d] as text without its zeros, e.g. `clean: 2.5`; `no <name>` if all are zero."""
        nonzero_texts = [f"{p.name}: {x:.3g}" for p, x in zip(self.parameters, values, strict=True) if x != 0]
        return ", ".join(nonzero_texts) or f"no {self.name}"

    def describe_effects(self, values: np.ndarray) -> str:
        """Return a sentence on the effects of a vector [d], e.g. `Pays 3 for a step of cleaning.`, without zeros."""
        effects = [
            p.effect.format(value=x * p.effect_scale) if p.effect else f"{p.name} to {x:.3g}"
            for p, x in zip(self.parameters, values, strict=True)
            if x != 0
        ]
        if not effects:
            return f"No {self.name}: agents get what the game pays."
        *earlier_effects, last_effect = effects
        text = f"{', '.join(earlier_effects)} and {last_effect}" if earlier_effects else last_effect
        return self.sentence.format(effects=text)

    def check(self, values: object) -> np.ndarray:
        """Return `values` as float64 [..., d].

        Raises:
            ConfigError: wrong shape, or numbers out of bounds; the message names each such parameter.
        """
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} takes {self.dim} numbers, got {values!r}") from error
        if array.ndim == 0 or array.shape[-1] != self.dim:
            raise ConfigError(f"{self.name} takes {self.dim} numbers ({', '.join(self.names)}), got {array.tolist()}")
        out_of_bounds_texts = [
            f"{p.name}={column.flat[i]:g} is outside [{p.low:g}, {p.high:g}] ({p.unit})"
            for p, column in zip(self.parameters, np.moveaxis(array, -1, 0), strict=True)
            for i in np.flatnonzero(~((column >= p.low) & (column <= p.high)))[:1]
        ]
        if out_of_bounds_texts:
            raise ConfigError(f"{self.name}: " + "; ".join(out_of_bounds_texts))
        return array

    def check_decimals(self, vectors: np.ndarray, option_name: str) -> np.ndarray:
        """Return `vectors` [n, d] unchanged.

        Raises:
            ConfigError: a number has more decimals than its parameter allows; the message begins with `option_name`.
        """
        excess_indices = np.argwhere(np.abs(self.round_values(vectors) - vectors) > 1e-9)
        if len(excess_indices):
            row, i = excess_indices[0].tolist()
            raise ConfigError(
                f"{option_name}: {self.names[i]}={vectors[row, i]:g} has more decimals than "
                f"{self.parameters[i].decimals}; round it, or allow more decimals (agent.decimals=null)"
            )
        return vectors


@dataclass(frozen=True)
class ContinuousActions:
    """An action of several numbers, each with a name and inclusive bounds.

    Attributes:
        is_integer: whether each number is an integer; empty: none is.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    is_integer: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_integer", self.is_integer or (False,) * self.dim)

    @property
    def dim(self) -> int:
        return len(self.names)

    @property
    def description(self) -> str:
        """Count and type of the numbers: `1 real number`, `3 whole numbers`, `2 real and whole numbers`."""
        adjective = "whole" if all(self.is_integer) else "real and whole" if any(self.is_integer) else "real"
        return f"{self.dim} {adjective} number{'s' * (self.dim != 1)}"


@dataclass(frozen=True)
class EnvDescription:
    """The description of a game that language-model players receive before it begins.

    Attributes:
        goal: description of the game, its rewards and its end.
        observation: (name, description with unit and range) of each quantity in a text observation.
        actions: (answer, effect) of each action, in the order of their indices; if an action is several numbers, (name,
            effect) of each number.
        example: an observation of typical length, used only to estimate token costs; empty if unknown.
        states: formula for the meaning of an observed state number s, e.g. `row = s // 12, column = s % 12`; empty if
            unknown.
        amount: the quantity that an action sets, if action i means i units, e.g. `how many tons of fish to catch`;
            players then answer with a number. Empty if actions are not amounts.
    """

    goal: str
    observation: tuple[tuple[str, str], ...]
    actions: tuple[tuple[str, str], ...]
    example: str = ""
    states: str = ""
    amount: str = ""


@dataclass(frozen=True)
class EnvSpec:
    """Static description of a `VecEnv`.

    Attributes:
        name: option name of the environment, e.g. `cleanup`.
        n_envs: number of games that are stepped together.
        n_agents: agents per game (1 for single-agent environments).
        observation: channels that each agent observes (`pixels`, `vector`, `grid`, `text`, `action_mask`, `mechanism`).
        n_actions: size of the discrete action set; 0 where an action is several numbers.
        action_names: one name per action.
        horizon: steps after which an episode is truncated; None if only the engine ends episodes.
        mechanism: values that a principal can set; None if there is no mechanism.
        contexts: names of the contexts, which a principal receives; empty: no contexts.
        objective: default objective of a principal.
        spending_cost: loss of objective for each unit of reward that the mechanism pays out, >= 0.
        metrics: metrics of an episode by name: the aggregation of a per-step entry of `Step.info`, or a metric derived
            from several entries.
        details: per-step entries that results report but principals do not receive.
        has_reward_jacobian: whether steps have a `reward_jacobian`.
        deterministic: whether `state_dict` restores the environment exactly.
        agent_names: one name per agent if agents have roles; else empty.
        seats: if the spec describes only some players of the game (`EnvSpec.select_seats`), the player index of each
            agent; empty if it describes all players.
        n_game_players: number of players of the game if the spec describes only some of them; None: `n_agents`.
        kinds: in a mixed society, indices of the agents of each kind by name; metrics then include returns by kind.
        continuous_actions: the numbers of an action, for actions [n_envs, n_agents, continuous_actions.dim]; None for
            discrete actions.
        text: description for language-model players; None if the game has no text.
        facts: numbers and flags for prompts (rules, map, payments), by the names of variables in prompt templates.
        about: (subject, description) pairs for the plan of a run: engine, rules, rewards.
        endless: whether an episode may never end, because there is no horizon and the game may not terminate.
        max_return: greatest possible return of an episode; None if it is unknown.
        device: torch device of observations, rewards, metrics and reward Jacobian, e.g. `cuda`. A step or reset may
            overwrite the observation of three steps or resets before, and nothing else. `terminated`, `truncated` and
            the masks of `reset` are always NumPy arrays, so the CPU need not wait for the device to find ended games.
            `cpu`: observations are tensors, all else NumPy arrays. None: everything is a NumPy array.
    """

    name: str
    n_envs: int
    n_agents: int
    observation: Mapping[str, Channel]
    n_actions: int
    action_names: tuple[str, ...]
    horizon: int | None
    mechanism: ParameterSpace | None = None
    contexts: tuple[str, ...] = ()
    objective: Objective = MEAN
    spending_cost: float = 0.0
    metrics: Mapping[str, Aggregate | DerivedMetric] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    has_reward_jacobian: bool = False
    deterministic: bool = True
    agent_names: tuple[str, ...] = ()
    seats: tuple[int, ...] = ()
    n_game_players: int | None = None
    kinds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    continuous_actions: ContinuousActions | None = None
    text: EnvDescription | None = None
    facts: Mapping[str, float | bool] = field(default_factory=dict)
    about: tuple[tuple[str, str], ...] = ()
    endless: bool = False
    max_return: float | None = None
    device: str | None = None

    @property
    def per_step(self) -> dict[str, Aggregate]:
        """The entries of `Step.info` with their aggregation over an episode."""
        return {name: aggregate for name, aggregate in self.metrics.items() if isinstance(aggregate, str)}

    @property
    def principal_metrics(self) -> dict[str, Aggregate]:
        """The entries of `per_step` that principals receive."""
        return {name: aggregate for name, aggregate in self.per_step.items() if name not in self.details}

    @property
    def continuous_action_names(self) -> tuple[str, ...]:
        """Names of the numbers of an action: from `text` if it has a name for each, else from `continuous_actions`."""
        if self.continuous_actions is None:
            return ()
        text_names = () if self.text is None else tuple(name for name, _ in self.text.actions)
        return text_names if len(text_names) == self.continuous_actions.dim else self.continuous_actions.names

    @property
    def n_players(self) -> int:
        """Number of players of a game, including players that this spec does not describe."""
        return self.n_game_players or self.n_agents

    @property
    def player_names(self) -> tuple[str, ...]:
        """Names of the agents in texts: `agent_names` if there are any, else `player 1`, `player 2`, ..."""
        return self.agent_names or tuple(f"player {seat + 1}" for seat in self.seats or range(self.n_agents))

    def select_seats(self, seats: Sequence[int], include_texts: bool) -> EnvSpec:
        """Return the spec of some of the agents, for a member of a mixed society that controls them.

        Args:
            seats: indices of these agents, in increasing order.
            include_texts: whether text channels are included.
        """
        channels = {
            name: replace(channel, parts=tuple(channel.parts[i] for i in seats)) if channel.parts else channel
            for name, channel in self.observation.items()
            if include_texts or channel.dtype != "object"
        }
        return replace(
            self,
            n_agents=len(seats),
            observation=channels,
            agent_names=tuple(self.agent_names[i] for i in seats) if self.agent_names else (),
            seats=tuple(seats),
            n_game_players=self.n_agents,
            kinds={},
        )

    def continuations(self, channel: str) -> tuple[str, ...]:
        """Return, for each action, the text that a language model scores after a text of `channel`."""
        return self.observation[channel].continuations or tuple(f" {name}" for name in self.action_names)

    def games_per_group(self, n_groups: int) -> int:
        """Return the number of games in each of `n_groups` groups of equal size.

        Raises:
            ConfigError: `n_envs` is not a multiple of `n_groups`.
        """
        if n_groups < 1 or self.n_envs % n_groups:
            raise ConfigError(
                f"{self.n_envs} games cannot be divided into {n_groups} equal groups: set env.n_envs to a multiple of "
                f"{n_groups}, e.g. {max(1, round(self.n_envs / max(n_groups, 1))) * max(n_groups, 1)}"
            )
        return self.n_envs // n_groups

    def require_discrete_actions(self, part_name: str) -> int:
        """Return the number of discrete actions, for a part that supports only these; `part_name` names it in errors.

        Raises:
            Incompatible: actions of this environment are continuous.
        """
        if self.continuous_actions is not None:
            action = f"{self.continuous_actions.description} ({', '.join(self.continuous_actions.names)})"
            raise Incompatible(
                IncompatibilityReason.INTERFACE,
                f"{part_name} chooses one of several actions, and an action of env={self.name} is {action}; use "
                "agent=ppo, agent=linear or agent=mlp_policy with a principal, agent=sb3, agent=llm_player or "
                "agent=random",
            )
        return self.n_actions

    def require_text_channel(self, channel: str, part_name: str) -> None:
        """Check that `channel`, the value of `agent.text_channel`, has texts; `part_name` names the agent in errors.

        Raises:
            ConfigError: only other channels have texts.
            Incompatible: no channel has texts.
        """
        text_channels = [name for name, spec in self.observation.items() if spec.dtype == "object"]
        problem = f"agent.text_channel={channel}: {part_name} reads texts, but {channel!r} of env={self.name} has none"
        if channel not in text_channels and text_channels:
            raise ConfigError(f"{problem}; use agent.text_channel={' or '.join(text_channels)}")
        if channel not in text_channels:
            raise Incompatible(
                IncompatibilityReason.INTERFACE, f"{problem}; use a text environment, e.g. env=babyai_text"
            )

    def get_context_name(self, context: int | None) -> str | None:
        """Return the name of a context, given its index in `contexts`; None for None."""
        return None if context is None else self.contexts[context]

    @property
    def proposal_space(self) -> ParameterSpace:
        """The space of the mechanism's values, with the contexts of the environment.

        Raises:
            Incompatible: there is no mechanism.
        """
        if self.mechanism is None:
            raise Incompatible(
                IncompatibilityReason.MISSING_PART,
                f"env={self.name} has no mechanism, so a principal has nothing to set in it",
            )
        return replace(self.mechanism, contexts=self.contexts)
