"""PPO with real-valued actions beside that of Stable-Baselines3, with the settings of its zoo: learning curves.

    python benchmarks/continuous_ppo.py [--tasks Pendulum-v1 ...] [--seeds 0 1 2] [--share 1.0] [--out <folder>]

Both learn for the same environment steps from the same tuned settings, of RL Baselines3 Zoo (`hyperparams/ppo.yml`).
What is compared is the return of the episodes they played while they learned, in ten equal parts of training, the mean
over seeds with its 95 % interval. Differences that are left: where the zoo has state-dependent exploration (Pendulum),
ours has plain Gaussians and the library is run both ways; its initial weights are torch's where ours are orthogonal;
moments of observations move with every step there and with every update here. The MuJoCo tasks have a tenth and
a sixteenth of the zoo's million steps; `--share` is a further share.
Writes `curves.csv` and `curves.png` to `--out`. Needs the extras `mujoco`, `sb3` and `plots`.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from learning_curves import Episodes, Rows, measure_curve, read_episodes, save_curves

import llmrl


class Task(NamedTuple):
    """Settings of the zoo: `ppo` are PPO's keys here, the others are of the network and the games."""

    steps: int
    games: int
    rollout: int
    ppo: dict[str, Any]
    hidden: int = 64
    activation: str = "tanh"
    initial_std: float = 1.0
    normalize: bool = True
    library: dict[str, Any] | None = None


TASKS = {
    "Pendulum-v1": Task(
        100_000,
        4,
        1024,
        {"learning_rate": 1e-3, "gamma": 0.9, "gae_lambda": 0.95, "epochs": 10, "minibatch_size": 64, "clip": 0.2},
        normalize=False,
        library={"use_sde": True, "sde_sample_freq": 4},
    ),
    "InvertedDoublePendulum-v5": Task(
        100_000,
        1,
        128,
        {
            "learning_rate": 1.55454e-4,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "epochs": 10,
            "minibatch_size": 512,
            "clip": 0.4,
            "entropy_coefficient": 1.05057e-6,
            "value_coefficient": 2 * 0.695929,
        },
    ),
    "Hopper-v5": Task(
        60_000,
        1,
        512,
        {
            "learning_rate": 9.80828e-5,
            "gamma": 0.999,
            "gae_lambda": 0.99,
            "epochs": 5,
            "minibatch_size": 32,
            "clip": 0.2,
            "entropy_coefficient": 0.00229519,
            "value_coefficient": 2 * 0.835671,
            "max_grad_norm": 0.7,
        },
        hidden=256,
        activation="relu",
        initial_std=float(np.exp(-2)),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("build/continuous_ppo"))
    args = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    rows: Rows = []
    for name in args.tasks:
        task = TASKS[name]._replace(steps=int(TASKS[name].steps * args.share))
        learners = {"llmrl": learn_with_llmrl, "Stable-Baselines3": learn_with_sb3}
        if task.library:
            learners["Stable-Baselines3, state-dependent exploration"] = learn_with_sb3_exploration
        for learner, learn in learners.items():
            rows += measure_curve(name, learner, partial(learn, name, task), task.steps, args.seeds)
    save_curves(rows, args.out)


def learn_with_llmrl(name: str, task: Task, seed: int) -> Episodes:
    """Learn with `agent=ppo`."""
    ppo = {"entropy_coefficient": 0.0, "value_coefficient": 1.0, "value_clip": None, **task.ppo}
    with tempfile.TemporaryDirectory() as root:
        run = llmrl.train(
            "env=gymnasium",
            f"env.id={name}",
            f"env.n_envs={task.games}",
            "agent=ppo",
            "agent.critic=separate",
            f"agent.core_hidden=[{task.hidden}]",
            f"agent.features={task.hidden}",
            f"agent.activation={task.activation}",
            f"agent.initial_std={task.initial_std}",
            f"agent.normalize_observations={str(task.normalize).lower()}",
            f"agent.ppo.scale_rewards={str(task.normalize).lower()}",
            *(f"agent.ppo.{key}={'null' if value is None else value}" for key, value in ppo.items()),
            f"learn.env_steps={task.steps}",
            f"learn.rollout_steps={task.rollout}",
            "learn.evaluate_episodes=1",
            "loggers=[jsonl]",
            f"seed={seed}",
            f"output_root={root}",
        )
        return read_episodes(Path(run.folder), task.games)


def learn_with_sb3(name: str, task: Task, seed: int, **more: Any) -> Episodes:
    """Learn with Stable-Baselines3."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    p = task.ppo
    monitors = [Monitor(gymnasium.make(name)) for _ in range(task.games)]
    games: Any = DummyVecEnv([lambda m=m: m for m in monitors])  # type: ignore[misc]
    if task.normalize:
        games = VecNormalize(games, gamma=p["gamma"])
    network = {
        "net_arch": {"pi": [task.hidden] * 2, "vf": [task.hidden] * 2},
        "activation_fn": torch.nn.Tanh if task.activation == "tanh" else torch.nn.ReLU,
        "log_std_init": float(np.log(task.initial_std)),
        "ortho_init": task.initial_std == 1.0,
    }
    model = PPO(
        "MlpPolicy",
        games,
        seed=seed,
        device="cpu",
        n_steps=task.rollout,
        batch_size=p["minibatch_size"],
        n_epochs=p["epochs"],
        learning_rate=p["learning_rate"],
        gamma=p["gamma"],
        gae_lambda=p["gae_lambda"],
        clip_range=p["clip"],
        ent_coef=p.get("entropy_coefficient", 0.0),
        vf_coef=p.get("value_coefficient", 1.0) / 2,  # its value loss is the squared error, ours half of it
        max_grad_norm=p.get("max_grad_norm", 0.5),
        policy_kwargs=network,
        **more,
    )
    model.learn(task.steps)
    lengths = [np.cumsum(monitor.get_episode_lengths()) * task.games for monitor in monitors]
    returns = [np.array(monitor.get_episode_rewards()) for monitor in monitors]
    return np.concatenate(lengths), np.concatenate(returns)


def learn_with_sb3_exploration(name: str, task: Task, seed: int) -> Episodes:
    """Learn with Stable-Baselines3 and what the zoo has that is only its own."""
    return learn_with_sb3(name, task, seed, **(task.library or {}))


if __name__ == "__main__":
    main()
