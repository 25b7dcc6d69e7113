"""Training with the multi-agent PPO of OpenRL on simple_spread, for `benchmarks/team_ppo.py`.

    <python of an environment with OpenRL> benchmarks/openrl_team.py <steps> <seed>

`benchmarks/team_ppo.py` describes the modifications of OpenRL. The last printed line is a list of [environment steps at
the end of an episode, return of the team].
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


def train(steps: int, seed: int) -> list[tuple[int, float]]:
    """Train, and return (environment steps at the end, return of the team) of each episode."""
    torch.set_num_threads(1)
    n_steps, original_step, original_init = 0, MultiAgentEnv.step, MultiAgentEnv.__init__
    open_episodes: dict[int, tuple[int, float]] = {}
    finished_episodes: list[tuple[int, float]] = []

    def step(game: Any, action: Any) -> Any:
        nonlocal n_steps
        outputs = original_step(game, action)
        n_steps += 1
        length, total = open_episodes.pop(id(game), (0, 0.0))
        length, total = length + 1, total + float(np.ravel(outputs[1])[0])  # equal for all agents
        if length == LENGTH:
            finished_episodes.append((n_steps, total))
        else:
            open_episodes[id(game)] = length, total
        return outputs

    def init(game: Any, world: Any, reset: Any, *args: Any, **kwargs: Any) -> None:
        def reset_world(world: Any, *reset_args: Any) -> None:
            reset(world, *reset_args)
            for landmark in world.landmarks:
                landmark.state.p_pos = landmark.state.p_pos / 0.8

        original_init(game, world, reset_world, *args, **kwargs)

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
    arguments = [argument for key, value in settings.items() for argument in (f"--{key}", str(value))]
    games = make("simple_spread", env_num=GAMES, asynchronous=False)
    PPOAgent(PPONet(games, cfg=create_config_parser().parse_args(arguments), device="cpu")).train(
        total_time_steps=steps
    )
    return finished_episodes


if __name__ == "__main__":
    print(json.dumps(train(*map(int, sys.argv[1:]))))
