"""Contextual Escape Room: some agents must hold a lever at a cost so that others can leave for a reward.

The game follows the Large Legislative Models experiments (Hegazy et al., 2024, arXiv 2410.08345). They extend the
Escape Room of Yang et al. (2020, arXiv 2006.06051) by a context, the lever that works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec, Parameter, ParameterSpace
from llmrl.core.welfare_measures import SUM
from llmrl.envs.env_errors import guarded
from llmrl.envs.escape_room_text import DOOR_REWARD, MOVE_REWARD, game_text, told
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import charge_equally

_TILE = 56  # pixels
_WALL, _FLOOR = (40, 42, 48), (226, 222, 212)
_LEVER, _WORKING_LEVER = (150, 150, 150), (214, 164, 32)
_DOOR_CLOSED, _DOOR_OPEN, _START = (150, 60, 50), (70, 160, 90), (120, 150, 190)


class EscapeRoom:
    """A vectorised environment of `n_envs` escape rooms.

    **World.** Places 0 .. n_levers - 1 are levers, then the door, then the start. Every place can be reached from every
    other in one step. All agents begin at the start.

    **Context.** One lever works. It is drawn for each new episode, or set with `set_context`, or fixed.

    **Actions.** The next place; an agent stays by choosing its current place. All agents move at once.

    **Door.** Open in a step if at least `min_at_lever` agents are at the working lever after moving.

    **Reward before the mechanism.** Door open: +10 for each agent at the door, -1 for every other agent (without
    `stay_penalty`, only for those that moved). Door closed: -1 for an agent that moved, 0 for an agent that stayed.

    **Mechanism.** One number in [0, `max_incentive`] for each place, paid at every step to each agent that is there
    after moving.

    **Observation.** `vector` [n_envs, n_agents, n_agents * n_places + n_levers] float32: the place of each agent and
    the context, one-hot, the same for all agents. `mechanism` [n_envs, n_agents, n_places] float32 if it is shown.
    `text` [n_envs, n_agents] if it is observed: the same in words (`escape_room_text`).

    **End.** Truncated after `horizon` steps; no other end. With 5 agents, 3 levers, 2 needed and 5 steps, the maximum
    total return of an episode before incentives is 5 * (3 * 10 - 2) = 140.

    Args:
        seeds: the environment's node of the seed tree.
        n_envs: games in lock step.
        n_agents: agents per game.
        n_levers: levers per game, and number of contexts.
        min_at_lever: agents that must be at the working lever for the door to be open.
        horizon: steps per episode.
        fixed_context: index of the lever that always works, which is then the only context; None: any lever may work.
        mechanism: whether a principal can pay incentives.
        max_incentive: upper bound of each incentive, reward per step.
        budget_balanced: whether all agents pay for the incentives of a step in equal shares; else nobody pays
            (published).
        show_mechanism: whether agents observe the incentives.
        observe: channels that agents observe, of `vector` and `text`.
        stay_penalty: whether the -1 while the door is open also applies to agents that stayed where they were.
        observation_divisor: divisor of the `vector` channel.
        name_lever: whether contexts are named after the working lever. Otherwise they are called `room_0`, `room_1`,
            ..., in an order that depends on `seeds`, so that a language-model principal must discover the lever.

    Attributes:
        place: (i, n): the first game draws the numbers of game i of n (`llmrl.loops.independent_games.OneGame`).

    Raises:
        ConfigError: parameters that contradict each other.
    """

    spec: EnvSpec
    place = (0, 1)

    @staticmethod
    def plays_in_rows(options: Mapping[str, Any]) -> bool:
        """Return whether, under these options, the games of several runs can be played as one batch."""
        return True

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Return the size of one agent's observation of a step under these options, bytes."""
        levers = options.get("n_levers", 3)
        shown = levers + 2 if options.get("show_mechanism", False) else 0
        return int(4 * (options.get("n_agents", 5) * (levers + 2) + levers + shown))

    def __init__(
        self,
        seeds: Seeds,
        n_envs: PositiveInt = 16,
        n_agents: PositiveInt = 5,
        n_levers: PositiveInt = 3,
        min_at_lever: PositiveInt = 2,
        horizon: PositiveInt = 5,
        fixed_context: NonNegativeInt | None = None,
        mechanism: bool = True,
        max_incentive: PositiveFloat = 5.0,
        budget_balanced: bool = False,
        show_mechanism: bool = False,
        stay_penalty: bool = True,
        observation_divisor: PositiveFloat = 1.0,
        name_lever: bool = True,
        observe: Sequence[Literal["vector", "text"]] = ("vector",),
    ) -> None:
        self._resized = partial(
            EscapeRoom,
            seeds,
            n_agents=n_agents,
            n_levers=n_levers,
            min_at_lever=min_at_lever,
            horizon=horizon,
            fixed_context=fixed_context,
            mechanism=mechanism,
            max_incentive=max_incentive,
            budget_balanced=budget_balanced,
            show_mechanism=show_mechanism,
            stay_penalty=stay_penalty,
            observation_divisor=observation_divisor,
            name_lever=name_lever,
            observe=observe,
        )
        if not observe:
            raise ConfigError("env.observe is empty: agents need something to see, e.g. observe=[vector]")
        if min_at_lever >= n_agents:
            raise ConfigError(
                f"min_at_lever={min_at_lever} leaves none of {n_agents} agents for the door; at most {n_agents - 1}"
            )
        if fixed_context is not None and not 0 <= fixed_context < n_levers:
            raise ConfigError(f"fixed_context={fixed_context} is not a lever; 0 to {n_levers - 1} are, or null")
        if show_mechanism and not mechanism:
            raise ConfigError("show_mechanism=true needs mechanism=true: there is nothing to show")
        self._min_at_lever, self._horizon = min_at_lever, horizon
        self._n_levers, self._door, self._start = n_levers, n_levers, n_levers + 1
        self._n_places = n_places = n_levers + 2
        self._fixed_context, self._stay_penalty, self._divisor = fixed_context, stay_penalty, observation_divisor
        self._budget_balanced = budget_balanced
        places = (*(f"lever_{i}" for i in range(n_levers)), "door", "start")
        offered = {
            "vector": Channel((n_agents * n_places + n_levers,), "float32", 0.0, 1.0 / observation_divisor),
            "text": Channel((), "object"),
        }
        channels = {name: channel for name, channel in offered.items() if name in observe}
        if show_mechanism:
            channels["mechanism"] = Channel((n_places,), "float32", 0.0, max_incentive)
        dealt = range(n_levers) if name_lever else seeds.numpy("names").permutation(n_levers).tolist()
        called = [f"lever_{i}_works" if name_lever else f"room_{i}" for i in dealt]
        metrics: dict[str, Aggregate] = {f"agents_at_{place}": "mean" for place in places}
        space = _mechanism(places, max_incentive, budget_balanced) if mechanism else None
        self.spec = EnvSpec(
            name="escape_room",
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=n_places,
            action_names=tuple(f"go_to_{place}" for place in places),
            horizon=horizon,
            mechanism=space,
            contexts=tuple(called[i] for i in range(n_levers) if fixed_context in (None, i)),
            objective=SUM,
            metrics={**metrics, "door_open": "mean", "incentives_paid": "sum"},
            has_reward_jacobian=mechanism,
            text=game_text(
                places, n_agents, min_at_lever, horizon, stay_penalty, space, show_mechanism, budget_balanced
            )
            if "text" in observe
            else None,
            facts={
                "min_at_lever": min_at_lever,
                "stay_penalty": stay_penalty,
                "names_lever": name_lever,
                "budget_balanced": budget_balanced,
            },
        )
        self._report: MechanismReport | None = None
        if space is not None and "text" in observe:
            self._report = MechanismReport(space, n_envs, n_agents, show_mechanism)
        self._names, self._observed = places, tuple(observe)
        self._groups = 1
        self._rngs = [seeds.numpy("contexts")]  # one for each equal group of games
        # Working levers of the next episodes, [n_envs]; None: drawn.
        self._next_context = None if fixed_context is None else np.full(n_envs, fixed_context)
        self._incentives = np.zeros((n_envs, n_places))
        self._place = np.full((n_envs, n_agents), self._start)
        self._lever = np.full(n_envs, -1)  # the lever that works; -1: never reset
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def resized(self, n_envs: int) -> EscapeRoom:
        """Return the same environment with `n_envs` games, none of them begun."""
        return self._resized(n_envs=n_envs)

    def one_game(self) -> EscapeRoom:
        """Return the same environment with a single independent game."""
        return guarded(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the draw of contexts; a sequence seeds equal groups of games separately (`VecEnv.reset`)."""
        if seed is not None:
            several = seed if isinstance(seed, Sequence) else [seed]
            self._rngs = [Seeds(each).numpy("contexts") for each in several]
        chosen = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        # Draws for every game, even those that go on, so that a game's draws do not depend on the other games.
        groups = len(self._rngs)
        size = self.spec.games_per_group(groups if groups > 1 else self._groups)
        first = self.place[0]
        drawn = np.concatenate([rng.integers(self._n_levers, size=first + size)[first:] for rng in self._rngs])
        drawn = np.tile(drawn, self.spec.n_envs // len(drawn))
        self._lever[chosen] = drawn[chosen] if self._next_context is None else self._next_context[chosen]
        self._place[chosen] = self._start
        self._time[chosen] = 0
        self._ended[chosen] = False
        if self._report is not None:
            self._report.begin(chosen)
        return self._observe()

    def step(self, action: Array) -> Step:
        """Move all agents to the places `action` [n_envs, n_agents]. Games that have ended stay as they are.

        Raises:
            ValueError: wrong shape, an action is no place, or a game was never reset.
        """
        n_envs, n_agents = self._place.shape
        target = np.asarray(action)
        if target.shape != (n_envs, n_agents):
            raise ValueError(f"actions must be [{n_envs}, {n_agents}], got an array of shape {list(target.shape)}")
        if target.min() < 0 or target.max() >= self._n_places:
            raise ValueError(f"actions must be 0 to {self._n_places - 1}, got {target.min()} to {target.max()}")
        if (self._lever < 0).any():
            raise ValueError("reset() must be called before step()")
        active = ~self._ended
        moved = (target != self._place) & active[:, None]
        self._place = np.where(active[:, None], target, self._place)
        self._time += active
        self._ended |= self._time >= self._horizon

        counts = self._counts()
        door_open = self._door_open(counts)
        at_door = self._place == self._door
        fined = np.ones_like(moved) if self._stay_penalty else moved
        when_open = np.where(at_door, DOOR_REWARD, np.where(fined, MOVE_REWARD, 0.0))
        when_closed = np.where(moved, MOVE_REWARD, 0.0)
        base = np.where(door_open[:, None], when_open, when_closed) * active[:, None]
        paid = np.take_along_axis(self._incentives, self._place, axis=1) * active[:, None]
        net = charge_equally(paid) if self._budget_balanced else paid

        info = {name: counts[:, i] * active for i, name in enumerate(self.spec.metrics) if i < self._n_places}
        info["door_open"] = door_open & active
        info["incentives_paid"] = paid.sum(axis=1)
        reward_jacobian = self._reward_jacobian(active) if self.spec.has_reward_jacobian else None
        if self._report is not None:
            self._report.settle(base, reward_jacobian, self._incentives, active, {})
        return Step(
            observation=self._observe(),
            reward=(base + net).astype(np.float32),
            base_reward=base.astype(np.float32),
            terminated=np.zeros(n_envs, dtype=bool),
            truncated=self._ended.copy(),
            info={name: value.astype(np.float32) for name, value in info.items()},
            reward_jacobian=reward_jacobian,
        )

    def pair_games(self, groups: int) -> None:
        """Draw the same contexts in each of `groups` equal groups of games."""
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        """Set the incentives of all games, [n_places], or of each game, [n_envs, n_places], from the next step on.

        Raises:
            ConfigError: a number is out of bounds, or the environment was built with mechanism=false.
        """
        if self.spec.mechanism is None:
            raise ConfigError("escape_room was built with mechanism=false, so it takes no incentives")
        self._incentives = np.broadcast_to(self.spec.mechanism.check(values), self._incentives.shape).copy()

    def set_context(self, context: int | np.ndarray) -> None:
        """Set the context (index into `spec.contexts`) of all games, or of each, [n_envs], from the next reset on.

        Raises:
            ConfigError: there is no such context.
        """
        chosen = np.broadcast_to(context, self.spec.n_envs)
        for each in np.unique(chosen):
            if not 0 <= each < len(self.spec.contexts):
                raise ConfigError(f"context {each} does not exist; there are {', '.join(self.spec.contexts)}")
        if self._fixed_context is None:
            self._next_context = chosen.copy()

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [2 * 56, max(n_levers, 2) * 56, 3] uint8.

        Levers are in the upper row (the working one golden), start and door (green if open) below; agents are dots."""
        columns = max(self._n_levers, 2)
        image = np.full((2 * _TILE, columns * _TILE, 3), _WALL, dtype=np.uint8)
        counts = self._counts()
        for place in range(self._n_places):
            row, column = (0, place) if place < self._n_levers else (1, columns - 1 if place == self._door else 0)
            tile = image[row * _TILE : (row + 1) * _TILE, column * _TILE : (column + 1) * _TILE]
            colour = {self._door: _DOOR_CLOSED, self._start: _START}.get(place, _LEVER)
            if place == self._lever[index]:
                colour = _WORKING_LEVER
            if place == self._door and self._door_open(counts)[index]:
                colour = _DOOR_OPEN
            tile[2:-2, 2:-2] = colour
            tile[8:-8, 8:-8] = _FLOOR
            self._draw_agents(tile, self._place[index] == place)
        return image

    def state_dict(self) -> State:
        return {
            "rngs": [rng.bit_generator.state for rng in self._rngs],
            "next_context": self._next_context,
            "incentives": self._incentives.copy(),
            "place": self._place.copy(),
            "lever": self._lever.copy(),
            "time": self._time.copy(),
            "ended": self._ended.copy(),
            "report": None if self._report is None else self._report.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        saved = state["rngs"]
        self._rngs = [np.random.default_rng() for _ in saved]
        for rng, each in zip(self._rngs, saved, strict=True):
            rng.bit_generator.state = each
        self._next_context = state["next_context"]
        self._incentives = state["incentives"].copy()
        self._place = state["place"].copy()
        self._lever = state["lever"].copy()
        self._time = state["time"].copy()
        self._ended = state["ended"].copy()
        if self._report is not None:
            self._report.load_state_dict(state["report"])

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _counts(self) -> np.ndarray:
        """Return the number of agents at each place, [n_envs, n_places]."""
        n_envs = len(self._place)
        cells = self._place + self._n_places * np.arange(n_envs)[:, None]
        return np.bincount(cells.ravel(), minlength=n_envs * self._n_places).reshape(n_envs, self._n_places)

    def _reward_jacobian(self, active: np.ndarray) -> np.ndarray:
        """Return the derivative of each agent's reward by each incentive, [n_envs, n_agents, n_places] float32: 1 for
        the agent's place in games that go on, else 0; less the mean over agents if they pay for incentives."""
        here = self._place[:, :, None] == np.arange(self._n_places)
        reward_jacobian: np.ndarray = (here & active[:, None, None]).astype(np.float32)
        return charge_equally(reward_jacobian) if self._budget_balanced else reward_jacobian

    def _door_open(self, counts: np.ndarray) -> np.ndarray:
        """Return whether the working lever has enough agents, [n_envs] bool."""
        at_lever = np.take_along_axis(counts, self._lever[:, None], axis=1)[:, 0]
        return (at_lever >= self._min_at_lever) & (self._lever >= 0)

    def _observe(self) -> Observation:
        n_envs, n_agents = self._place.shape
        value = np.float32(1.0 / self._divisor)
        vector = np.zeros((n_envs, n_agents * self._n_places + self._n_levers), dtype=np.float32)
        np.put_along_axis(vector, self._place + self._n_places * np.arange(n_agents), value, axis=1)
        # A game that was never reset has no context yet.
        known = np.flatnonzero(self._lever >= 0)
        vector[known, n_agents * self._n_places + self._lever[known]] = value
        observation: Observation = {}
        if "vector" in self._observed:
            observation["vector"] = np.repeat(vector[:, None], n_agents, axis=1)
        if "text" in self._observed:
            observation["text"] = self._texts()
        if "mechanism" in self.spec.observation:
            observation["mechanism"] = np.repeat(self._incentives.astype(np.float32)[:, None], n_agents, axis=1)
        return observation

    def _texts(self) -> np.ndarray:
        """Return what each agent is told, [n_envs, n_agents]; nothing in games that have ended."""
        texts = np.full(self._place.shape, "", dtype=object)
        for game, agent in np.argwhere(~self._ended[:, None] & np.ones_like(self._place, dtype=bool)).tolist():
            more = {} if self._report is None else self._report.told(game, agent, self._incentives[game])
            places = self._place[game].tolist()
            texts[game, agent] = told(
                self._names, places, agent, int(self._lever[game]), int(self._horizon - self._time[game]), more
            )
        return texts

    def _draw_agents(self, tile: np.ndarray, here: np.ndarray) -> None:
        """Draw agents as dots, each at a fixed position in its tile, so that it can be followed between frames."""
        side = int(np.ceil(np.sqrt(len(here))))
        pitch = (_TILE - 16) / side
        y, x = np.mgrid[:_TILE, :_TILE]
        for agent in np.flatnonzero(here):
            centre_y, centre_x = (8 + pitch * (k + 0.5) for k in divmod(int(agent), side))
            dot = (y + 0.5 - centre_y) ** 2 + (x + 0.5 - centre_x) ** 2 <= (0.42 * pitch) ** 2
            tile[dot] = _agent_colour(int(agent), len(here))


def _mechanism(places: tuple[str, ...], highest: float, budget_balanced: bool) -> ParameterSpace:
    meaning = "incentive paid to each agent that is at {} after moving"
    effect = "{{value:.3g}} at {}"
    parameters = (
        Parameter(p, 0.0, highest, "reward per step", meaning.format(p), effect=effect.format(p)) for p in places
    )
    sentence = "Pays agents for each step {effects}" + ("; all agents pay for it equally." if budget_balanced else ".")
    return ParameterSpace("incentives", tuple(parameters), sentence=sentence)


def _agent_colour(agent: int, n_agents: int) -> np.ndarray:
    """Return an agent's colour, [3] uint8, from evenly spaced hues."""
    phase = 2 * np.pi * (agent / n_agents + np.array([0.0, -1 / 3, 1 / 3]))
    return np.asarray(np.clip(120 + 110 * np.cos(phase), 0, 255), dtype=np.uint8)
