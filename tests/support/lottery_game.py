"""A toy game whose outcome is drawn when it begins: a success ends early, a failure goes on until the horizon."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec


class Lottery:
    """Each episode is a success with `probability`, whatever is done; then it ends after `short` steps and pays 1."""

    def __init__(self, seeds: Seeds, n_envs: int, horizon: int, short: int, probability: float) -> None:
        channels = {"vector": Channel((1,), "float32", 0, 1)}
        names, metrics = ("stay", "go"), {"success": "sum"}
        self.spec = EnvSpec("lottery", n_envs, 1, channels, 2, names, horizon, metrics=metrics)
        self.short, self.probability = short, probability
        self._rng = seeds.numpy("lottery")
        self._won = np.zeros(n_envs, dtype=bool)
        self._time = np.zeros(n_envs, dtype=np.int64)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            self._rng = Seeds(seed).numpy("lottery")
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask)
        success = self._rng.random(self.spec.n_envs) < self.probability
        self._won[resets], self._time[resets] = success[resets], 0
        return self._observe()

    def step(self, action):
        self._time += 1
        success = self._won & (self._time >= self.short)
        rewards = success.astype(np.float32)
        return Step(
            self._observe(),
            rewards[:, None],
            rewards[:, None],
            success,
            self._time >= self.spec.horizon,
            {"success": rewards},
        )

    def share_random_numbers(self, n_groups):
        """Games are drawn one by one."""

    def state_dict(self):
        return {"rng": self._rng.bit_generator.state, "won": self._won.copy(), "time": self._time.copy()}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._won, self._time = np.array(state["won"]), np.array(state["time"])

    def close(self):
        """Nothing to release."""

    def _observe(self):
        return {"vector": (self._time / self.spec.horizon).astype(np.float32)[:, None, None]}
