"""Toy game with a random outcome: successful episodes end early, failed ones last until the horizon."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec


class Lottery:
    """Game whose episodes succeed with a given probability, independently of actions.

    Args:
        seeds: node of the seed tree.
        n_envs: number of games.
        horizon: number of steps of a failed episode.
        short: number of steps of a successful episode, whose last step has a reward of 1.
        probability: probability of success.
    """

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
        """Do nothing: games never share random numbers."""

    def state_dict(self):
        return {"rng": self._rng.bit_generator.state, "won": self._won.copy(), "time": self._time.copy()}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._won, self._time = np.array(state["won"]), np.array(state["time"])

    def close(self):
        """Do nothing: there are no resources to release."""

    def _observe(self):
        return {"vector": (self._time / self.spec.horizon).astype(np.float32)[:, None, None]}
