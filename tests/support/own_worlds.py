"""Small PettingZoo environments, as users might write them."""

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec


class Mortal(ParallelEnv):
    """Environment in which agent i terminates after i + 1 steps, or is truncated after `max_cycles` steps.

    Agent i has a reward of i + 1 per step, 2 + i actions and observations of size 1 + i.
    """

    metadata = {"name": "mortal", "render_modes": []}

    def __init__(self, n=3, max_cycles=None, lives=None):
        self.possible_agents = [f"a{i}" for i in range(n)]
        self.lives = lives or {agent: i + 1 for i, agent in enumerate(self.possible_agents)}
        self.max_cycles = max_cycles

    def observation_space(self, agent):
        return spaces.Box(-1, 9, (1 + self.possible_agents.index(agent),), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2 + self.possible_agents.index(agent), start=1)

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.received_actions = list(self.possible_agents), 0, []
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, "actions must be those of all live agents"
        assert all(self.action_space(agent).contains(x) for agent, x in actions.items())
        self.received_actions.append(dict(actions))
        self.time += 1
        agents = list(self.agents)
        dead = {agent: self.time >= self.lives[agent] for agent in agents}
        truncations = {
            agent: self.max_cycles is not None and self.time >= self.max_cycles and not dead[agent] for agent in agents
        }
        self.agents = [agent for agent in agents if not dead[agent] and not truncations[agent]]
        reward = {agent: 1.0 + self.possible_agents.index(agent) for agent in agents}
        return self._observe(agents), reward, dead, truncations, {agent: {} for agent in agents}

    def _observe(self, agents=None):
        return {
            agent: np.full(self.observation_space(agent).shape, 1 + self.time, np.float32)
            for agent in agents or self.agents
        }


class Governed(ParallelEnv):
    """Environment with rewards of the action plus a wage set by the principal; agents observe the sum of wages."""

    metadata = {"name": "governed", "render_modes": []}
    mechanism = [{"name": "wage", "low": 0.0, "high": 2.0}, {"name": "unused", "low": -1.0, "high": 1.0, "unit": "m"}]
    episode_metrics = {"worked": "sum"}
    max_cycles = 5
    wage = 0.0

    def __init__(self):
        self.possible_agents = ["x", "y"]

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def set_mechanism(self, values):
        self.wage = float(values[0])

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.total_wage = list(self.possible_agents), 0, self.wage
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.time += 1
        self.total_wage += self.wage
        truncation, agents = self.time >= self.max_cycles, list(self.agents)
        self.agents = [] if truncation else agents
        infos = {agent: {"base_reward": float(x), "worked": int(x > 0)} for agent, x in actions.items()}
        reward = {agent: float(x) + self.wage for agent, x in actions.items()}
        return self._observe(), reward, dict.fromkeys(agents, False), dict.fromkeys(agents, truncation), infos

    def _observe(self):
        return {agent: np.array([self.time, self.total_wage]) for agent in self.possible_agents}


class Forgetful(Governed):
    """Environment with random observations that do not depend on the seed."""

    def _observe(self):
        return {agent: np.random.default_rng().random(2) for agent in self.possible_agents}


class Unsettable(Governed):
    """Environment that declares a mechanism but has no method to set it."""

    set_mechanism = None


class Movers(ParallelEnv):
    """Environment with agents that have one and two continuous actions with different bounds."""

    metadata = {"name": "movers", "render_modes": []}
    possible_agents = ["one", "two"]

    def observation_space(self, agent):
        return spaces.Dict({"place": spaces.Box(-9, 9, (2,), np.float32), "color": spaces.Discrete(3)})

    def action_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32) if agent == "one" else spaces.Box(-3, 2, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.received_actions = list(self.possible_agents), None
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.received_actions = actions
        no = dict.fromkeys(self.agents, False)
        return self._observe(), dict.fromkeys(self.agents, 0.0), no, no, {agent: {} for agent in self.agents}

    def _observe(self):
        return {agent: {"place": np.ones(2, np.float32), "color": 2} for agent in self.agents}


def mortal_in_turns(**kwargs):
    """Return `Mortal` as an AEC environment."""
    return parallel_to_aec(Mortal(**kwargs))


class Both(Movers):
    """Environment with an agent with discrete actions and an agent with continuous actions."""

    def action_space(self, agent):
        return spaces.Discrete(2) if agent == "one" else super().action_space(agent)


class MaskedMovers(Movers):
    """Environment with dictionary observations that contain an action mask."""

    def observation_space(self, agent):
        return spaces.Dict({"observation": super().observation_space(agent), "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observe(self):
        mask = np.array([0, 1], np.int8)
        return {agent: {"observation": seen, "action_mask": mask} for agent, seen in super()._observe().items()}


def no_world():
    return object()


imported = AECEnv  # defined elsewhere
