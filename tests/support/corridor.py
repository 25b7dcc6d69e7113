"""Toy text game: walk along a corridor to the end that the prompt names."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec

ENDS = ("east", "west")


class Corridor:
    """Corridor with positions 0 to `length - 1` in which the agent starts in the middle.

    Reaching the goal gives a reward of +1. Reaching either end terminates the episode; after `horizon` steps it is
    truncated. Further actions in `names` have no effect.
    """

    def __init__(self, n_envs=4, length=5, horizon=8, names=("go east", "go west"), mask=False, seed=0):
        channels = {"prompt": Channel((), "object"), "number": Channel((3,), "float32")}
        if mask:
            channels["action_mask"] = Channel((len(names),), "bool", 0, 1)
        self.spec = EnvSpec("corridor", n_envs, 1, channels, len(names), tuple(names), horizon, metrics={"won": "sum"})
        self.length, self.horizon = length, horizon
        self._rng = Seeds(seed).numpy("goals")
        self._goal = np.zeros(n_envs, dtype=np.int64)
        self._position = np.zeros(n_envs, dtype=np.int64)
        self._time = np.zeros(n_envs, dtype=np.int64)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            self._rng = Seeds(seed).numpy("goals")
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else mask
        draws = self._rng.integers(2, size=self.spec.n_envs)
        self._goal[resets], self._position[resets], self._time[resets] = draws[resets], self.length // 2, 0
        return self.observe()

    def step(self, action):
        self._time += 1
        self._position += np.array([1, -1] + [0] * (self.spec.n_actions - 2))[action[:, 0]]
        done = (self._position <= 0) | (self._position >= self.length - 1)
        self._position = np.clip(self._position, 0, self.length - 1)
        success = (done & (np.where(self._position == 0, 1, 0) == self._goal)).astype(np.float32)
        late = ~done & (self._time >= self.horizon)
        return Step(self.observe(), success[:, None], success[:, None], done, late, {"won": success})

    def expert(self):
        """Return the optimal action of each game, shape [n_envs]."""
        return self._goal.copy()

    def observe(self):
        texts = np.empty((self.spec.n_envs, 1), dtype=object)
        for i, (goal, place) in enumerate(zip(self._goal, self._position, strict=True)):
            texts[i, 0] = f"Goal of the agent: go {ENDS[goal]} \n Observation: the east end is {place} steps away."
        number = np.stack([self._goal, self._position, self._time], 1)[:, None].astype(np.float32)
        observation = {"prompt": texts, "number": number}
        if "action_mask" in self.spec.observation:
            observation["action_mask"] = np.ones((self.spec.n_envs, 1, self.spec.n_actions), dtype=bool)
            observation["action_mask"][..., 2:] = False
        return observation

    def share_random_numbers(self, n_groups):
        """Do nothing: games never share random numbers."""

    def state_dict(self):
        arrays = {"goal": self._goal, "place": self._position, "time": self._time}
        return {"rng": self._rng.bit_generator.state, **{name: x.copy() for name, x in arrays.items()}}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._goal, self._position, self._time = (np.array(state[name]) for name in ("goal", "place", "time"))

    def close(self):
        """Do nothing: there are no resources to release."""
