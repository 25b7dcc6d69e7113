"""Fast Gymnasium environment with two steps and two target actions, registered on import."""

import gymnasium
import numpy as np

TARGET = (2.0, -3.0)


class Target(gymnasium.Env):
    """Environment whose observation at step t is the unit vector e_t.

    The reward is -|action - TARGET[t]| minus uniform noise in [0, 0.1).
    """

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
