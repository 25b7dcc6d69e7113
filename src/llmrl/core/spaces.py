"""What an environment says about itself before it is stepped: channels, actions, mechanism, contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.objectives import MEAN, Objective
from llmrl.core.summaries import Derived, Entropy

Aggregate = Literal["sum", "mean", "last"]
"""How an episode sums up a number that each of its steps has."""


@dataclass(frozen=True)
class Channel:
    """One named observation channel of one agent: `shape` and `dtype` without the [n_envs, n_agents] axes.

    `text` channels have dtype object and hold one `str` per agent (shape `()`).

    Attributes:
        parts: for each agent, which entries of a one-dimensional channel hold what: name -> slice. Empty where entries
            have no names; entries that no part covers are padding.
        continuations: of a text, how it goes on when each action is taken, what stands between the two included: as
            later texts of the episode show it, where they show what was done. Empty: a space and the action's name.
        codes: of a map [width, height, k] of integer codes, how many codes (0, 1, ...) each of the k numbers of a cell
            can be; empty where numbers are amounts.
        planes: of such a map, yes-or-no facts about a cell: name -> (which of the k numbers, lowest code, highest
            code). Empty where the environment names none.
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
    """One number a proposer sets: its name, inclusive bounds, unit and meaning.

    Attributes:
        decimals: digits after the point it is rounded to wherever it is used; 0 for whole numbers, None for all.
        choice: its values are the numbers of things, one of which is chosen: beyond the bounds there is nothing.
    """

    name: str
    low: float
    high: float
    unit: str
    description: str
    decimals: int | None = None
    choice: bool = False


@dataclass(frozen=True)
class ParameterSpace:
    """The vector a proposer sets (a mechanism's numbers, a policy's parameters), in the order of `parameters`.

    Attributes:
        name: what the vector is, e.g. `tax`.
        contexts: names of the situations a vector is asked for, each with a best vector of its own; empty: only one.
    """

    name: str
    parameters: tuple[Parameter, ...]
    contexts: tuple[str, ...] = ()

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
    def choices(self) -> np.ndarray:
        """Which numbers are choices, [d] bool."""
        return np.array([p.choice for p in self.parameters], dtype=bool)

    @property
    def dim(self) -> int:
        return len(self.parameters)

    @property
    def n_rows(self) -> int:
        """Rows of a table with one row a context; 1 where there is none."""
        return max(len(self.contexts), 1)

    def row(self, context: int | None) -> int:
        """The table row of a context.

        Raises:
            ValueError: there are contexts and `context` is not one of them, or there are none and one is given.
        """
        if not self.contexts and context is None:
            return 0
        if context is None or not 0 <= context < len(self.contexts):
            own = f"{self.name}'s {len(self.contexts)} contexts {self.contexts}"
            raise ValueError(f"context {context!r} is none of {own}")
        return context

    def rounded(self, values: np.ndarray, clip: bool = True) -> np.ndarray:
        """`values` [..., d] inside the bounds and with the decimals each parameter has; without `clip`, numbers outside
        stay outside."""
        kept = np.clip(values, self.low, self.high) if clip else np.asarray(values, dtype=np.float64)
        digits = [p.decimals for p in self.parameters]
        if all(digit is None for digit in digits):
            return kept
        scale = np.array([1.0 if digit is None else 10.0**digit for digit in digits])
        # So large numbers are whole, and the product might be too large for a number.
        plain = np.array([digit is None for digit in digits]) | (np.abs(kept) >= 2.0**52)
        # Adding 0 makes a negative zero a zero.
        return np.where(plain, kept, np.round(np.where(plain, 0.0, kept) * scale) / scale + 0.0)

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which of `values` [..., d] are not inside the bounds, [..., d] bool."""
        return np.asarray(~((values >= self.low) & (values <= self.high)))

    @property
    def neutral(self) -> np.ndarray:
        """The vector that sets nothing, [d]: zeros, or what comes closest to them inside the bounds."""
        return self.rounded(np.zeros(self.dim))

    @property
    def coarse_scan(self) -> np.ndarray:
        """At most d + 3 vectors that show whether they matter, [n, d]: `neutral`, the centre of the box, all numbers at
        their highest, and each number at its highest with the others neutral. Equal ones are there once."""
        low, high, none = self.low, self.high, self.neutral
        each = [np.where(np.arange(self.dim) == i, high, none) for i in range(self.dim)]
        vectors = self.rounded(np.array([none, (low + high) / 2, high, *each]))
        return np.array(list(dict.fromkeys(tuple(vector) for vector in vectors.tolist())))

    def in_words(self, values: np.ndarray) -> str:
        """A vector [d] for people: `clean: 2.5`, leaving out what is 0; `no incentives` where nothing is left."""
        set_ = [f"{p.name}: {x:.3g}" for p, x in zip(self.parameters, values, strict=True) if x != 0]
        return ", ".join(set_) or f"no {self.name}"

    def check(self, values: object) -> np.ndarray:
        """`values` as float64 [..., d], or a ConfigError naming every number that is out of bounds."""
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} takes {self.dim} numbers, got {values!r}") from error
        if array.ndim == 0 or array.shape[-1] != self.dim:
            raise ConfigError(f"{self.name} takes {self.dim} numbers ({', '.join(self.names)}), got {array.tolist()}")
        bad = [
            f"{p.name}={column.flat[i]:g} is outside [{p.low:g}, {p.high:g}] ({p.unit})"
            for p, column in zip(self.parameters, np.moveaxis(array, -1, 0), strict=True)
            for i in np.flatnonzero(~((column >= p.low) & (column <= p.high)))[:1]
        ]
        if bad:
            raise ConfigError(f"{self.name}: " + "; ".join(bad))
        return array

    def exact(self, vectors: np.ndarray, where: str) -> np.ndarray:
        """`vectors` [n, d], or a ConfigError for a number with more decimals than it may have; `where` it was given."""
        off = np.argwhere(np.abs(self.rounded(vectors) - vectors) > 1e-9)
        if len(off):
            row, i = off[0].tolist()
            raise ConfigError(
                f"{where}: {self.names[i]}={vectors[row, i]:g} has more decimals than {self.parameters[i].decimals}; "
                "round it, or let numbers have more (agent.decimals=null)"
            )
        return vectors


@dataclass(frozen=True)
class ActionNumbers:
    """An action of several numbers: inclusive bounds and the name of each; `whole` where they are whole numbers."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    whole: bool = False

    @property
    def dim(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class GameText:
    """What can be told of a game before it begins, for players that read.

    Attributes:
        goal: what the game is, what is rewarded, when it ends.
        observation: (name, description with unit and range) of each thing a text observation names.
        actions: (what to answer, what it does), in the order of the actions; of the numbers of an action, where there
            are several.
        states: what a state number stands for, where that is what is observed, as a rule in terms of s:
            `row = s // 12, column = s % 12`; empty where nobody knows.
        example: an observation, as long as they usually are; empty where none is at hand. Nobody is told it: it serves
            to estimate what reading costs.
    """

    goal: str
    observation: tuple[tuple[str, str], ...]
    actions: tuple[tuple[str, str], ...]
    example: str = ""
    states: str = ""


@dataclass(frozen=True)
class EnvSpec:
    """Static description of a `VecEnv`.

    Attributes:
        name: option name of the environment, e.g. `cleanup`.
        n_envs: games stepped in lock step.
        n_agents: agents a game (1 for single-agent environments).
        observation: channels each agent sees (`pixels`, `vector`, `grid`, `text`, `action_mask`, `mechanism`).
        n_actions: size of the discrete action set; 0 where an action is several numbers.
        action_names: one name per action.
        horizon: steps after which an episode is truncated; None where the engine alone decides.
        mechanism: what a principal can set; None where it can set nothing.
        contexts: names of the contexts a principal is told (empty: no context).
        objective: what a principal is judged on by default.
        spending_cost: how much of it the principal loses for each unit of reward its mechanism pays out, >= 0.
        metrics: what is measured of an episode: per-step entries of `Step.info`, with how they are summed up, and what
            follows from several of them.
        details: per-step entries that are measured for people who read results alone: principals are not told them.
        exposure: whether `Step.exposure` tells how rewards depend on the mechanism's values.
        deterministic: whether `state_dict` restores the environment exactly.
        agent_names: one name per agent, where agents have roles; else empty.
        numbers: what an action consists of where it is several numbers, [n_envs, n_agents, numbers.dim]; else None.
        text: what a player that reads is told; None where nobody has put the game into words.
        facts: what prompts say of the game as it is played (its rules, its map, what it pays for), by the names they
            use.
        about: what a plan says is played, rows of (what, value): engine, rules, rewards.
        endless: nothing is known to end an episode: there is no horizon, and it may never reach an end of its own.
        device: where the environment keeps its numbers as torch tensors, e.g. `cuda`: observations, rewards, metrics
            and exposure are there; a step or reset may write over the observation of the last but two, and nothing
            else. `terminated`, `truncated` and the masks of `reset` are NumPy arrays all the same, so that nobody waits
            for the device to know what has ended. None: everything is NumPy, on the processor.
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
    metrics: Mapping[str, Aggregate | Derived] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    exposure: bool = False
    deterministic: bool = True
    agent_names: tuple[str, ...] = ()
    numbers: ActionNumbers | None = None
    text: GameText | None = None
    facts: Mapping[str, float | bool] = field(default_factory=dict)
    about: tuple[tuple[str, str], ...] = ()
    endless: bool = False
    device: str | None = None

    @property
    def per_step(self) -> dict[str, Aggregate]:
        """The entries of `Step.info`, and how an episode sums them up."""
        return {name: how for name, how in self.metrics.items() if isinstance(how, str)}

    @property
    def told(self) -> dict[str, Aggregate]:
        """Those of them that principals are told."""
        return {name: how for name, how in self.per_step.items() if name not in self.details}

    @property
    def rows(self) -> tuple[str, ...]:
        """All numbers of a game that are kept of each step: `per_step`, then those of entropies."""
        entropies = [how.rows for how in self.metrics.values() if isinstance(how, Entropy)]
        return (*self.per_step, *(name for rows in entropies for name in rows))

    @property
    def number_names(self) -> tuple[str, ...]:
        """What the numbers of an action are called: as the text has it, where there is one that names each."""
        if self.numbers is None:
            return ()
        told = () if self.text is None else tuple(name for name, _ in self.text.actions)
        return told if len(told) == self.numbers.dim else self.numbers.names

    def continuations(self, channel: str) -> tuple[str, ...]:
        """How a text of `channel` goes on when each action is taken: what a language model is to score after it."""
        return self.observation[channel].continuations or tuple(f" {name}" for name in self.action_names)

    def games_per_group(self, groups: int) -> int:
        """Games of each of `groups` equal groups.

        Raises:
            ConfigError: the games cannot be divided so.
        """
        if groups < 1 or self.n_envs % groups:
            raise ConfigError(
                f"{self.n_envs} games cannot be divided into {groups} equal groups: set env.n_envs to a multiple of "
                f"{groups}, e.g. {max(1, round(self.n_envs / max(groups, 1))) * max(groups, 1)}"
            )
        return self.n_envs // groups

    def need_discrete(self, who: str) -> int:
        """The number of actions, for `who` can only choose one of several.

        Raises:
            ConfigError: an action is several numbers here.
        """
        if self.numbers is not None:
            kind = "whole numbers" if self.numbers.whole else "real numbers"
            raise ConfigError(
                f"{who} chooses one of several actions, and an action of env={self.name} is {self.numbers.dim} {kind} "
                f"({', '.join(self.numbers.names)}); use agent=linear or agent=mlp_policy with a principal, "
                "agent=sb3, agent=llm_player or agent=random"
            )
        return self.n_actions

    @property
    def proposals(self) -> ParameterSpace:
        """What a principal sets here, and in which contexts.

        Raises:
            ConfigError: there is no mechanism.
        """
        if self.mechanism is None:
            raise ConfigError(f"env={self.name} has no mechanism, so a principal has nothing to set in it")
        return replace(self.mechanism, contexts=self.contexts)
