"""Multi-agent PPO on a particle world beside OpenRL's, with the published baseline's settings: learning curves.

    python benchmarks/team_ppo.py --openrl <python> [--steps 500000] [--seeds 0 1 2] [--out <folder>]

`<python>` is that of an environment with OpenRL, which does not run with today's libraries:

    python3.11 -m venv openrl
    openrl/bin/pip install openrl==0.2.0 gymnasium==0.29.1 pettingzoo==1.24.3 pyglet==1.5.27 'numpy<2' \\
        'jsonargparse<4.30'

Both play simple_spread in 100 games and learn after each episode of 25 steps, without recurrent networks. What is
compared is the return of the episodes they played while they learned, in ten equal parts of training, the mean over
seeds with its 95 % interval. Two things of OpenRL's world are made those of `env=simple_spread`: landmarks lie in the
whole square, not in the inner four fifths; and its returns, the sum of three agents' rewards in which each agent counts
as touching itself, are divided by six after 75 was added. There all agents are rewarded for the team's collisions, here
each for its own.
Writes `curves.csv` and `curves.png` to `--out`. Needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

GAMES, LENGTH, AGENTS = 100, 25, 3
TASK = "simple_spread"
MARK = "EPISODES "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openrl", type=Path, help="Python of an environment with OpenRL; without it ours alone")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("team_ppo"))
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)  # the seed of a run in OpenRL's environment
    asked = parser.parse_args()
    if asked.inside is not None:
        print(MARK + json.dumps(openrl_episodes(asked.steps, asked.inside)))
        return
    from continuous_ppo import binned, drawn, told

    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for who, learn in {"llmrl": ours, **({"OpenRL": library} if asked.openrl else {})}.items():
        start, found = time.perf_counter(), []
        for seed in asked.seeds:
            found.append(binned(learn(asked.steps, seed, asked.openrl), asked.steps))
            print(f"  {who}, seed {seed}: {found[-1][-1]:.2f} in the last tenth", flush=True)
        spent = (time.perf_counter() - start) / len(asked.seeds)
        rows += told(TASK, who, np.array(found), asked.steps, spent)
    with (asked.out / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    drawn(rows, asked.out / "curves.png")


def ours(steps: int, seed: int, _: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Learn with `treatment=team_published`: environment steps at which episodes ended, and their returns, each [n]."""
    import llmrl
    from llmrl.run.training_episodes import read_training_episodes

    with tempfile.TemporaryDirectory() as root:
        run = llmrl.train(
            "experiment=teacher/teams",
            "treatment=team_published",
            f"learn.env_steps={steps}",
            "learn.evaluate_every=0",
            "learn.evaluate_episodes=1",
            "loggers=[jsonl]",
            f"seed={seed}",
            f"output_root={root}",
        )
        table = read_training_episodes(Path(run.folder))
    assert table is not None
    return (table.places["start"] + table.places["length"]) * GAMES, table.metrics["return"]


def library(steps: int, seed: int, python: Path) -> tuple[np.ndarray, np.ndarray]:
    """Learn with OpenRL, in a process of its environment; as `ours`."""
    command = [str(python), "-W", "ignore", __file__, "--inside", str(seed), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as root:
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(MARK))
    ended, returns = np.array(json.loads(line.removeprefix(MARK))).T
    return ended, (returns + LENGTH * AGENTS) / (2 * AGENTS)


def openrl_episodes(steps: int, seed: int) -> list[tuple[int, float]]:
    """Learn in this process, which has OpenRL: environment steps at which episodes ended, and their team's returns."""
    import torch
    from openrl.configs.config import create_config_parser
    from openrl.envs.common import make
    from openrl.envs.mpe.multiagent_env import MultiAgentEnv
    from openrl.modules.common import PPONet
    from openrl.runners.common import PPOAgent

    torch.set_num_threads(1)
    played, plain, made = 0, MultiAgentEnv.step, MultiAgentEnv.__init__
    taken: dict[int, tuple[int, float]] = {}
    episodes: list[tuple[int, float]] = []

    def step(game: Any, action: Any) -> Any:
        nonlocal played
        found = plain(game, action)
        played += 1
        length, total = taken.pop(id(game), (0, 0.0))
        length, total = length + 1, total + float(np.ravel(found[1])[0])  # the same for every agent
        if length == LENGTH:
            episodes.append((played, total))
        else:
            taken[id(game)] = length, total
        return found

    def init(game: Any, world: Any, reset: Any, *others: Any, **named: Any) -> None:
        def reset_world(world: Any, *given: Any) -> None:
            reset(world, *given)
            for landmark in world.landmarks:
                landmark.state.p_pos = landmark.state.p_pos / 0.8

        made(game, world, reset_world, *others, **named)

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
    games = make(TASK, env_num=GAMES, asynchronous=False)
    PPOAgent(PPONet(games, cfg=create_config_parser().parse_args(typed), device="cpu")).train(total_time_steps=steps)
    return episodes


if __name__ == "__main__":
    sys.exit(main())
