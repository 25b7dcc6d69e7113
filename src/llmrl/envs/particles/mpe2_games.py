"""The games of the `mpe2` package, one object per game, started from the positions of the batched games."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.particles.physics import ParticleWorld
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.simple_reference import SimpleReference
from llmrl.envs.particles.simple_speaker_listener import SimpleSpeakerListener
from llmrl.envs.particles.simple_spread import SimpleSpread
from llmrl.envs.particles.simple_tag import SimpleTag


class Mpe2Games:
    """`n_envs` parallel environments of `mpe2`, stepped one by one.

    Raises:
        ConfigError: the package has no such game, or is not installed.
    """

    def __init__(self, scenario: Scenario, n_envs: int, horizon: int) -> None:
        self._scenario = scenario
        module, options = _mpe2_environment(scenario)
        try:
            package = importlib.import_module(f"mpe2.{module}")
        except ImportError as error:
            raise ConfigError(f"engine=mpe2 needs the package mpe2 ({error}); run pip install 'mpe2>=1.1'") from error
        self._games = [package.parallel_env(max_cycles=horizon, **options) for _ in range(n_envs)]
        self._ready = np.zeros(n_envs, dtype=bool)
        for game in self._games:
            game.reset(seed=0)  # creates the world; its positions are replaced

    def start(self, world: ParticleWorld, mask: np.ndarray) -> None:
        """Start new games from the positions and goals of `world` where `mask` [n_envs] is true."""
        self.resume(world, mask, np.zeros(len(mask), dtype=np.int64))

    def resume(self, world: ParticleWorld, mask: np.ndarray, time: np.ndarray) -> None:
        """Continue the games where `mask` is true in the state of `world` after `time` [n_envs] steps."""
        for i in np.flatnonzero(mask):
            self._games[i].reset(seed=0)
            raw = self._games[i].unwrapped
            raw.steps = int(time[i])
            for entity, position in zip(raw.world.entities, world.position[i], strict=True):
                entity.state.p_pos = position.copy()
            for agent, velocity, message in zip(raw.world.agents, world.velocity[i], world.said[i], strict=True):
                agent.state.p_vel, agent.state.c = velocity.copy(), message.copy()
            for (guide, guided), goal in zip(self._scenario.guides, world.goal[i], strict=True):
                raw.world.agents[guide].goal_a = raw.world.agents[guided]
                raw.world.agents[guide].goal_b = raw.world.landmarks[goal]

    def step(self, action: np.ndarray, active: np.ndarray, world: ParticleWorld) -> tuple[np.ndarray, np.ndarray]:
        """Play `action` [n_envs, A] in the games that are `active`, and copy the resulting states into `world`.

        Returns rewards [n_envs, A] and which games the package calls truncated, [n_envs].
        """
        names, mpe2_actions = self._scenario.bodies.agents, self._scenario.to_mpe2_actions(action)
        reward, truncated = np.zeros(action.shape), np.zeros(len(action), dtype=bool)
        for i in np.flatnonzero(active):
            _, rewards, _, truncations, _ = self._games[i].step(dict(zip(names, mpe2_actions[i].tolist(), strict=True)))
            reward[i] = [rewards[name] for name in names]
            truncated[i] = all(truncations.values())
            agents = self._games[i].unwrapped.world.agents
            world.position[i, : len(names)] = [agent.state.p_pos for agent in agents]
            world.velocity[i] = [agent.state.p_vel for agent in agents]
            world.said[i] = [agent.state.c for agent in agents]
        return reward, truncated

    def observe(self) -> np.ndarray:
        """Return observations, [n_envs, A, width] float32; shorter vectors are padded with zeros."""
        observation = np.zeros(
            (len(self._games), self._scenario.bodies.n_agents, self._scenario.width), dtype=np.float32
        )
        for i, game in enumerate(self._games):
            for j, name in enumerate(self._scenario.bodies.agents):
                game_observation = game.unwrapped.observe(name)
                observation[i, j, : len(game_observation)] = game_observation
        return observation

    def close(self) -> None:
        for game in self._games:
            game.close()


def _mpe2_environment(scenario: Scenario) -> tuple[str, dict[str, Any]]:
    """Return the package's module for a scenario, and the arguments of its environment."""
    match scenario:
        case SimpleSpread():
            return "simple_spread_v3", {"N": scenario.n_agents, "local_ratio": scenario.local_ratio}
        case SimpleTag():
            numbers = (scenario.n_adversaries, scenario.n_good, scenario.n_obstacles)
            return "simple_tag_v3", dict(zip(("num_adversaries", "num_good", "num_obstacles"), numbers, strict=True))
        case SimpleReference(n_agents=2):
            return "simple_reference_v3", {"local_ratio": scenario.local_ratio}
        case SimpleSpeakerListener(n_agents=2):
            return "simple_speaker_listener_v4", {}
        case SimpleReference() | SimpleSpeakerListener():
            raise ConfigError(
                f"{scenario.name} of mpe2 has 2 agents, not {scenario.n_agents}; use engine=batched or n_agents=2"
            )
        case _:
            raise ConfigError(f"mpe2 has no scenario {scenario.name}; use engine=batched")
