"""Mechanism vectors that are imposed on games while agents learn: a fixed one, or samples from boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from pydantic.dataclasses import dataclass

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields


@dataclass(frozen=True)
class Box:
    """Vectors that are drawn uniformly between two bounds.

    Args:
        low, high: bounds of each value, [d].
        weight: relative frequency of this box in its mixture.
        equal: whether all values are the same number, drawn between the first bounds (a flat tax).
    """

    low: list[float]
    high: list[float]
    weight: PositiveFloat = 1.0
    equal: bool = False


@dataclass(frozen=True)
class Phase:
    """A part of training with one distribution of vectors.

    Args:
        mixture: boxes, one of which is chosen for each vector.
        episodes: length of the phase in episodes of each game; None: until the end (last phase only).
    """

    mixture: Annotated[list[Box], MinLen(1)]
    episodes: PositiveInt | None = None


class MechanismSampler(StateFields):
    """Sets the mechanism of each game at the start of each of its episodes.

    The seed of a vector depends on the game and the episode only, so a vector does not depend on the other games.

    Args:
        env: environment with a mechanism.
        mechanism: the same vector [d] for all episodes, or phases.
        seeds: seed node of the vectors.
        group_size: number of successive games with equal vectors.

    Attributes:
        episodes: number of episodes that have started in each game, [n_envs].

    Raises:
        ConfigError: the environment has no mechanism, a bound or value is outside the mechanism's bounds, or phases
            have no order.
    """

    _state_fields = ("episodes", "values")

    def __init__(
        self, env: VecEnv, mechanism: Sequence[float] | Sequence[Phase], seeds: Seeds, group_size: int = 1
    ) -> None:
        space = env.spec.mechanism
        if space is None:
            raise ConfigError(
                f"learn.mechanism needs an environment with a mechanism, and env={env.spec.name} has none as "
                "configured. Choose another one, or set learn.mechanism=null"
            )
        numbers = [x for x in mechanism if isinstance(x, int | float)]
        if numbers:
            box = Box([float(x) for x in numbers], [float(x) for x in numbers])
            self.phases = [Phase([box])]
        else:
            self.phases = [phase for phase in mechanism if isinstance(phase, Phase)]
        if not self.phases or any(phase.episodes is None for phase in self.phases[:-1]):
            raise ConfigError("learn.mechanism needs at least one phase, and `episodes` in every phase but the last")
        for box in (box for phase in self.phases for box in phase.mixture):
            space.check([box.low, box.high])
            if any(low > high for low, high in zip(box.low, box.high, strict=True)):
                raise ConfigError(f"learn.mechanism: low={box.low} exceeds high={box.high}; swap them")
        self.env, self.space, self._group_size = env, space, group_size
        self._training = self._seeds = seeds
        self._last = False
        self.episodes = np.zeros(env.spec.n_envs, dtype=np.int64)
        self.values = np.tile(space.low, (env.spec.n_envs, 1))

    def begin(self, games: np.ndarray) -> None:
        """Impose new vectors on the games where `games` [n_envs] is true; call it before they are reset."""
        for game in np.flatnonzero(games).tolist():
            episode = int(self.episodes[game])
            rng = self._seeds.child(game // self._group_size).numpy(episode)
            self.values[game] = self._draw(self._phase(episode), rng)
        self.episodes[games] += 1
        self.env.set_mechanism(self.values)

    def evaluate(self, seeds: Seeds) -> State:
        """Draw from the last phase with other seeds, as if no game had started; return the state for `resume`."""
        previous_state = self.state_dict()
        self._seeds, self._last, self.episodes = seeds, True, np.zeros_like(self.episodes)
        return previous_state

    def resume(self, before: State) -> None:
        """Restore the state of training that `evaluate` returned."""
        self._seeds, self._last = self._training, False
        self.load_state_dict(before)

    def _phase(self, episode: int) -> Phase:
        end = 0
        for phase in self.phases[:-1]:
            assert phase.episodes is not None
            end += phase.episodes
            if episode < end and not self._last:
                return phase
        return self.phases[-1]

    def _draw(self, phase: Phase, rng: np.random.Generator) -> np.ndarray:
        weights = np.array([box.weight for box in phase.mixture])
        box = phase.mixture[int(rng.choice(len(weights), p=weights / weights.sum()))]
        unit = rng.random(self.space.dim)
        if box.equal:
            return np.full(self.space.dim, box.low[0] + unit[0] * (box.high[0] - box.low[0]))
        low, high = np.array(box.low), np.array(box.high)
        return np.asarray(low + unit * (high - low))
