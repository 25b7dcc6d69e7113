"""Contextual Escape Room: agents must share out unpleasant work so that some can leave for a reward.

The game after the Large Legislative Models experiments (Hegazy et al., 2024, arXiv 2410.08345), which extends the
Escape Room of Yang et al. (2020, arXiv 2006.06051) by a context: which lever works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.objectives import SUM
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec, Parameter, ParameterSpace

DOOR_REWARD = 10.0
MOVE_REWARD = -1.0

_TILE = 56  # pixels
_WALL, _FLOOR = (40, 42, 48), (226, 222, 212)
_LEVER, _WORKING_LEVER = (150, 150, 150), (214, 164, 32)
_DOOR_CLOSED, _DOOR_OPEN, _START = (150, 60, 50), (70, 160, 90), (120, 150, 190)


class EscapeRoom:
    """`n_envs` games in lock step, as arrays.

    **World.** Places 0 .. n_levers - 1 are levers, then the door, then the start. Every place can be reached from every
    other in one step. All agents begin at the start.

    **Context.** One lever works. It is drawn for each new episode, or set with `set_context`, or pinned.

    **Actions.** The place to be at next; staying is choosing the place one is at. All move at once.

    **Door.** Open in a step if at least `min_at_lever` agents are at the working lever after moving.

    **Reward before the mechanism.** Door open: +10 for each agent at the door, -1 for every other. Door closed: -1 for
    an agent that moved, 0 for one that stayed.

    **Mechanism.** One number in [0, `max_incentive`] for each place, paid at every step to each agent that is there
    after moving.

    **Observation.** `vector` [n_envs, n_agents, n_agents * n_places + n_levers] float32: the place of each agent and
    the context, one-hot, the same for all agents. `mechanism` [n_envs, n_agents, n_places] float32 if it is shown.

    **End.** Truncated after `horizon` steps; no other end. With 5 agents, 3 levers, 2 needed and 5 steps, the most that
    an episode can bring all agents together, before incentives, is 5 * (3 * 10 - 2) = 140.

    Args:
        seeds: the environment's node of the seed tree.
        n_envs: games in lock step.
        n_agents: agents a game.
        n_levers: levers a game, as many as contexts.
        min_at_lever: agents that must be at the working lever for the door to be open.
        horizon: steps an episode.
        fixed_context: index of the lever that always works; None: any may. Pinned, it is the only context there is.
        mechanism: whether a principal can pay incentives.
        max_incentive: the most that each can be, reward per step.
        show_mechanism: whether agents see the incentives.
        stay_penalty: whether the -1 of an open door also meets agents that stayed where they were.
        observation_divisor: what the `vector` channel is divided by.
        name_lever: contexts are called after the lever that works; else `room_0`, `room_1`, ..., dealt to the levers in
            an order that `seeds` decide, so that a principal that reads must find out.
    """

    spec: EnvSpec

    @staticmethod
    def plays_in_rows(options: Mapping[str, Any]) -> bool:
        """Whether the games of several runs can be played as one batch, from the options."""
        return True

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Bytes that one agent observes in a step, from the options."""
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
        show_mechanism: bool = False,
        stay_penalty: bool = True,
        observation_divisor: PositiveFloat = 1.0,
        name_lever: bool = True,
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
            show_mechanism=show_mechanism,
            stay_penalty=stay_penalty,
            observation_divisor=observation_divisor,
            name_lever=name_lever,
        )
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
        places = (*(f"lever_{i}" for i in range(n_levers)), "door", "start")
        channels = {"vector": Channel((n_agents * n_places + n_levers,), "float32", 0.0, 1.0 / observation_divisor)}
        if show_mechanism:
            channels["mechanism"] = Channel((n_places,), "float32", 0.0, max_incentive)
        dealt = range(n_levers) if name_lever else seeds.numpy("names").permutation(n_levers).tolist()
        called = [f"lever_{i}_works" if name_lever else f"room_{i}" for i in dealt]
        metrics: dict[str, Aggregate] = {f"agents_at_{place}": "mean" for place in places}
        self.spec = EnvSpec(
            name="escape_room",
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=n_places,
            action_names=tuple(f"go_to_{place}" for place in places),
            horizon=horizon,
            mechanism=_mechanism(places, max_incentive) if mechanism else None,
            contexts=tuple(called[i] for i in range(n_levers) if fixed_context in (None, i)),
            objective=SUM,
            metrics={**metrics, "door_open": "mean", "incentives_paid": "sum"},
            exposure=mechanism,
            facts={"min_at_lever": min_at_lever, "stay_penalty": stay_penalty, "names_lever": name_lever},
        )
        self._groups = 1
        self._rngs = [seeds.numpy("contexts")]  # one for each equal group of games
        # Levers of the episodes to come, [n_envs]; None: drawn.
        self._next_context = None if fixed_context is None else np.full(n_envs, fixed_context)
        self._incentives = np.zeros((n_envs, n_places))
        self._place = np.full((n_envs, n_agents), self._start)
        self._lever = np.full(n_envs, -1)  # the lever that works; -1: never reset
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def resized(self, n_envs: int) -> EscapeRoom:
        """Return the same environment with so many games, none of them begun."""
        return self._resized(n_envs=n_envs)

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere); `seed` reseeds the draw of contexts, a
        sequence that of each of so many equal groups of games (`VecEnv.reset`)."""
        if seed is not None:
            several = seed if isinstance(seed, Sequence) else [seed]
            self._rngs = [Seeds(each).numpy("contexts") for each in several]
        chosen = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        # A draw for every game, also those that go on, so that what one game draws does not hang on the others.
        groups = len(self._rngs)
        size = self.spec.games_per_group(groups if groups > 1 else self._groups)
        drawn = np.concatenate([rng.integers(self._n_levers, size=size) for rng in self._rngs])
        drawn = np.tile(drawn, self.spec.n_envs // len(drawn))
        self._lever[chosen] = drawn[chosen] if self._next_context is None else self._next_context[chosen]
        self._place[chosen] = self._start
        self._time[chosen] = 0
        self._ended[chosen] = False
        return self._observe()

    def step(self, action: Array) -> Step:
        """Move all agents to the places `action` [n_envs, n_agents]; games that have ended stay as they are.

        Raises:
            ValueError: an action is not a place, or a game was never reset.
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

        info = {name: counts[:, i] * active for i, name in enumerate(self.spec.metrics) if i < self._n_places}
        info["door_open"] = door_open & active
        info["incentives_paid"] = paid.sum(axis=1)
        return Step(
            observation=self._observe(),
            reward=(base + paid).astype(np.float32),
            base_reward=base.astype(np.float32),
            terminated=np.zeros(n_envs, dtype=bool),
            truncated=self._ended.copy(),
            info={name: value.astype(np.float32) for name, value in info.items()},
            exposure=self._exposure(active) if self.spec.exposure else None,
        )

    def pair_games(self, groups: int) -> None:
        """Draw the same contexts in each of `groups` equal groups of games."""
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        """Pay the incentives `values`, [n_places] in all games or [n_envs, n_places] in each, from the next step on.

        Raises:
            ConfigError: a number is out of bounds, or the environment was built with mechanism=false.
        """
        if self.spec.mechanism is None:
            raise ConfigError("escape_room was built with mechanism=false, so it takes no incentives")
        self._incentives = np.broadcast_to(self.spec.mechanism.check(values), self._incentives.shape).copy()

    def set_context(self, context: int | np.ndarray) -> None:
        """Let the lever of `spec.contexts[context]` work in all games, or [n_envs] of them each in its own, from their
        next reset on."""
        chosen = np.broadcast_to(context, self.spec.n_envs)
        for each in np.unique(chosen):
            if not 0 <= each < len(self.spec.contexts):
                raise ConfigError(f"context {each} does not exist; there are {', '.join(self.spec.contexts)}")
        if self._fixed_context is None:
            self._next_context = chosen.copy()

    def render(self, index: int = 0) -> np.ndarray:
        """Game `index` as [2 * 56, max(n_levers, 2) * 56, 3] uint8: levers above (the working one golden), start and
        door (green when open) below, an agent a dot."""
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
        }

    def load_state_dict(self, state: State) -> None:
        # States saved by an earlier version have one.
        saved = state.get("rngs") or [state["rng"]]
        self._rngs = [np.random.default_rng() for _ in saved]
        for rng, each in zip(self._rngs, saved, strict=True):
            rng.bit_generator.state = each
        self._next_context = state["next_context"]
        self._incentives = state["incentives"].copy()
        self._place = state["place"].copy()
        self._lever = state["lever"].copy()
        self._time = state["time"].copy()
        self._ended = state["ended"].copy()

    def close(self) -> None:
        """Nothing to release."""

    def _counts(self) -> np.ndarray:
        """Agents at each place, [n_envs, n_places]."""
        n_envs = len(self._place)
        cells = self._place + self._n_places * np.arange(n_envs)[:, None]
        return np.bincount(cells.ravel(), minlength=n_envs * self._n_places).reshape(n_envs, self._n_places)

    def _exposure(self, active: np.ndarray) -> np.ndarray:
        """How much each agent's reward grows with each incentive, [n_envs, n_agents, n_places] float32: one where it
        is, in games that go on."""
        here = self._place[:, :, None] == np.arange(self._n_places)
        exposure: np.ndarray = (here & active[:, None, None]).astype(np.float32)
        return exposure

    def _door_open(self, counts: np.ndarray) -> np.ndarray:
        """Whether the working lever has enough agents, [n_envs]."""
        at_lever = np.take_along_axis(counts, self._lever[:, None], axis=1)[:, 0]
        return (at_lever >= self._min_at_lever) & (self._lever >= 0)

    def _observe(self) -> Observation:
        n_envs, n_agents = self._place.shape
        value = np.float32(1.0 / self._divisor)
        vector = np.zeros((n_envs, n_agents * self._n_places + self._n_levers), dtype=np.float32)
        np.put_along_axis(vector, self._place + self._n_places * np.arange(n_agents), value, axis=1)
        # A game that was never reset has no context yet, and shows none.
        known = np.flatnonzero(self._lever >= 0)
        vector[known, n_agents * self._n_places + self._lever[known]] = value
        observation = {"vector": np.repeat(vector[:, None], n_agents, axis=1)}
        if "mechanism" in self.spec.observation:
            observation["mechanism"] = np.repeat(self._incentives.astype(np.float32)[:, None], n_agents, axis=1)
        return observation

    def _draw_agents(self, tile: np.ndarray, here: np.ndarray) -> None:
        """Dots at fixed positions, so that each agent can be followed from picture to picture."""
        side = int(np.ceil(np.sqrt(len(here))))
        pitch = (_TILE - 16) / side
        y, x = np.mgrid[:_TILE, :_TILE]
        for agent in np.flatnonzero(here):
            centre_y, centre_x = (8 + pitch * (k + 0.5) for k in divmod(int(agent), side))
            dot = (y + 0.5 - centre_y) ** 2 + (x + 0.5 - centre_x) ** 2 <= (0.42 * pitch) ** 2
            tile[dot] = _agent_colour(int(agent), len(here))


def _mechanism(places: tuple[str, ...], highest: float) -> ParameterSpace:
    meaning = "incentive paid to each agent that is at {} after moving"
    parameters = (Parameter(p, 0.0, highest, "reward per step", meaning.format(p)) for p in places)
    return ParameterSpace("incentives", tuple(parameters))


def _agent_colour(agent: int, n_agents: int) -> np.ndarray:
    """Evenly spaced hues."""
    phase = 2 * np.pi * (agent / n_agents + np.array([0.0, -1 / 3, 1 / 3]))
    return np.asarray(np.clip(120 + 110 * np.cos(phase), 0, 255), dtype=np.uint8)
