"""Gymnasium environments with one step and mixed actions, a continuous and a discrete one, registered on import."""

import gymnasium
import numpy as np


class MixedActions(gymnasium.Env):
    """Environment with observation x in [-1, 1] and a dictionary of actions.

    The reward is -(force / 2 - x)^2, minus 1 unless the gear is 1 for negative x and 3 otherwise.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Dict(
        {"force": gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32), "gear": gymnasium.spaces.Discrete(3, start=1)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 1)
        return self.x, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        wrong = action["gear"] != (1 if self.x[0] < 0 else 3)
        return self.x, -float((action["force"][0] / 2 - self.x[0]) ** 2) - float(wrong), True, False, {}


class MixedTuple(gymnasium.ActionWrapper):
    """The same environment with a tuple of actions."""

    def __init__(self):
        super().__init__(MixedActions())
        self.action_space = gymnasium.spaces.Tuple(tuple(self.env.action_space.values()))

    def action(self, action):
        assert self.action_space.contains(action), action
        return dict(zip(("force", "gear"), action, strict=True))


gymnasium.register("MixedActions-v0", entry_point=MixedActions, max_episode_steps=10)
gymnasium.register("MixedTuple-v0", entry_point=MixedTuple, max_episode_steps=10)
