"""Observation of principals with a network: the context, and metrics of the game at the previous step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import Outcome
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields


@dataclass(frozen=True)
class ObserveSettings:
    """Settings of the observation.

    Args:
        metrics: names of metrics in `spec.told`; None: all.
        moments: number of windows, of almost equal length, over which a trajectory is averaged; at most its number of
            steps. None: every step is a separate number.
        interval: use only each `interval`-th step, starting with the first, before averaging.
        scale: divisor of trajectories; None: the largest magnitude of each metric's averages so far.
        history: whether outcomes are observed.
    """

    metrics: list[str] | None = None
    moments: PositiveInt | None = 10
    interval: PositiveInt = 1
    scale: PositiveFloat | None = None
    history: bool = True


class PrincipalObservation(StateFields):
    """Encoder of the last outcomes as one vector: context (one-hot), then the chosen metrics one after the other.

    Each metric's trajectory (mean over validation episodes, and over the proposals of the step) is subsampled, averaged
    over windows and divided by a scale. Before the first outcome, or without history, all of these numbers are 1.

    Args:
        spec: spec of the environment.
        settings: settings of the observation.

    Raises:
        ConfigError: a metric does not exist, or the environment has no horizon.
    """

    _state_fields = ("last", "largest")

    def __init__(self, spec: EnvSpec, settings: ObserveSettings) -> None:
        metrics, moments, interval = settings.metrics, settings.moments, settings.interval
        self.metrics = list(spec.told if metrics is None else metrics)
        unknown = [name for name in self.metrics if name not in spec.told]
        if unknown:
            raise ConfigError(
                f"principal.observe.metrics: env={spec.name} has no metric '{unknown[0]}' for principals; available: "
                f"{', '.join(spec.told)}"
            )
        if spec.horizon is None:
            raise ConfigError(
                f"env.horizon=null for env={spec.name}, but this principal needs episodes of one length; set "
                "env.horizon"
            )
        steps = -(-spec.horizon // interval)
        self.windows = steps if moments is None else min(moments, steps)
        self.space, self.interval, self.scale, self.history = spec.proposals, interval, settings.scale, settings.history
        self.largest = np.zeros(len(self.metrics))
        self.last: np.ndarray | None = None  # [metrics, windows], not scaled

    @property
    def size(self) -> int:
        return len(self.space.contexts) + len(self.metrics) * self.windows

    def vector(self, context: int | None) -> np.ndarray:
        """Return the observation before a proposal in `context`, [size] float32."""
        one_hot = np.zeros(len(self.space.contexts))
        if self.space.contexts:
            one_hot[self.space.row(context)] = 1.0
        else:
            self.space.row(context)
        features = np.ones((len(self.metrics), self.windows))
        if self.last is not None:
            scale = np.where(self.largest > 0, self.largest, 1.0)[:, None] if self.scale is None else self.scale
            features = self.last / scale
        return np.concatenate([one_hot, features.ravel()]).astype(np.float32)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Observe the outcomes of a step."""
        if not self.history or not self.metrics:
            return
        self.last = np.mean([self._window_means(outcome) for outcome in outcomes], axis=0)
        self.largest = np.maximum(self.largest, np.abs(self.last).max(1))

    def _window_means(self, outcome: Outcome) -> np.ndarray:
        subsampled = [outcome.trajectories[name][:: self.interval] for name in self.metrics]
        return np.array([[w.mean() for w in np.array_split(x, self.windows)] for x in subsampled], dtype=np.float64)
