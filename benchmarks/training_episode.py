"""CPU-seconds of a whole training episode in Harvest: a 1000-step rollout of seven agents and the PPO update after it.

Side by side in one run, with the same frozen convolutional core, heads and update (4 epochs of minibatches of 128):

(a) the published treatment: the engine with everything it observes by default, rebuilt for the episode, floating-point
    images kept in the rollout, and the frozen core run again on every minibatch;
(b) ours: only the pictures asked for, games forked ahead, features of the frozen core kept by the rollout.

The published code itself needs 34 CPU-seconds an episode on a comparable core (measured apart; it is not installed
here). Target: at most a third of that.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from melting_pot import Official
from plain_ppo import PPO_SETTINGS, plain_ppo

from llmrl.agents.ppo_agent import PPOAgent
from llmrl.algorithms.advantages_and_losses import generalized_advantages
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.networks.action_distributions import CategoricalDistribution, sample_categorical
from llmrl.rollout.collector import Collector

PUBLISHED = 34.0  # CPU-seconds
STEPS, PLAYERS, ROUNDS = 1000, 7, 3


def make_agent(spec: EnvSpec) -> PPOAgent:
    return plain_ppo(spec, Seeds(0), PPO_SETTINGS, freeze="core")


def published_episode(engine: Official, agent: PPOAgent) -> None:
    """Play one episode the published way, with our networks."""
    network = agent.policy.members[0]
    generator = torch.Generator().manual_seed(0)
    extras = torch.cat([torch.zeros(PLAYERS, 3), torch.eye(PLAYERS)], dim=1)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3, eps=1e-5)
    images = torch.zeros(STEPS, PLAYERS, 88, 88, 3)
    action, log_prob = torch.zeros(STEPS, PLAYERS, dtype=torch.int64), torch.zeros(STEPS, PLAYERS)
    value, reward = torch.zeros(STEPS, PLAYERS), torch.zeros(STEPS, PLAYERS)

    def encode(batch: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        return torch.cat([network.core(batch * 255), rest], dim=1)

    engine.reset()
    observation = engine.timestep.observation
    for t in range(STEPS):
        frames = np.stack([observation[f"{i + 1}.RGB"] for i in range(PLAYERS)])
        images[t] = torch.as_tensor(frames, dtype=torch.float32) / 255
        with torch.no_grad():
            logits, value[t] = network.heads(encode(images[t], extras))
            action[t] = sample_categorical(logits, generator)
            log_prob[t], _ = CategoricalDistribution.log_prob_entropy(logits, action[t])
        engine.step(action[t].numpy()[None])
        observation = engine.timestep.observation
        reward[t] = torch.tensor([float(observation[f"{i + 1}.REWARD"]) for i in range(PLAYERS)])
    next_value = torch.cat([value[1:], torch.zeros(1, PLAYERS)])
    done = torch.zeros(STEPS, PLAYERS, dtype=torch.bool)
    done[-1] = True
    advantage = generalized_advantages(reward, value, next_value, done, 0.998, 0.98)
    target = (advantage + value).flatten()
    flat = {"image": images.flatten(0, 1), "rest": extras.repeat(STEPS, 1), "action": action.flatten()}
    for _ in range(PPO_SETTINGS.epochs):
        for indices in torch.randperm(STEPS * PLAYERS, generator=generator).split(PPO_SETTINGS.minibatch_size):
            logits, predicted = network.heads(encode(flat["image"][indices], flat["rest"][indices]))
            new, entropy = CategoricalDistribution.log_prob_entropy(logits, flat["action"][indices])
            ratio = (new - log_prob.flatten()[indices]).exp()
            a = advantage.flatten()[indices]
            a = (a - a.mean()) / (a.std() + 1e-8)
            surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
            loss = -surrogate + 0.25 * (predicted - target[indices]).square().mean() - 0.025 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), PPO_SETTINGS.max_grad_norm)
            optimizer.step()


def cpu_seconds() -> float:
    """Return CPU-seconds of this process and of children that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measure(play: Callable[[], None]) -> tuple[float, float]:
    """Return CPU and wall seconds."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    play()
    return cpu_seconds() - cpu, time.perf_counter() - wall


def play_episodes(n_envs: int, rounds: int) -> None:
    """Play `rounds` training episodes in each of `n_envs` games, including start and end of worker processes."""
    env = MeltingPotEnv(SubstrateSettings("harvest", n_envs, mechanism=BracketedTax()), Seeds(0))
    agent = make_agent(env.spec)
    collector = Collector(env, agent.policy, "cpu")
    for i in range(rounds):
        collector.reset(i)
        agent.update(collector.collect(STEPS, Seeds(i).torch("actions")), Seeds(i).torch("minibatches"))
    env.close()


def main() -> None:
    torch.set_num_threads(1)
    engine = Official("harvest")
    spec = MeltingPotEnv(SubstrateSettings("harvest", 1, mechanism=BracketedTax()), Seeds(0)).spec
    rows = []
    for _ in range(ROUNDS):
        published = measure(lambda: published_episode(engine, make_agent(spec)))
        one = measure(lambda: play_episodes(1, 2))
        two = measure(lambda: play_episodes(2, 2))
        rows.append((*published, one[0] / 2, one[1] / 2, two[0] / 4, two[1] / 4))
    names = ("published treatment", "ours, 1 game", "ours, 2 games")
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    for i, name in enumerate(names):
        cpu, wall = medians[2 * i], medians[2 * i + 1]
        print(
            f"{name:20} {cpu:6.2f} CPU-s  {wall:6.2f} s wall per training episode   {cpu / medians[0]:.2f} of the "
            f"treatment's CPU   {cpu / PUBLISHED:.2f} of the published code's {PUBLISHED:.0f} CPU-s (target <= 0.33)"
        )


if __name__ == "__main__":
    main()
