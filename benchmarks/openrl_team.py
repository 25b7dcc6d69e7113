"""OpenRL's multi-agent PPO on simple_spread, for `benchmarks/team_ppo.py`, which says what is changed and why.

    <python of an environment with OpenRL> benchmarks/openrl_team.py <steps> <seed>

The last line that it prints is a list of [environment steps at which an episode ended, the team's return].
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from openrl.configs.config import create_config_parser
from openrl.envs.common import make
from openrl.envs.mpe.multiagent_env import MultiAgentEnv
from openrl.modules.common import PPONet
from openrl.runners.common import PPOAgent

GAMES, LENGTH = 100, 25


def episodes(steps: int, seed: int) -> list[tuple[int, float]]:
    """Train; return the environment steps at which episodes ended, and their teams' returns."""
    torch.set_num_threads(1)
    n_steps, original_step, original_init = 0, MultiAgentEnv.step, MultiAgentEnv.__init__
    open_episodes: dict[int, tuple[int, float]] = {}
    finished_episodes: list[tuple[int, float]] = []

    def step(game: Any, action: Any) -> Any:
        nonlocal n_steps
        found = original_step(game, action)
        n_steps += 1
        length, total = open_episodes.pop(id(game), (0, 0.0))
        length, total = length + 1, total + float(np.ravel(found[1])[0])  # the same for every agent
        if length == LENGTH:
            finished_episodes.append((n_steps, total))
        else:
            open_episodes[id(game)] = length, total
        return found

    def init(game: Any, world: Any, reset: Any, *others: Any, **named: Any) -> None:
        def reset_world(world: Any, *given: Any) -> None:
            reset(world, *given)
            for landmark in world.landmarks:
                landmark.state.p_pos = landmark.state.p_pos / 0.8

        original_init(game, world, reset_world, *others, **named)

    MultiAgentEnv.step, MultiAgentEnv.__init__ = step, init
    settings = {
        "seed": seed,
        "lr": 7e-4,
        "critic_lr": 7e-4,
        "episode_length": LENGTH,
        "log_interval": 1000,
        "use_recurrent_policy": "false",
        "use_joint_action_loss": "true",
        "use_valuenorm": "true",
        "use_adv_normalize": "true",
    }
    typed = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    games = make("simple_spread", env_num=GAMES, asynchronous=False)
    PPOAgent(PPONet(games, cfg=create_config_parser().parse_args(typed), device="cpu")).train(total_time_steps=steps)
    return finished_episodes


if __name__ == "__main__":
    found = episodes(*map(int, sys.argv[1:]))
    print(json.dumps(found))
