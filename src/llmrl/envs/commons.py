"""Common-pool resource game: players harvest a shared stock that grows again unless they take too much of it.

Rules, numbers and measures are those of GovSim (Piatti et al., "Cooperate or Collapse: Emergence of Sustainable
Cooperation in a Society of LLM Agents", NeurIPS 2024, arXiv 2404.16698). Sections of that paper are cited below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.core.welfare_measures import SUM
from llmrl.envs.commons_text import SCENARIOS, CommonsText, ScenarioName, taxes
from llmrl.envs.env_errors import guarded
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import Settlement

ChannelName = Literal["vector", "text"]

_METRICS: Mapping[str, Aggregate] = {
    "harvested": "sum",
    "months": "sum",
    "survived": "sum",
    "over_usage": "mean",
    "stock": "last",
    "efficiency": "last",
}
_ARRAYS = ("episode", "stock", "month", "wanted", "taken", "total", "collapsed")
_HEIGHT, _TANK, _BAR, _GAP = 120, 60, 20, 8  # pixels
_PAPER, _FRAME, _STOCK, _LIMIT = (244, 242, 236), (60, 62, 68), (88, 150, 196), (190, 60, 50)


class Commons:
    """A vectorised environment of `n_envs` common-pool resource games.

    **Month.** A step. All players choose how much to take, at once. If they want more than the stock, it is shared out
    unit by unit: each unit goes to a player drawn uniformly from those who still want more (appendix B.1). What is left
    is multiplied by `growth`, up to `capacity`. Amounts are whole numbers. A game begins with a stock of `capacity`.

    **Sustainable amount.** f = max {x: growth * (stock - x) >= stock}: the most that all players together can take
    without a smaller stock next month (section 2.3). A player's share is f // n_agents.

    **Reward before the mechanism.** 1 for each unit taken.

    **Mechanism.** `harvest_tax` for each unit that a player takes, `excess_tax` for each unit above its sustainable
    share, both in [0, `max_tax`]. Every player gets an equal part of all taxes of the month.

    **Observation.** `vector` [n_envs, n_agents, n_agents + 2 or 3] float32: stock / capacity; months played / horizon,
    if `show_end`; the last harvest of every player / capacity; the agent's own last harvest / capacity. `text`: a JSON
    object (`commons_text`). `action_mask` [n_envs, n_agents, n_actions] bool: amounts that the stock has, if it can be
    smaller than the largest one; more can be wanted, and then counts as the whole stock. `mechanism` [n_envs, n_agents,
    2] float32 if it is shown.

    **End.** Terminated when fewer than `collapse_below` units are left after a harvest: the stock has collapsed.
    Truncated after `horizon` months.

    **Metrics.** `stock`: units at the end. `harvested`: units taken by all. `months`: survival time. `survived`: 1 if
    the last month was reached, whatever was left in it. `over_usage`: share of players' harvests above the sustainable
    share. `efficiency`: min(1, harvested / (horizon * f of a full stock)). Definitions: section 2.4.

    Args:
        seeds: the environment's node of the seed tree.
        scenario: story in which `text` tells the game, and the environment's name.
        n_envs: games in lock step.
        n_agents: players per game.
        capacity: largest stock, units.
        growth: factor by which the stock grows each month, >= 2.
        collapse_below: units; at most capacity / growth.
        horizon: months per game.
        amounts: what an action can take, units: ascending, 0 first, `capacity` at most. None: 0, 1, ..., `most`.
        most: largest amount if `amounts` is None, units.
        observe: channels that agents observe.
        show_end: whether agents are told when the game will end.
        universalization: whether `text` says from which harvest on the stock shrinks if everybody takes as much.
        mechanism: whether a principal can set taxes.
        max_tax: upper bound of each tax, reward per unit.
        show_mechanism: whether agents observe the taxes.

    Attributes:
        place: (i, n): the first game draws the numbers of game i of n (`llmrl.loops.independent_games.OneGame`).

    Raises:
        ConfigError: options that contradict each other.
    """

    spec: EnvSpec
    place = (0, 1)

    @staticmethod
    def plays_in_rows(options: Mapping[str, Any]) -> bool:
        """Return whether, under these options, the games of several runs can be played as one batch."""
        return "text" not in options.get("observe", ())

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Return the size of one agent's observation of a step under these options, bytes."""
        actions = len(options.get("amounts") or range(options.get("most", 20) + 1))
        shown = 2 if options.get("show_mechanism", False) else 0
        return int(4 * (options.get("n_agents", 5) + 3 + shown) + actions)

    def __init__(
        self,
        seeds: Seeds,
        scenario: ScenarioName = "fishery",
        n_envs: PositiveInt = 32,
        n_agents: PositiveInt = 5,
        capacity: PositiveInt = 100,
        growth: Annotated[int, Ge(2)] = 2,
        collapse_below: PositiveInt = 5,
        horizon: PositiveInt = 12,
        amounts: list[NonNegativeInt] | None = None,
        most: PositiveInt = 20,
        observe: Sequence[ChannelName] = ("vector",),
        show_end: bool = True,
        universalization: bool = False,
        mechanism: bool = True,
        max_tax: PositiveFloat = 2.0,
        show_mechanism: bool = False,
    ) -> None:
        made_of = {name: x for name, x in locals().items() if name not in ("self", "n_envs")}
        self._resized = partial(Commons, **made_of)
        taken = tuple(range(most + 1)) if amounts is None else tuple(amounts)
        _check(taken, capacity, growth, collapse_below)
        if not observe or len(set(observe)) < len(observe):
            raise ConfigError(f"observe={list(observe)} must name one or both of vector, text, each once")
        if universalization and "text" not in observe:
            raise ConfigError("universalization=true is told in words: it needs text in observe")
        if show_mechanism and not mechanism:
            raise ConfigError("show_mechanism=true needs mechanism=true: there is nothing to show")
        self._amounts = np.array(taken)
        self._capacity, self._growth, self._collapse_below, self._horizon = capacity, growth, collapse_below, horizon
        self._show_end = show_end
        space = taxes(max_tax, SCENARIOS[scenario].harvest) if mechanism else None
        self._text = CommonsText(
            scenario,
            n_agents,
            capacity,
            growth,
            collapse_below,
            horizon,
            taken,
            show_end,
            universalization,
            space,
            show_mechanism,
        )
        self._report: MechanismReport | None = None
        if space is not None and "text" in observe:
            self._report = MechanismReport(space, n_envs, n_agents, show_mechanism)
        full = int(self._sustainable(np.array(capacity)))
        self._optimum = horizon * full  # units that can be taken in a game without ever harming the stock
        available = {
            "vector": Channel((1 + show_end + n_agents + 1,), "float32", 0.0, 1.0),
            "text": Channel((), "object"),
        }
        channels: dict[str, Channel] = {name: available[name] for name in observe}
        if taken[-1] > growth * collapse_below:
            channels["action_mask"] = Channel((len(taken),), "bool", 0, 1)
        if show_mechanism:
            channels["mechanism"] = Channel((2,), "float32", 0.0, max_tax)
        self.spec = EnvSpec(
            name=scenario,
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=len(taken),
            action_names=tuple(f"take_{n}" for n in taken),
            horizon=horizon,
            mechanism=space,
            objective=SUM,
            metrics={**_METRICS, "tax_collected": "sum"} if mechanism else _METRICS,
            has_reward_jacobian=mechanism,
            text=self._text.description() if "text" in observe else None,
            facts={"capacity": capacity, "growth": growth, "collapse_below": collapse_below, "sustainable": full},
        )
        self._groups = 1
        self._roots = [seeds.integer("shares")]  # one for each equal group of games
        self._episode = np.zeros(n_envs, dtype=np.int64)  # since the last seeding
        self._taxes_set = np.zeros((n_envs, 2))
        self._stock = np.full(n_envs, -1)  # -1: never reset
        self._month = np.zeros(n_envs, dtype=np.int64)
        self._wanted = np.zeros((n_envs, n_agents), dtype=np.int64)
        self._taken = np.zeros((n_envs, n_agents), dtype=np.int64)
        self._total = np.zeros((n_envs, n_agents), dtype=np.int64)
        self._collapsed = np.zeros(n_envs, dtype=bool)

    def resized(self, n_envs: int) -> Commons:
        """Return the same environment with `n_envs` games, none of them begun."""
        return self._resized(n_envs=n_envs)

    def one_game(self) -> Commons:
        """Return the same environment with a single independent game."""
        return guarded(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new games where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds who gets a unit that several want; a sequence seeds equal groups of games separately
        (`VecEnv.reset`)."""
        if seed is not None:
            several = seed if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(several))
            self._roots = [Seeds(each).integer("shares") for each in several]
            self._episode[:] = 0
        chosen = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        self._episode[chosen] += 1
        self._stock[chosen] = self._capacity
        for numbers in (self._month, self._wanted, self._taken, self._total, self._collapsed):
            numbers[chosen] = 0
        if self._report is not None:
            self._report.begin(chosen)
        return self._observe()

    def step(self, action: Array) -> Step:
        """Play a month with the amounts that `action` [n_envs, n_agents] chooses. Games that have ended stay as they
        are.

        Raises:
            ValueError: wrong shape, an action that does not exist, or a game was never reset.
        """
        spec, chosen = self.spec, np.asarray(action)
        if chosen.shape != self._taken.shape:
            raise ValueError(f"actions must be {list(self._taken.shape)}, got an array of shape {list(chosen.shape)}")
        if chosen.min() < 0 or chosen.max() >= spec.n_actions:
            raise ValueError(f"actions must be 0 to {spec.n_actions - 1}, got {chosen.min()} to {chosen.max()}")
        if (self._stock < 0).any():
            raise ValueError("reset() must be called before step()")
        active = ~self._ended
        wanted = self._amounts[chosen] * active[:, None]
        taken = self._shared_out(wanted)
        share = self._share()
        over = (taken > share[:, None]).mean(axis=1)
        settled = self._settle(taken, share)
        left = self._stock - taken.sum(axis=1)
        collapsed = active & (left < self._collapse_below)
        grown = np.minimum(self._growth * left, self._capacity)
        self._stock = np.where(active & ~collapsed, grown, left)
        self._collapsed |= collapsed
        self._month += active
        self._wanted, self._taken = (
            np.where(active[:, None], new, old) for new, old in ((wanted, self._wanted), (taken, self._taken))
        )
        self._total += taken

        if self._report is not None:
            self._report.settle(settled.base_reward, settled.reward_jacobian, self._taxes_set, active, {})
        info = {
            "stock": self._stock,
            "harvested": taken.sum(axis=1),
            "months": active,
            "survived": active & (self._month >= self._horizon),
            "over_usage": over,
            "efficiency": np.minimum(1.0, self._total.sum(axis=1) / self._optimum),
            **settled.metrics,
        }
        return Step(
            observation=self._observe(),
            reward=settled.reward(self._taxes_set).astype(np.float32),
            base_reward=settled.base_reward.copy(),
            terminated=self._collapsed.copy(),
            truncated=self._ended & ~self._collapsed,
            info={name: np.asarray(info[name], dtype=np.float32) for name in spec.per_step},
            reward_jacobian=settled.reward_jacobian.copy() if spec.has_reward_jacobian else None,
        )

    def pair_games(self, groups: int) -> None:
        """Share out alike in game i of each of `groups` equal groups of games, from the next reset on."""
        self.spec.games_per_group(groups)
        if groups != self._groups:
            self._groups = groups
            self._episode[:] = self._episode.max()

    def set_mechanism(self, values: Array) -> None:
        """Set the taxes of all games, [2], or of each game, [n_envs, 2], from the next step on.

        Raises:
            ConfigError: a number is out of bounds, or the environment was built with mechanism=false.
        """
        if self.spec.mechanism is None:
            raise ConfigError(f"{self.spec.name} was built with mechanism=false, so it takes no taxes")
        self._taxes_set = np.broadcast_to(self.spec.mechanism.check(values), self._taxes_set.shape).copy()

    def set_context(self, context: int) -> None:
        """Raise ConfigError: there are no contexts."""
        raise ConfigError(f"{self.spec.name} has no contexts, so there is no context {context}")

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [136, 84 + 28 * n_agents, 3] uint8.

        On the left the stock, with a red line where it collapses; on the right what each player took last month, on the
        same scale enlarged by half the number of players, with a red line at the sustainable share of a full stock."""
        n_agents = self.spec.n_agents
        width = _TANK + 3 * _GAP + n_agents * (_BAR + _GAP)
        image = np.full((_HEIGHT + 2 * _GAP, width, 3), _PAPER, dtype=np.uint8)
        bottom = _GAP + _HEIGHT

        def bar(left: int, wide: int, share: float, colour: Sequence[int]) -> None:
            image[bottom - round(_HEIGHT * min(share, 1.0)) : bottom, left : left + wide] = colour

        image[_GAP - 2 : bottom + 2, _GAP - 2 : _GAP + _TANK + 2] = _FRAME
        bar(_GAP, _TANK, 1.0, _PAPER)
        bar(_GAP, _TANK, max(int(self._stock[index]), 0) / self._capacity, _STOCK)
        image[bottom - round(_HEIGHT * self._collapse_below / self._capacity), _GAP : _GAP + _TANK] = _LIMIT
        scale = n_agents / 2 / self._capacity
        for agent in range(n_agents):
            left = _TANK + 3 * _GAP + agent * (_BAR + _GAP)
            bar(left, _BAR, scale * int(self._taken[index, agent]), _FRAME)
        image[bottom - round(_HEIGHT * scale * self._optimum / self._horizon / n_agents), _TANK + 3 * _GAP :] = _LIMIT
        return image

    def state_dict(self) -> State:
        return {
            "roots": list(self._roots),
            "groups": self._groups,
            "taxes": self._taxes_set.copy(),
            **{name: getattr(self, f"_{name}").copy() for name in _ARRAYS},
            "report": None if self._report is None else self._report.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self._roots, self._groups = list(state["roots"]), state["groups"]
        self._taxes_set = state["taxes"].copy()
        for name in _ARRAYS:
            setattr(self, f"_{name}", state[name].copy())
        if self._report is not None:
            self._report.load_state_dict(state["report"])

    def close(self) -> None:
        """Do nothing: there are no resources."""

    @property
    def _ended(self) -> np.ndarray:
        """Whether each game has ended, [n_envs] bool."""
        return np.asarray(self._collapsed | (self._month >= self._horizon))

    def _sustainable(self, stock: np.ndarray) -> np.ndarray:
        """Return the most that can be taken without a smaller stock next month, units, of the shape of `stock`."""
        return np.asarray(stock + -stock // self._growth)

    def _share(self) -> np.ndarray:
        """Return the sustainable share of a player now, units, [n_envs]."""
        return np.asarray(self._sustainable(self._stock) // self.spec.n_agents)

    def _shared_out(self, wanted: np.ndarray) -> np.ndarray:
        """Return what each player gets of what it wants, units, both [n_envs, n_agents]."""
        taken = wanted.copy()
        for game in np.flatnonzero(wanted.sum(axis=1) > self._stock).tolist():
            taken[game] = shared_out(wanted[game], int(self._stock[game]), self._generator(game))
        return taken

    def _generator(self, game: int) -> np.random.Generator:
        """Return the generator of a game's month.

        It is a function of (root, game, episode, month), so that no draw depends on the other games."""
        own = self.spec.games_per_group(len(self._roots))  # games that share a root
        alike = own if len(self._roots) > 1 else self.spec.n_envs // self._groups
        key = [self._roots[game // own], self.place[0] + game % alike]
        counter = [0, int(self._month[game]), int(self._episode[game]), 0]
        philox = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64))
        return np.random.Generator(philox)

    def _settle(self, taken: np.ndarray, share: np.ndarray) -> Settlement:
        """Return what the harvests `taken` [n_envs, n_agents] pay, with the sustainable shares [n_envs]."""
        base = taken.astype(np.float32)
        taxed = np.stack([taken, np.maximum(taken - share[:, None], 0)], axis=-1)
        jacobian = (taxed.mean(axis=1, keepdims=True) - taxed).astype(np.float32)
        collected = (taxed.sum(axis=1) * self._taxes_set).sum(axis=-1)
        return Settlement(base, jacobian, {"tax_collected": collected})

    def _observe(self) -> Observation:
        shape = self._taken.shape
        seen: Observation = {}
        if "vector" in self.spec.observation:
            common = [self._stock[:, None] / self._capacity]
            common += [self._month[:, None] / self._horizon] if self._show_end else []
            common += [self._taken / self._capacity]
            repeated = np.repeat(np.concatenate(common, axis=1)[:, None], shape[1], axis=1)
            own = self._taken[..., None] / self._capacity
            seen["vector"] = np.concatenate([repeated, own], axis=-1).astype(np.float32).clip(0.0, 1.0)
        if "text" in self.spec.observation:
            seen["text"] = self._told()
        if "action_mask" in self.spec.observation:
            fits = self._amounts <= np.maximum(self._stock, 0)[:, None]
            seen["action_mask"] = np.repeat(fits[:, None], shape[1], axis=1)
        if "mechanism" in self.spec.observation:
            seen["mechanism"] = np.repeat(self._taxes_set.astype(np.float32)[:, None], shape[1], axis=1)
        return seen

    def _told(self) -> np.ndarray:
        """Return what each player is told, [n_envs, n_agents] object."""
        texts = np.empty(self._taken.shape, dtype=object)
        share = self._share()
        for game, agent in np.ndindex(*texts.shape):
            texts[game, agent] = self._text.told(
                agent,
                stock=int(self._stock[game]),
                month=int(self._month[game]),
                share=int(share[game]),
                taken=self._taken[game].tolist(),
                wanted=int(self._wanted[game, agent]),
                total=int(self._total[game, agent]),
                more={} if self._report is None else self._report.told(game, agent, self._taxes_set[game]),
            )
        return texts


def shared_out(wanted: np.ndarray, stock: int, generator: np.random.Generator) -> np.ndarray:
    """Return what each player gets of a stock that is smaller than what all want, units, both [n_agents].

    Each unit goes to a player drawn uniformly from those who still want more. Players arrive as Poisson processes of
    one rate until they have what they want, so the next to arrive is each of them with equal probability. The first
    `stock` arrivals get the units.
    """
    units = np.arange(min(int(wanted.max()), stock))
    times = generator.exponential(size=(len(wanted), len(units))).cumsum(axis=1)
    arrivals = np.where(units < wanted[:, None], times, np.inf).ravel()
    served = np.argsort(arrivals, kind="stable")[:stock] // max(len(units), 1)
    return np.bincount(served, minlength=len(wanted))


def _check(amounts: tuple[int, ...], capacity: int, growth: int, collapse_below: int) -> None:
    """Raise ConfigError if the amounts are no actions, or the stock cannot be kept."""
    if not amounts or amounts[0] != 0 or any(a >= b for a, b in pairwise(amounts)):
        raise ConfigError(f"amounts={list(amounts)} must begin with 0 and increase, e.g. [0, 5, 10, 20]")
    if amounts[-1] > capacity:
        raise ConfigError(f"an action takes {amounts[-1]} units of {capacity}; most and amounts are at most capacity")
    if growth * collapse_below > capacity:
        raise ConfigError(
            f"a stock of {capacity} that is kept would collapse: collapse_below={collapse_below} must be at most "
            f"capacity / growth = {capacity // growth}"
        )
