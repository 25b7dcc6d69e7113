"""A game of one step whose action is a real number and a choice: name the number seen, pick the gear of its sign."""

import gymnasium
import numpy as np


class MixedActions(gymnasium.Env):
    """Sees x in [-1, 1]; loses (force / 2 - x)^2, and 1 unless the gear is 1 for negative x and 3 for others."""

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
    """The same with a Tuple."""

    def __init__(self):
        super().__init__(MixedActions())
        self.action_space = gymnasium.spaces.Tuple(tuple(self.env.action_space.values()))

    def action(self, action):
        assert self.action_space.contains(action), action
        return dict(zip(("force", "gear"), action, strict=True))


gymnasium.register("MixedActions-v0", entry_point=MixedActions, max_episode_steps=10)
gymnasium.register("MixedTuple-v0", entry_point=MixedTuple, max_episode_steps=10)
