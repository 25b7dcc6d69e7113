"""Training speed of PPO on MiniGrid-DoorKey-8x8: llmrl in vectorized rooms, and Stable-Baselines3 in MiniGrid.

    python benchmarks/minigrid_ppo.py [--updates 6] [--rounds 3]

Both train the same network on the same 7x7 views with the same settings: 16 games, 128 steps of each per update, 4
epochs of minibatches of 256, one thread. There are two networks: an MLP with two layers of 64 units (the default of
Stable-Baselines3), and three 3x3 convolutions with a linear layer, which dominate the time in both libraries.
Measurements alternate in one process. Prints medians over rounds of environment steps per second, for training
(rollouts and updates), and for random actions in 16 games of MiniGrid in Gymnasium's SyncVectorEnv and in the
vectorized rooms.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gymnasium
import numpy as np
import torch
from minigrid.wrappers import ImgObsWrapper
from plain_ppo import build_ppo_agent

from llmrl.algorithms.ppo import PPOSettings
from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.tasks import DoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.rollout.collector import Collector

ENV = "MiniGrid-DoorKey-8x8-v0"
GAMES, STEPS, MINIBATCH, EPOCHS, FEATURES = 16, 128, 256, 4, 64
SETTINGS = PPOSettings(
    3e-4, 1e-5, 0.99, 0.95, EPOCHS, MINIBATCH, 0.2, None, True, 0.01, 0.5, 0.5, None, bootstrap_truncation=True
)  # fmt: skip


class LlmrlTrainer:
    """Training with PPO of llmrl in vectorized rooms."""

    def __init__(self, network: str) -> None:
        seeds = Seeds(0)
        self.env = RoomsEnv(seeds.child("env"), DoorKey(8), GAMES, agent_view_size=7, horizon=None, observe=["view"])
        self.agent = build_ppo_agent(
            self.env.spec,
            seeds.child("agent"),
            SETTINGS,
            features=FEATURES,
            core="mlp" if network == "mlp" else "auto",
            encoding="codes",
        )
        self.collector = Collector(self.env, self.agent.policy, "cpu")
        self.collector.reset(0)

    def train(self, updates: int) -> None:
        for i in range(updates):
            rollout = self.collector.collect(STEPS, Seeds(i).torch("actions"))
            self.agent.update(rollout, Seeds(i).torch("minibatches"))

    def count_parameters(self) -> int:
        return sum(p.numel() for p in self.agent.policy.parameters())


class SB3Trainer:
    """Training with PPO of Stable-Baselines3 in a DummyVecEnv of MiniGrid environments."""

    def __init__(self, network: str) -> None:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.logger import Logger

        env = make_vec_env(lambda: ImgObsWrapper(gymnasium.make(ENV)), n_envs=GAMES, seed=0)
        policy = {
            "features_extractor_class": _make_extractor_class(network),
            "features_extractor_kwargs": {"features_dim": FEATURES},
            "net_arch": [],
            "normalize_images": False,
        }
        self.model = PPO(
            "CnnPolicy", env, learning_rate=3e-4, n_steps=STEPS, batch_size=MINIBATCH, n_epochs=EPOCHS, gamma=0.99,
            gae_lambda=0.95, ent_coef=0.01, policy_kwargs=policy, device="cpu", seed=0,
        )  # fmt: skip
        self.model.set_logger(Logger(None, []))  # the default logger leaves a temporary folder

    def train(self, updates: int) -> None:
        self.model.learn(updates * GAMES * STEPS, reset_num_timesteps=False)

    def count_parameters(self) -> int:
        return sum(p.numel() for p in self.model.policy.parameters())


def _make_extractor_class(network: str) -> type:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Core(BaseFeaturesExtractor):  # type: ignore[misc]
        """Features extractor with the architecture of the llmrl core."""

        def __init__(self, space: gymnasium.spaces.Box, features_dim: int) -> None:
            super().__init__(space, features_dim)
            channels, height, width = space.shape
            layers: list[torch.nn.Module] = []
            for n_out in () if network == "mlp" else (16, 32, 64):
                layers += [torch.nn.Conv2d(channels, n_out, 3, padding=1), torch.nn.ReLU()]
                channels = n_out
            layers.append(torch.nn.Flatten())
            flat = channels * height * width
            if network == "mlp":
                layers += [torch.nn.Linear(flat, 64), torch.nn.ReLU()]
                flat = 64
            self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(flat, features_dim), torch.nn.ReLU())

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.layers(observations)

    return Core


def measure_minigrid(steps: int) -> float:
    """Return environment steps per second of Gymnasium's SyncVectorEnv under random actions."""
    env = gymnasium.vector.SyncVectorEnv([lambda: ImgObsWrapper(gymnasium.make(ENV)) for _ in range(GAMES)])
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(7, size=(steps, GAMES))
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    rate = steps * GAMES / (time.perf_counter() - start)
    env.close()
    return rate


def measure_batched_rooms(steps: int) -> float:
    """Return environment steps per second of the vectorized rooms under random actions."""
    env = RoomsEnv(Seeds(0), DoorKey(8), GAMES, agent_view_size=7, horizon=None, observe=["view"])
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(7, size=(steps, GAMES, 1))
    start = time.perf_counter()
    for action in actions:
        step = env.step(action)
        done = step.terminated | step.truncated
        if done.any():
            env.reset(mask=done)
    return steps * GAMES / (time.perf_counter() - start)


def main() -> None:
    """Print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6, help="updates per measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each trainer")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for network in ("mlp", "convolutions"):
        compare(network, args.updates, args.rounds)


def compare(network: str, updates: int, rounds: int) -> None:
    """Measure training with a network, and print the table."""
    trainers = {
        "llmrl PPO, batched rooms": LlmrlTrainer(network),
        "Stable-Baselines3 PPO, MiniGrid": SB3Trainer(network),
    }
    rates: dict[str, list[float]] = {name: [] for name in trainers}
    rates |= {"raw MiniGrid, SyncVectorEnv": [], "raw batched rooms": []}
    for trainer in trainers.values():
        trainer.train(1)  # warm up
    for _ in range(rounds):
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.train(updates)
            rates[name].append(updates * GAMES * STEPS / (time.perf_counter() - start))
        rates["raw MiniGrid, SyncVectorEnv"].append(measure_minigrid(100))
        rates["raw batched rooms"].append(measure_batched_rooms(1000))
    median = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{ENV}, {network}, {GAMES} games, 1 thread; parameters: {[t.count_parameters() for t in trainers.values()]}")
    for name, rate in median.items():
        print(f"{name:34s} {rate:10,.0f} env steps/s")
    llmrl_rate, sb3_rate, minigrid_rate, _ = median.values()
    print(
        f"llmrl / Stable-Baselines3: {llmrl_rate / sb3_rate:.2f}   "
        f"llmrl / raw MiniGrid: {llmrl_rate / minigrid_rate:.2f}"
    )


if __name__ == "__main__":
    main()
