"""Toy game whose optimal action depends on the mission: choose the side of the object that the mission names."""

import numpy as np

from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec

TARGETS = (5, 6)


class FetchGame:
    """Game with a key and a ball on the left and on the right of a view of shape [7, 7, 3].

    The mission is `get the key` or `get the ball`. Episodes have one step with a reward of +1 for the side of the
    object. The channel `expert` contains the optimal action, or -1 in games where `expert_is_unknown` [n_envs] is true.
    """

    def __init__(self, n_envs, names=("left", "right"), expert_is_unknown=None, seed=0):
        self.spec = EnvSpec(
            name="fetch_game",
            n_envs=n_envs,
            n_agents=1,
            observation={
                "view": Channel((7, 7, 3), "uint8", codes=(11, 6, 3)),
                "mission": Channel((6,), "int64", codes=(7,)),
                "expert": Channel((), "int64"),
            },
            n_actions=len(names),
            action_names=tuple(names),
            horizon=1,
            metrics={"won": "sum"},
        )
        self._expert_is_unknown = (
            np.zeros(n_envs, dtype=bool) if expert_is_unknown is None else np.asarray(expert_is_unknown)
        )
        self._rng = Seeds(seed).numpy("games")
        self._left, self._target = np.zeros((2, n_envs), dtype=np.int64)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            self._rng = Seeds(seed).numpy("games")
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else mask
        draws, targets = self._rng.integers(2, size=(2, self.spec.n_envs))
        self._left[resets], self._target[resets] = draws[resets], targets[resets]
        return self._observe()

    def step(self, action):
        success = (action[:, 0] == self._expert()).astype(np.float32)
        done = np.ones(self.spec.n_envs, dtype=bool)
        return Step(self._observe(), success[:, None], success[:, None], done, ~done, {"won": success})

    def state_dict(self):
        return {"rng": self._rng.bit_generator.state, "left": self._left.copy(), "wanted": self._target.copy()}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = state["rng"]
        self._left, self._target = state["left"].copy(), state["wanted"].copy()

    def close(self):
        """Do nothing: there are no resources to release."""

    def _expert(self):
        return (self._left != self._target).astype(np.int64)

    def _observe(self):
        n = self.spec.n_envs
        view = np.zeros((n, 1, 7, 7, 3), dtype=np.uint8)
        view[..., 0] = 1
        view[:, 0, 1, 3, 0] = np.array(TARGETS)[self._left]
        view[:, 0, 5, 3, 0] = np.array(TARGETS)[1 - self._left]
        mission = np.zeros((n, 1, 6), dtype=np.int64)
        mission[:, 0, :3] = np.stack([np.full(n, 2), np.full(n, 3), 4 + self._target], 1)
        expert = np.where(self._expert_is_unknown, -1, self._expert())[:, None]
        return {"view": view, "mission": mission, "expert": expert}
