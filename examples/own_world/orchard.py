"""An orchard as a world of your own: neighbors pick apples from shared trees, and a planner sets a fee and a bonus.

A `ParallelEnv` of PettingZoo that declares a mechanism (docs/worlds.md). llmrl is not imported, and not changed:

    PYTHONPATH=examples/own_world llmrl-train env=pettingzoo env.id=orchard:Orchard principal=cmaes agent=ppo
"""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Orchard(ParallelEnv):
    """Each day every neighbor picks 0 to 3 apples. Trees bear anew what is left times `growth`, up to `most` apples.

    The planner sets a fee for each picked apple and a bonus for a day on which nothing is picked. All neighbors share
    what the fees bring, less the bonuses, equally.
    """

    metadata = {"name": "orchard", "render_modes": ["rgb_array"]}
    # What a principal sets: in this order, `set_mechanism` is given the numbers.
    mechanism = [
        {"name": "fee", "low": 0.0, "high": 1.5, "unit": "reward per apple", "description": "paid for a picked apple"},
        {"name": "bonus", "low": 0.0, "high": 1.0, "unit": "reward", "description": "got for a day without picking"},
    ]
    # Numbers in infos that are metrics of an episode, added over the agents that report them.
    episode_metrics = {"picked": "sum"}

    def __init__(self, neighbors=3, most=30, growth=1.25, max_cycles=20, render_mode=None):
        self.possible_agents = [f"neighbour_{i}" for i in range(neighbors)]
        self.most, self.growth, self.render_mode = most, growth, render_mode
        self.max_cycles = max_cycles  # the length of an episode, if `env.horizon` sets none
        self.fee = self.bonus = 0.0

    def observation_space(self, agent):
        return spaces.Dict({"apples": spaces.Box(0, 1, (1,), np.float32), "day": spaces.Box(0, 1, (1,), np.float32)})

    def action_space(self, agent):
        return spaces.Discrete(4)

    def set_mechanism(self, values):
        self.fee, self.bonus = values

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)  # all luck comes from the seed: so runs can be resumed exactly
        self.agents, self.day = list(self.possible_agents), 0
        self.apples = float(self.rng.integers(self.most // 2, self.most + 1))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        picked = dict.fromkeys(self.agents, 0)
        for agent in self.rng.permutation(self.agents):  # who comes first is luck
            picked[agent] = min(int(actions[agent]), int(self.apples))
            self.apples -= picked[agent]
        self.apples = min(self.growth * self.apples, self.most)
        self.day += 1
        paid = {a: self.fee * n - self.bonus * (n == 0) for a, n in picked.items()}
        share = sum(paid.values()) / len(paid)
        over = self.day >= self.max_cycles
        agents = list(self.agents)
        if over:
            self.agents = []
        return (
            self._seen(agents),
            {a: picked[a] - paid[a] + share for a in agents},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            # The reward before the mechanism: welfare is measured on it.
            {a: {"base_reward": float(picked[a]), "picked": picked[a]} for a in agents},
        )

    def _seen(self, agents=None):
        seen = {"apples": [self.apples / self.most], "day": [self.day / self.max_cycles]}
        return {a: {k: np.array(x, np.float32) for k, x in seen.items()} for a in agents or self.agents}

    def render(self):
        frame = np.full((64, 120, 3), 235, dtype=np.uint8)
        frame[64 - round(60 * self.apples / self.most) :, 10:110] = (80, 150, 70)
        return frame
