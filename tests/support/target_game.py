"""A game of two steps that costs nothing to play: whoever names the two right numbers loses nothing."""

import gymnasium
import numpy as np

TARGET = (2.0, -3.0)


class Target(gymnasium.Env):
    """At step t the agent sees the unit vector e_t and loses |action - TARGET[t]|, and as much by chance as 0.1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-20.0, 20.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.eye(2)[0], {}

    def step(self, action):
        reward = -abs(float(action[0]) - TARGET[self.t]) - 0.1 * self.np_random.random()
        self.t += 1
        return np.eye(2)[min(self.t, 1)], reward, self.t == 2, False, {}


gymnasium.register("Target-v0", entry_point=Target, max_episode_steps=10)
