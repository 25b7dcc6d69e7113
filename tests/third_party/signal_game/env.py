"""Each agent sees a number and is paid for naming it; a principal can pay a bonus for naming zero."""

from __future__ import annotations

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec, Parameter, ParameterSpace

MECHANISM = ParameterSpace("bonus", (Parameter("zero", 0.0, 2.0, "reward per step", "paid for naming 0"),))


class SignalGame:
    """`n_signals` numbers, one drawn per agent and step; +1 for naming it. Truncated after `horizon` steps."""

    def __init__(
        self, seeds: Seeds, n_envs: PositiveInt, n_agents: PositiveInt, n_signals: PositiveInt, horizon: PositiveInt
    ) -> None:
        self.spec = EnvSpec(
            name="signal_game",
            n_envs=n_envs,
            n_agents=n_agents,
            observation={"vector": Channel((n_signals,), "float32", 0, 1)},
            n_actions=n_signals,
            action_names=tuple(f"name_{i}" for i in range(n_signals)),
            horizon=horizon,
            mechanism=MECHANISM,
            metrics={"correct": "sum"},
        )
        self._rng = seeds.numpy("signals")
        self._group = n_envs
        self._signal = np.zeros((n_envs, n_agents), dtype=np.int64)
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._bonus = np.zeros(n_envs)

    def reset(self, mask: Array | None = None, seed: int | None = None) -> Observation:
        if seed is not None:
            self._rng = Seeds(seed).numpy("signals")
        self._time[... if mask is None else mask] = 0
        self._draw()
        return self._observe()

    def step(self, action: Array) -> Step:
        correct = (action == self._signal).astype(np.float32)
        reward = correct + (action == 0) * self._bonus[:, None].astype(np.float32)
        self._time += 1
        self._draw()
        no_resets = np.zeros(self.spec.n_envs, dtype=bool)
        info = {"correct": correct.sum(1)}
        return Step(self._observe(), reward, correct, no_resets, self._time >= self.spec.horizon, info)

    def share_random_numbers(self, n_groups: int) -> None:
        self._group = self.spec.games_per_group(n_groups)

    def set_mechanism(self, values: Array) -> None:
        self._bonus = np.broadcast_to(MECHANISM.check(values), (self.spec.n_envs, 1))[:, 0].copy()

    def set_context(self, context: int) -> None:
        raise ValueError("the signal game has no contexts")

    def render(self, index: int = 0) -> np.ndarray:
        return np.full((36, 36, 3), 20 * self._signal[index, 0], dtype=np.uint8)

    def state_dict(self) -> State:
        return {
            "rng": self._rng.bit_generator.state,
            "signal": self._signal.copy(),
            "time": self._time.copy(),
            "bonus": self._bonus.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._signal, self._time, self._bonus = (np.array(state[k]) for k in ("signal", "time", "bonus"))

    def close(self) -> None:
        """Nothing is open."""

    def _draw(self) -> None:
        draws = self._rng.integers(self.spec.n_actions, size=(self._group, self.spec.n_agents))
        self._signal = np.tile(draws, (self.spec.n_envs // self._group, 1))

    def _observe(self) -> Observation:
        return {"vector": np.eye(self.spec.n_actions, dtype=np.float32)[self._signal]}
