"""Environment and principal, `env=coins principal=ladder`."""

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec, Parameter, ParameterSpace

TAX = ParameterSpace("tax", (Parameter("rate", 0.0, 2.0, "reward per coin", "paid for each coin that is taken"),))


class Coins:
    """Environment in which an agent that takes a coin gains 1 and reduces the reward of each other agent by 0.5."""

    def __init__(
        self, seeds: Seeds, n_envs: PositiveInt = 8, n_agents: PositiveInt = 3, horizon: PositiveInt = 10
    ) -> None:
        self.spec = EnvSpec(
            name="coins",
            n_envs=n_envs,
            n_agents=n_agents,
            observation={"vector": Channel((1,), "float32", 0, 1)},
            n_actions=2,
            action_names=("leave", "take"),
            horizon=horizon,
            mechanism=TAX,
            metrics={"taken": "sum"},
        )
        self._time, self._rate = np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs)

    def reset(self, mask=None, seed=None):
        self._time[... if mask is None else mask] = 0
        return self._observe()

    def step(self, action):
        taken = action.astype(np.float32)
        base = taken - 0.5 * (taken.sum(1, keepdims=True) - taken)
        reward = base - self._rate[:, None].astype(np.float32) * taken
        self._time += 1
        terminated = np.zeros(self.spec.n_envs, dtype=bool)
        return Step(self._observe(), reward, base, terminated, self._time >= self.spec.horizon, {"taken": taken.sum(1)})

    def _observe(self):
        share = (self._time / self.spec.horizon).astype(np.float32)
        return {"vector": np.tile(share[:, None, None], (1, self.spec.n_agents, 1))}

    def set_mechanism(self, values):
        self._rate = np.broadcast_to(TAX.check(values), (self.spec.n_envs, 1))[:, 0].copy()

    def share_random_numbers(self, n_groups):
        self.spec.games_per_group(n_groups)  # the environment is deterministic

    def set_context(self, context):
        raise ValueError("coins have no contexts")

    def render(self, index=0):
        return np.full((16, 16, 3), 10 * self._time[index], dtype=np.uint8)

    def state_dict(self):
        return {"time": self._time.copy(), "rate": self._rate.copy()}

    def load_state_dict(self, state):
        self._time, self._rate = np.array(state["time"]), np.array(state["rate"])

    def close(self):
        pass


class Ladder:
    """Principal that cycles through evenly spaced vectors between the bounds, starting with a random one."""

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds, rungs: PositiveInt = 5) -> None:
        self.space, self.rungs = space, rungs
        self.next = int(seeds.numpy("ladder").integers(rungs))  # depends on the seed of the run

    def ask(self, context=None, n=1):
        shares = [(self.next + i) % self.rungs / max(1, self.rungs - 1) for i in range(n)]
        self.next += n
        return np.array([self.space.low + share * (self.space.high - self.space.low) for share in shares])

    def tell(self, outcomes):
        return {}

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]
