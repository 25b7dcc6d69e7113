"""Learning curves of PPO with continuous actions, compared with Stable-Baselines3.

    python benchmarks/continuous_ppo.py [--tasks Pendulum-v1 ...] [--seeds 0 1 2] [--share 1.0] [--out <folder>]

Both implementations use the tuned settings of RL Baselines3 Zoo (`hyperparams/ppo.yml`) and the same number of
environment steps. Curves show the returns of training episodes in ten equal parts of training: means over seeds with
95 % confidence intervals. Remaining differences:

* The zoo uses state-dependent exploration for Pendulum. llmrl uses a Gaussian policy, and Stable-Baselines3 is run with
  and without state-dependent exploration.
* In Stable-Baselines3, some tasks use the default initialization of torch. llmrl always initializes orthogonally.
* Stable-Baselines3 updates the moments of observations at every step, llmrl at every policy update.

Training lasts a tenth of the million steps of the zoo for InvertedDoublePendulum and 6 % for Hopper. `--share`
multiplies the number of steps. Writes `curves.csv` and `curves.png` to `--out`. Needs the extras `mujoco`, `sb3` and
`plots`.
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
    """Settings of a task in RL Baselines3 Zoo.

    Attributes:
        steps: number of environment steps of training.
        games: number of parallel environments.
        rollout: number of steps per environment between updates.
        ppo: options of `agent.ppo`.
        hidden: width of the two hidden layers.
        activation: activation function of the network.
        initial_std: initial standard deviation of actions.
        normalize: whether observations and rewards are normalized.
        library: additional arguments of PPO in Stable-Baselines3, for options that llmrl does not have.
    """

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
        trainers = {"llmrl": train_llmrl, "Stable-Baselines3": train_sb3}
        if task.library:
            trainers["Stable-Baselines3, state-dependent exploration"] = train_sb3_exploration
        for implementation, train in trainers.items():
            rows += measure_curve(name, implementation, partial(train, name, task), task.steps, args.seeds)
    save_curves(rows, args.out)


def train_llmrl(name: str, task: Task, seed: int) -> Episodes:
    """Train `agent=ppo` and return the episodes of training."""
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


def train_sb3(name: str, task: Task, seed: int, **kwargs: Any) -> Episodes:
    """Train PPO of Stable-Baselines3 and return the episodes of training.

    Args:
        name: Gymnasium ID of the task.
        task: settings.
        seed: seed of training.
        **kwargs: additional arguments of `stable_baselines3.PPO`.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
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
        vf_coef=p.get("value_coefficient", 1.0) / 2,  # the value loss of llmrl contains a factor of 1/2
        max_grad_norm=p.get("max_grad_norm", 0.5),
        policy_kwargs=network,
        **kwargs,
    )
    model.set_logger(Logger(None, []))  # the default logger leaves a temporary folder
    model.learn(task.steps)
    lengths = [np.cumsum(monitor.get_episode_lengths()) * task.games for monitor in monitors]
    returns = [np.array(monitor.get_episode_rewards()) for monitor in monitors]
    return np.concatenate(lengths), np.concatenate(returns)


def train_sb3_exploration(name: str, task: Task, seed: int) -> Episodes:
    """Train PPO of Stable-Baselines3 with state-dependent exploration, as in the zoo."""
    return train_sb3(name, task, seed, **(task.library or {}))


if __name__ == "__main__":
    main()
