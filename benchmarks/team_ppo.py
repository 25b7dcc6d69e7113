r"""Learning curves of multi-agent PPO on a particle world, compared with OpenRL, with published settings.

    python benchmarks/team_ppo.py --openrl <python> [--steps 500000] [--seeds 0 1 2] [--out <folder>]

`<python>` is the interpreter of an environment with OpenRL, which is incompatible with current libraries:

    python3.11 -m venv openrl
    openrl/bin/pip install openrl==0.2.0 gymnasium==0.29.1 pettingzoo==1.24.3 pyglet==1.5.27 'numpy<2' \\
        'jsonargparse<4.30'

Both play simple_spread in 100 games and update after each episode of 25 steps, without recurrent networks. Curves show
the returns of training episodes in ten equal parts of training: means over seeds with 95 % confidence intervals. Two
properties of the OpenRL world are adapted to `env=simple_spread`:

* Landmarks are placed in the full square instead of the inner four fifths.
* In OpenRL, the return is the sum of the rewards of three agents, and each agent counts as colliding with itself.
  Therefore, 75 is added, and the sum is divided by six.

One difference remains: OpenRL penalizes each agent for the collisions of the team, llmrl for its own collisions. Writes
`curves.csv` and `curves.png` to `--out`. Needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from learning_curves import Episodes, Rows, measure_curve, read_episodes, save_curves

import llmrl

TASK = "simple_spread"
GAMES, LENGTH, AGENTS = 100, 25, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--openrl", type=Path, help="Python interpreter of an environment with OpenRL (default: only llmrl)"
    )
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("build/team_ppo"))
    args = parser.parse_args()
    rows: Rows = measure_curve(TASK, "llmrl", partial(train_llmrl, args.steps), args.steps, args.seeds, digits=2)
    if args.openrl:
        rows += measure_curve(
            TASK, "OpenRL", partial(train_openrl, args.openrl, args.steps), args.steps, args.seeds, digits=2
        )
    save_curves(rows, args.out)


def train_llmrl(steps: int, seed: int) -> Episodes:
    """Train with `treatment=team_published` of llmrl."""
    with tempfile.TemporaryDirectory() as root:
        run = llmrl.train(
            "experiment=teacher/teams",
            "treatment=team_published",
            f"learn.env_steps={steps}",
            "learn.evaluation_interval=0",
            "learn.evaluate_episodes=1",
            "loggers=[jsonl]",
            f"seed={seed}",
            f"output_root={root}",
        )
        return read_episodes(Path(run.folder), GAMES)


def train_openrl(python: Path, steps: int, seed: int) -> Episodes:
    """Train with OpenRL in a process of its environment."""
    script = Path(__file__).with_name("openrl_team.py")
    command = [python.absolute(), "-W", "ignore", script.absolute(), str(steps), str(seed)]
    with tempfile.TemporaryDirectory() as root:
        process = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    end_steps, returns = np.array(json.loads(process.stdout.splitlines()[-1])).T
    return end_steps, (returns + LENGTH * AGENTS) / (2 * AGENTS)


if __name__ == "__main__":
    main()
