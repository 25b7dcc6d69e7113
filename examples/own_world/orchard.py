"""Example of a custom environment: neighbors pick apples from shared trees, and a principal sets a fee and a bonus.

The environment is a `ParallelEnv` of PettingZoo that declares a mechanism (docs/worlds.md). It does not import llmrl:

    PYTHONPATH=examples/own_world llmrl-train env=pettingzoo env.id=orchard:Orchard principal=cmaes agent=ppo
"""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Orchard(ParallelEnv):
    """Orchard in which each neighbor picks 0 to 3 apples per day.

    After each day, the remaining apples are multiplied by `growth`, up to a maximum of `most`. The principal sets a fee
    for each picked apple and a bonus for a day without picking. Fees minus bonuses are distributed equally among all
    neighbors.
    """

    metadata = {"name": "orchard", "render_modes": ["rgb_array"]}
    # Parameters of the mechanism, in the order of the argument of `set_mechanism`.
    mechanism = [
        {"name": "fee", "low": 0.0, "high": 1.5, "unit": "reward per apple", "description": "paid for a picked apple"},
        {"name": "bonus", "low": 0.0, "high": 1.0, "unit": "reward", "description": "got for a day without picking"},
    ]
    # Keys of infos that are metrics of an episode, summed over agents.
    episode_metrics = {"picked": "sum"}

    def __init__(self, neighbors=3, most=30, growth=1.25, max_cycles=20, render_mode=None):
        self.possible_agents = [f"neighbour_{i}" for i in range(neighbors)]
        self.most, self.growth, self.render_mode = most, growth, render_mode
        self.max_cycles = max_cycles  # length of an episode, unless `env.horizon` is set
        self.fee = self.bonus = 0.0

    def observation_space(self, agent):
        return spaces.Dict({"apples": spaces.Box(0, 1, (1,), np.float32), "day": spaces.Box(0, 1, (1,), np.float32)})

    def action_space(self, agent):
        return spaces.Discrete(4)

    def set_mechanism(self, values):
        self.fee, self.bonus = values

    def reset(self, seed=None, options=None):
        # All random numbers depend on the seed, so that runs can be resumed exactly.
        self.rng = np.random.default_rng(seed)
        self.agents, self.day = list(self.possible_agents), 0
        self.apples = float(self.rng.integers(self.most // 2, self.most + 1))
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        picked = dict.fromkeys(self.agents, 0)
        for agent in self.rng.permutation(self.agents):  # agents pick in random order
            picked[agent] = min(int(actions[agent]), int(self.apples))
            self.apples -= picked[agent]
        self.apples = min(self.growth * self.apples, self.most)
        self.day += 1
        payments = {agent: self.fee * n - self.bonus * (n == 0) for agent, n in picked.items()}
        share = sum(payments.values()) / len(payments)
        is_over = self.day >= self.max_cycles
        agents = list(self.agents)
        if is_over:
            self.agents = []
        return (
            self._observe(agents),
            {agent: picked[agent] - payments[agent] + share for agent in agents},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            # The reward before the mechanism, from which welfare is computed.
            {agent: {"base_reward": float(picked[agent]), "picked": picked[agent]} for agent in agents},
        )

    def _observe(self, agents=None):
        shares = {"apples": [self.apples / self.most], "day": [self.day / self.max_cycles]}
        observation = {name: np.array(share, np.float32) for name, share in shares.items()}
        return {agent: dict(observation) for agent in agents or self.agents}

    def render(self):
        frame = np.full((64, 120, 3), 235, dtype=np.uint8)
        frame[64 - round(60 * self.apples / self.most) :, 10:110] = (80, 150, 70)
        return frame
