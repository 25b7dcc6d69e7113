"""A toy game that only a policy with a memory can win: name the number that was shown in the episode's first step."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec


class RecallGame:
    """Game i lasts `lengths[i]` steps; +1 in the last one for naming what was shown in the first."""

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
        """Games are drawn one by one."""

    def state_dict(self):
        return {"rng": self._rng.bit_generator.state, "signal": self._signal.copy(), "time": self._time.copy()}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._signal, self._time = state["signal"].copy(), state["time"].copy()

    def close(self):
        """Nothing to release."""

    def _observe(self):
        vector = np.zeros((*self._signal.shape, self.spec.n_actions + 1), dtype=np.float32)
        vector[..., -1] = (self._time / self._lengths)[:, None]
        visible = np.flatnonzero(self._time == 0)
        vector[visible] += np.eye(self.spec.n_actions + 1, dtype=np.float32)[self._signal[visible]]
        return {"vector": vector}
