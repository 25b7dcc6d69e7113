"""Contextual Escape Room: some agents must hold a lever at a cost so that others can leave and are rewarded.

The game is that of Large Legislative Models (Hegazy et al., 2024, arXiv 2410.08345). It extends the Escape Room of Yang
et al. (2020, arXiv 2006.06051) by a context: the lever that works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvDescription, EnvSpec, Parameter, ParameterSpace
from llmrl.core.welfare_measures import SUM
from llmrl.envs import mechanism_text
from llmrl.envs.array_games import ArrayGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import EQUAL_CHARGE_SENTENCE, charge_equally

DOOR_REWARD = 10.0
MOVE_REWARD = -1.0  # with `stay_penalty`, also of an agent that stays while the door is open


@dataclass(frozen=True)
class EscapeRoomSettings:
    """Options of `EscapeRoom`; meanings, units and ranges are in `conf/env/escape_room.yaml`.

    Raises:
        ConfigError: options contradict each other.
    """

    n_envs: PositiveInt
    n_agents: PositiveInt
    n_levers: PositiveInt
    min_agents_per_lever: PositiveInt
    horizon: PositiveInt
    fixed_context: NonNegativeInt | None
    mechanism: bool
    max_incentive: PositiveFloat
    budget_balanced: bool
    show_mechanism: bool
    stay_penalty: bool
    observation_divisor: PositiveFloat
    name_lever: bool
    observe: Annotated[Sequence[Literal["vector", "text"]], MinLen(1)]

    def __post_init__(self) -> None:
        if self.min_agents_per_lever >= self.n_agents:
            raise ConfigError(
                f"env.min_agents_per_lever={self.min_agents_per_lever} leaves none of {self.n_agents} agents for "
                f"the door; use at most {self.n_agents - 1}"
            )
        if self.fixed_context is not None and not 0 <= self.fixed_context < self.n_levers:
            raise ConfigError(
                f"env.fixed_context={self.fixed_context} is not a lever; use 0 to {self.n_levers - 1}, or null"
            )
        if self.show_mechanism and not self.mechanism:
            raise ConfigError("env.show_mechanism=true requires a mechanism; set env.mechanism=true")

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the levers, the door and the start, in the order of the actions."""
        return (*(f"lever_{i}" for i in range(self.n_levers)), "door", "start")


def describe_game(settings: EscapeRoomSettings, space: ParameterSpace | None) -> EnvDescription:
    """Return the description of the game that agents read before it begins.

    Args:
        settings: options of the game.
        space: space of the incentives that a planner sets; None: there are no incentives.
    """
    places, show_mechanism = settings.places, settings.show_mechanism
    penalized_players = "every other player" if settings.stay_penalty else "every other player that moved"
    base_reward_text = (
        f"while the door is open, {DOOR_REWARD:g} for each player at the door and {MOVE_REWARD:g} for "
        f"{penalized_players}; while it is closed, {MOVE_REWARD:g} for a player that moved and 0 for one that stayed"
    )
    reward_text = f"A step is rewarded like this: {base_reward_text}."
    if space is not None:
        sharing_sentence = EQUAL_CHARGE_SENTENCE if settings.budget_balanced else "Nobody pays for these payments."
        reward_text = mechanism_text.describe_rules(space, base_reward_text, sharing_sentence, show_mechanism)
    goal = (
        f"{settings.n_agents} players are in a room with {settings.n_levers} levers, a door and a start, where all "
        f"begin. In each of {settings.horizon} steps all choose at once where to be next; a player stays by choosing "
        f"its own place. One lever works. The door is open in a step if at least {settings.min_agents_per_lever} "
        "players are at the working lever after moving. "
        f"{reward_text} Only your own reward counts for you, over the whole episode."
    )
    observation_fields = [
        ("you_are_at", "your place"),
        ("working_lever", "the lever that works in this episode"),
        ("others_at", "how many other players are at each place, without empty ones"),
        ("steps_left", "steps until the episode is over"),
    ]
    mechanism_report: dict[str, Any] = {}
    if space is not None:
        observation_fields += mechanism_text.describe_report_fields(space, {}, show_mechanism)
        mechanism_report = mechanism_text.build_example_report(space, {}, show_mechanism)
    actions = tuple((f"go_to_{place}", f"be at {place} in the next step") for place in places)
    positions = [i % len(places) for i in range(settings.n_agents)]
    state = {"agent": 0, "lever": 0, "steps_left": settings.horizon}
    example = describe_observation(places, positions, **state, mechanism_report=mechanism_report)
    return EnvDescription(goal, tuple(observation_fields), actions, example=example)


def describe_observation(
    places: Sequence[str],
    positions: Sequence[int],
    agent: int,
    lever: int,
    steps_left: int,
    mechanism_report: Mapping[str, Any],
) -> str:
    """Return the observation of one agent as a JSON object.

    Args:
        places: names of all places.
        positions: index of each agent's place.
        agent: index of the observing agent.
        lever: index of the working lever.
        steps_left: steps until the end.
        mechanism_report: entries about the incentives (`MechanismReport.build_entries`).
    """
    other_positions = [place for i, place in enumerate(positions) if i != agent]
    counts = {name: other_positions.count(i) for i, name in enumerate(places) if i in other_positions}
    facts = {"you_are_at": places[positions[agent]], "working_lever": places[lever], "others_at": counts}
    return json.dumps({**facts, "steps_left": steps_left, **mechanism_report})


_TILE_SIZE = 56  # width and height of a place in frames, in pixels
_WALL_COLOR, _FLOOR_COLOR = (40, 42, 48), (226, 222, 212)
_LEVER_COLOR, _WORKING_LEVER_COLOR = (150, 150, 150), (214, 164, 32)
_CLOSED_DOOR_COLOR, _OPEN_DOOR_COLOR, _START_COLOR = (150, 60, 50), (70, 160, 90), (120, 150, 190)


class EscapeRoom(ArrayGames):
    """A vectorized environment of `n_envs` parallel copies (games) of the escape room.

    **Places.** 0 .. n_levers - 1 are levers, then follow the door and the start. Every place can be reached from every
    other in one step. All agents begin at the start.

    **Context.** One lever works. It is sampled for each episode, or set with `set_context` or `fixed_context`. Without
    `name_lever`, contexts are called `room_0`, `room_1`, ..., in an order that depends on the seeds, so that a
    language-model principal must discover the lever.

    **Actions.** The next place; an agent stays by choosing its current place. All agents move at once.

    **Door.** It is open in a step if at least `min_agents_per_lever` agents are at the working lever after moving.

    **Reward before the mechanism.** Door open: +10 for each agent at the door, -1 for every other agent (without
    `stay_penalty`, only for those that moved). Door closed: -1 for an agent that moved, 0 for an agent that stayed.

    **Mechanism.** One number in [0, `max_incentive`] for each place, paid at every step to each agent that is there
    after moving.

    **Observation.** `vector` [n_envs, n_agents, n_agents * n_places + n_levers] float32: the place of each agent and
    the context, one-hot, the same for all agents. `mechanism` [n_envs, n_agents, n_places] float32: the incentives,
    with `show_mechanism`. `text` [n_envs, n_agents]: JSON with the same facts (`describe_observation`).

    **End.** Truncated after `horizon` steps; no other end. With 5 agents, 3 levers, 2 needed and 5 steps, the maximum
    total return of an episode before incentives is 5 * (3 * 10 - 2) = 140.

    Args:
        settings: options of the game.
        seeds: seed tree of the environment.
    """

    _state_fields = ("_rngs", "_next_context", "_incentives", "_place", "_lever", "_time", "_ended", "_report")
    _stream_name = "contexts"
    _mechanism_field = "_incentives"

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Return the number of bytes of one agent's `vector` and `mechanism` in a step, given the options."""
        n_levers = options["n_levers"]
        n_mechanism_values = n_levers + 2 if options["show_mechanism"] else 0
        return int(4 * (options["n_agents"] * (n_levers + 2) + n_levers + n_mechanism_values))

    def __init__(self, settings: EscapeRoomSettings, seeds: Seeds) -> None:
        self.settings, self._seeds = settings, seeds
        n_envs, n_agents, n_levers, places = settings.n_envs, settings.n_agents, settings.n_levers, settings.places
        self._door_index, self._start_index = n_levers, n_levers + 1
        self._n_places = n_places = len(places)
        available_channels = {
            "vector": Channel((n_agents * n_places + n_levers,), "float32", 0.0, 1.0 / settings.observation_divisor),
            "text": Channel((), "object"),
        }
        channels = {name: channel for name, channel in available_channels.items() if name in settings.observe}
        if settings.show_mechanism:
            channels["mechanism"] = Channel((n_places,), "float32", 0.0, settings.max_incentive)
        contexts = [f"lever_{i}_works" for i in range(n_levers)]
        if not settings.name_lever:
            contexts = [f"room_{i}" for i in seeds.numpy("names").permutation(n_levers).tolist()]
        metrics: dict[str, Aggregate] = {f"agents_at_{place}": "mean" for place in places}
        space = build_incentive_space(settings) if settings.mechanism else None
        self.spec = EnvSpec(
            name="escape_room",
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=n_places,
            action_names=tuple(f"go_to_{place}" for place in places),
            horizon=settings.horizon,
            mechanism=space,
            contexts=tuple(contexts[i] for i in range(n_levers) if settings.fixed_context in (None, i)),
            objective=SUM,
            metrics={**metrics, "door_open": "mean", "incentives_paid": "sum"},
            has_reward_jacobian=settings.mechanism,
            text=describe_game(settings, space) if "text" in settings.observe else None,
            facts={
                "min_agents_per_lever": settings.min_agents_per_lever,
                "stay_penalty": settings.stay_penalty,
                "names_lever": settings.name_lever,
                "budget_balanced": settings.budget_balanced,
            },
        )
        self._report = (
            MechanismReport(space, n_envs, n_agents, settings.show_mechanism)
            if space is not None and "text" in settings.observe
            else None
        )
        self._reseed([(seeds, self._stream_name)])
        # Working levers of the next episodes, [n_envs]; None: they are sampled.
        self._next_context = None if settings.fixed_context is None else np.full(n_envs, settings.fixed_context)
        self._incentives = np.zeros((n_envs, n_places))
        self._place = np.full((n_envs, n_agents), self._start_index)
        self._lever = np.full(n_envs, -1)  # the lever that works; -1: the game was never reset
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)

    def resized(self, n_envs: int) -> Self:
        """Return a new environment with the same options and `n_envs` games, none of them reset yet."""
        return type(self)(replace(self.settings, n_envs=n_envs), self._seeds)

    def make_single_game(self) -> EscapeRoom:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(self.resized(1))

    @property
    def _started_mask(self) -> np.ndarray:
        return np.asarray(self._lever >= 0)

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        (levers,) = self._sample(lambda rng, n: (rng.integers(self.settings.n_levers, size=n),))
        self._lever[reset_mask] = levers[reset_mask] if self._next_context is None else self._next_context[reset_mask]
        self._place[reset_mask] = self._start_index
        self._time[reset_mask] = 0
        self._ended[reset_mask] = False
        if self._report is not None:
            self._report.clear(reset_mask)

    def step(self, action: Array) -> Step:
        """Move all agents to the places `action` [n_envs, n_agents]. Games that have ended do not change.

        Raises:
            ValueError: the shape is wrong, an action is out of range, or a game was never reset.
        """
        target_places = self._check_actions(action)
        active = ~self._ended
        moves = (target_places != self._place) & active[:, None]
        self._place = np.where(active[:, None], target_places, self._place)
        self._time += active
        self._ended |= self._time >= self.settings.horizon

        counts = self._count_agents()
        door_open = self._is_door_open(counts)
        is_at_door = self._place == self._door_index
        is_penalized = np.ones_like(moves) if self.settings.stay_penalty else moves
        reward_if_open = np.where(is_at_door, DOOR_REWARD, np.where(is_penalized, MOVE_REWARD, 0.0))
        reward_if_closed = np.where(moves, MOVE_REWARD, 0.0)
        base_reward = np.where(door_open[:, None], reward_if_open, reward_if_closed) * active[:, None]
        incentives = np.take_along_axis(self._incentives, self._place, axis=1) * active[:, None]
        net_incentives = charge_equally(incentives) if self.settings.budget_balanced else incentives

        info = {name: counts[:, i] * active for i, name in enumerate(self.spec.metrics) if i < self._n_places}
        info |= {"door_open": door_open & active, "incentives_paid": incentives.sum(axis=1)}
        reward_jacobian: np.ndarray | None = None
        if self.spec.has_reward_jacobian:
            # 1 for the agent's place in games in progress, else 0. If agents pay for incentives equally, the mean over
            # agents is subtracted.
            occupancy = self._place[:, :, None] == np.arange(self._n_places)
            reward_jacobian = (occupancy & active[:, None, None]).astype(np.float32)
            reward_jacobian = charge_equally(reward_jacobian) if self.settings.budget_balanced else reward_jacobian
        if self._report is not None:
            self._report.record(base_reward, reward_jacobian, self._incentives, active, {})
        reward, terminated = base_reward + net_incentives, np.zeros(len(active), dtype=bool)
        return self._build_step(reward, base_reward, terminated, self._ended, info, reward_jacobian)

    def set_context(self, context: int | np.ndarray) -> None:
        """Set the context (index in `spec.contexts`) of all games or each [n_envs] from the next reset on if not fixed.

        Raises:
            ConfigError: the context does not exist.
        """
        contexts = np.broadcast_to(context, self.spec.n_envs)
        for index in np.unique(contexts):
            if not 0 <= index < len(self.spec.contexts):
                raise ConfigError(f"context {index} does not exist; use an index into {', '.join(self.spec.contexts)}")
        if self.settings.fixed_context is None:
            self._next_context = contexts.copy()

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [2 * 56, max(n_levers, 2) * 56, 3] uint8.

        Upper row: levers (golden: the working one). Lower row: start, and door (green if open). Agents are dots.
        """
        n_columns = max(self.settings.n_levers, 2)
        image = np.full((2 * _TILE_SIZE, n_columns * _TILE_SIZE, 3), _WALL_COLOR, dtype=np.uint8)
        counts = self._count_agents()
        for place in range(self._n_places):
            is_door = place == self._door_index
            row, column = (0, place) if place < self._door_index else (1, n_columns - 1 if is_door else 0)
            tile = image[row * _TILE_SIZE : (row + 1) * _TILE_SIZE, column * _TILE_SIZE : (column + 1) * _TILE_SIZE]
            color = {self._door_index: _CLOSED_DOOR_COLOR, self._start_index: _START_COLOR}.get(place, _LEVER_COLOR)
            if place == self._lever[index]:
                color = _WORKING_LEVER_COLOR
            if is_door and self._is_door_open(counts)[index]:
                color = _OPEN_DOOR_COLOR
            tile[2:-2, 2:-2] = color
            tile[8:-8, 8:-8] = _FLOOR_COLOR
            self._draw_agents(tile, self._place[index] == place)
        return image

    def _count_agents(self) -> np.ndarray:
        """Return the number of agents at each place, [n_envs, n_places]."""
        n_envs = len(self._place)
        cells = self._place + self._n_places * np.arange(n_envs)[:, None]
        return np.bincount(cells.ravel(), minlength=n_envs * self._n_places).reshape(n_envs, self._n_places)

    def _is_door_open(self, counts: np.ndarray) -> np.ndarray:
        """Return whether the working lever has enough agents, [n_envs] bool."""
        at_lever = np.take_along_axis(counts, self._lever[:, None], axis=1)[:, 0]
        return (at_lever >= self.settings.min_agents_per_lever) & (self._lever >= 0)

    def _observe(self) -> Observation:
        n_envs, n_agents = self._place.shape
        one_hot_value = np.float32(1.0 / self.settings.observation_divisor)
        vector = np.zeros((n_envs, n_agents * self._n_places + self.settings.n_levers), dtype=np.float32)
        np.put_along_axis(vector, self._place + self._n_places * np.arange(n_agents), one_hot_value, axis=1)
        # A game that was never reset has no context yet.
        started_games = np.flatnonzero(self._lever >= 0)
        vector[started_games, n_agents * self._n_places + self._lever[started_games]] = one_hot_value
        observation: Observation = {}
        if "vector" in self.settings.observe:
            observation["vector"] = np.repeat(vector[:, None], n_agents, axis=1)
        if "text" in self.settings.observe:
            texts = np.full(self._place.shape, "", dtype=object)  # "" in games that have ended
            remaining = self.settings.horizon - self._time
            for game, agent in np.argwhere(~self._ended[:, None] & np.ones_like(self._place, dtype=bool)).tolist():
                values = self._incentives[game]
                report: Mapping[str, Any] = (
                    {} if self._report is None else self._report.build_entries(game, agent, values)
                )
                agent_state = self._place[game].tolist(), agent, int(self._lever[game]), int(remaining[game])
                texts[game, agent] = describe_observation(self.settings.places, *agent_state, report)
            observation["text"] = texts
        if "mechanism" in self.spec.observation:
            observation["mechanism"] = np.repeat(self._incentives.astype(np.float32)[:, None], n_agents, axis=1)
        return observation

    def _draw_agents(self, tile: np.ndarray, agents_mask: np.ndarray) -> None:
        """Draw a dot for each agent where `agents_mask` [n_agents] is true; an agent's position in tiles is fixed."""
        n_dots_per_row = int(np.ceil(np.sqrt(len(agents_mask))))
        dot_spacing = (_TILE_SIZE - 16) / n_dots_per_row
        y, x = np.mgrid[:_TILE_SIZE, :_TILE_SIZE]
        for agent in np.flatnonzero(agents_mask):
            center_y, center_x = (8 + dot_spacing * (k + 0.5) for k in divmod(int(agent), n_dots_per_row))
            dot = (y + 0.5 - center_y) ** 2 + (x + 0.5 - center_x) ** 2 <= (0.42 * dot_spacing) ** 2
            hue = agent / len(agents_mask) + np.array([0.0, -1 / 3, 1 / 3])
            tile[dot] = np.clip(120 + 110 * np.cos(2 * np.pi * hue), 0, 255).astype(np.uint8)


def build_incentive_space(settings: EscapeRoomSettings) -> ParameterSpace:
    """Return the space of the incentives, one for each place."""
    parameters = tuple(
        Parameter(
            name=place,
            low=0.0,
            high=settings.max_incentive,
            unit="reward per step",
            description=f"incentive paid to each agent that is at {place} after moving",
            effect=f"{{value:.3g}} at {place}",
        )
        for place in settings.places
    )
    end = "; all agents pay for it equally." if settings.budget_balanced else "."
    return ParameterSpace("incentives", parameters, sentence=f"Pays agents for each step {{effects}}{end}")
