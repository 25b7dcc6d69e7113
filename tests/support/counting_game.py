"""Gymnasium environment with MultiDiscrete observations, registered on import."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Environment with episodes of three steps in which the reward is the action."""

    observation_space = spaces.MultiDiscrete([4, 3])
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([0, 0]), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time, int(action)]), float(action), self.time == 3, False, {}


gymnasium.register("Counting-v0", Counting)
