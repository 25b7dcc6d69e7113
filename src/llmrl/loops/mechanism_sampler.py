"""A mechanism's values while agents learn: those that will govern them later, or many, to learn to react to them."""

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


@dataclass(frozen=True)
class Box:
    """Vectors drawn evenly between two bounds.

    Args:
        low, high: bounds of each value, [d].
        weight: how often vectors are drawn from this box, beside others of its mixture.
        equal: all values are the same number, drawn between the first bounds (a flat tax).
    """

    low: list[float]
    high: list[float]
    weight: PositiveFloat = 1.0
    equal: bool = False


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one distribution of vectors.

    Args:
        mixture: boxes, one of which is chosen for each vector.
        episodes: of each game, that the phase lasts; None: to the end (and only the last phase).
    """

    mixture: Annotated[list[Box], MinLen(1)]
    episodes: PositiveInt | None = None


class MechanismSampler:
    """Sets the mechanism of each game when one of its episodes begins.

    A vector is drawn at an address of its own (game, episode), so it does not depend on the other games.

    Args:
        env: with a mechanism.
        wanted: the same vector [d] for all episodes, or phases.
        seeds: of the vectors.

    Attributes:
        episodes: that have begun in each game since `restart`, [n_envs].

    Raises:
        ConfigError: the environment has no mechanism, a bound or value is outside the mechanism's, or phases have no
            order.
    """

    def __init__(self, env: VecEnv, wanted: Sequence[float] | Sequence[Phase], seeds: Seeds) -> None:
        space = env.spec.mechanism
        if space is None:
            raise ConfigError(
                f"learn.mechanism is for environments with a mechanism, and env={env.spec.name} has none as configured"
            )
        numbers = [x for x in wanted if isinstance(x, int | float)]
        if numbers:
            box = Box([float(x) for x in numbers], [float(x) for x in numbers])
            self.phases = [Phase([box])]
        else:
            self.phases = [phase for phase in wanted if isinstance(phase, Phase)]
        if not self.phases or any(phase.episodes is None for phase in self.phases[:-1]):
            raise ConfigError("learn.mechanism: every phase but the last needs its episodes, and there must be one")
        for box in (box for phase in self.phases for box in phase.mixture):
            space.check([box.low, box.high])
            if any(low > high for low, high in zip(box.low, box.high, strict=True)):
                raise ConfigError(f"learn.mechanism: low={box.low} is above high={box.high}")
        self.env, self.space = env, space
        self._training = self._seeds = seeds
        self._last = False
        self.episodes = np.zeros(env.spec.n_envs, dtype=np.int64)
        self.values = np.tile(space.low, (env.spec.n_envs, 1))

    def begin(self, games: np.ndarray) -> None:
        """Impose new vectors in the games where `games` [n_envs] is true; to be called before they are reset."""
        for game in np.flatnonzero(games).tolist():
            episode = int(self.episodes[game])
            self.values[game] = self._draw(self._phase(episode), self._seeds.child(game).numpy(episode))
        self.episodes[games] += 1
        self.env.set_mechanism(self.values)

    def evaluate(self, seeds: Seeds) -> State:
        """Draw from the last phase at other addresses from now on, as if no game had begun; returns what `resume`
        takes."""
        before = self.state_dict()
        self._seeds, self._last, self.episodes = seeds, True, np.zeros_like(self.episodes)
        return before

    def resume(self, before: State) -> None:
        """Go on with training after `evaluate`."""
        self._seeds, self._last = self._training, False
        self.load_state_dict(before)

    def state_dict(self) -> State:
        return {"episodes": self.episodes.copy(), "values": self.values.copy()}

    def load_state_dict(self, state: State) -> None:
        self.episodes, self.values = np.array(state["episodes"]), np.array(state["values"])

    def _phase(self, episode: int) -> Phase:
        begins = 0
        for phase in self.phases[:-1]:
            assert phase.episodes is not None
            begins += phase.episodes
            if episode < begins and not self._last:
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
