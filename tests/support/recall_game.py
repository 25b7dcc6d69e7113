"""Toy game that requires memory: in the last step, choose the signal observed in the first step."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec


class RecallGame:
    """Games of `lengths[i]` steps with a reward of +1 for choosing the first step's signal in the last step."""

    def __init__(self, lengths, n_signals=2, n_agents=1, seed=0):
        self.spec = EnvSpec(
            name="recall_game",
            n_envs=len(lengths),
            n_agents=n_agents,
            observation={"vector": Channel((n_signals + 1,), "float32", 0, 1)},
            n_actions=n_signals,
            action_names=tuple(f"name_{i}" for i in range(n_signals)),
            horizon=max(lengths),
            metrics={"correct": "sum"},
        )
        self._lengths = np.array(lengths)
        self._rng = Seeds(seed).numpy("signals")
        self._signal = np.zeros((len(lengths), n_agents), dtype=np.int64)
        self._time = np.zeros(len(lengths), dtype=np.int64)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            self._rng = Seeds(seed).numpy("signals")
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else mask
        draws = self._rng.integers(self.spec.n_actions, size=self._signal.shape)
        self._signal[resets] = draws[resets]
        self._time[resets] = 0
        return self._observe()

    def step(self, action):
        self._time += 1
        last = self._time >= self._lengths
        correct = ((action == self._signal) & last[:, None]).astype(np.float32)
        info = {"correct": correct.mean(1)}
        return Step(self._observe(), correct, correct, last, np.zeros_like(last), info)

    def share_random_numbers(self, n_groups):
        """Do nothing: games never share random numbers."""

    def state_dict(self):
        return {"rng": self._rng.bit_generator.state, "signal": self._signal.copy(), "time": self._time.copy()}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._signal, self._time = state["signal"].copy(), state["time"].copy()

    def close(self):
        """Do nothing: there are no resources to release."""

    def _observe(self):
        vector = np.zeros((*self._signal.shape, self.spec.n_actions + 1), dtype=np.float32)
        vector[..., -1] = (self._time / self._lengths)[:, None]
        visible = np.flatnonzero(self._time == 0)
        vector[visible] += np.eye(self.spec.n_actions + 1, dtype=np.float32)[self._signal[visible]]
        return {"vector": vector}
