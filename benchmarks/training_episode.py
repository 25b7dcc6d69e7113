"""CPU seconds of a training episode in Harvest: a rollout of 1,000 steps of seven agents and a PPO update.

Compares two implementations with the same frozen convolutional core, heads and update (4 epochs of minibatches of 128):

(a) the published method: the engine with its default observations, rebuilt for each episode; floating-point images in
    the rollout buffer; the frozen core applied to every minibatch;
(b) llmrl: only image observations; games forked in advance; features of the frozen core in the rollout buffer.

The published code needs 34 CPU seconds per episode on a comparable core (measured separately; it is not run here).
Target: at most a third of this time.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from melting_pot import Official
from plain_ppo import PPO_SETTINGS, build_ppo_agent

from llmrl.agents.ppo_agent import PPOAgent
from llmrl.algorithms.advantages_and_losses import generalized_advantages
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.networks.action_distributions import CategoricalDistribution, sample_categorical
from llmrl.rollout.collector import Collector

PUBLISHED_SECONDS = 34.0
"""CPU seconds of a training episode of the published code."""
STEPS, PLAYERS, ROUNDS = 1000, 7, 3


def make_agent(spec: EnvSpec) -> PPOAgent:
    return build_ppo_agent(spec, Seeds(0), PPO_SETTINGS, freeze="core")


def run_published_episode(engine: Official, agent: PPOAgent) -> None:
    """Run a training episode with the published method and the networks of llmrl."""
    network = agent.policy.members[0]
    generator = torch.Generator().manual_seed(0)
    extras = torch.cat([torch.zeros(PLAYERS, 3), torch.eye(PLAYERS)], dim=1)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3, eps=1e-5)
    images = torch.zeros(STEPS, PLAYERS, 88, 88, 3)
    action, log_prob = torch.zeros(STEPS, PLAYERS, dtype=torch.int64), torch.zeros(STEPS, PLAYERS)
    value, reward = torch.zeros(STEPS, PLAYERS), torch.zeros(STEPS, PLAYERS)

    def encode(images: torch.Tensor, extras: torch.Tensor) -> torch.Tensor:
        return torch.cat([network.core(images * 255), extras], dim=1)

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
    flat = {"image": images.flatten(0, 1), "extras": extras.repeat(STEPS, 1), "action": action.flatten()}
    for _ in range(PPO_SETTINGS.epochs):
        for indices in torch.randperm(STEPS * PLAYERS, generator=generator).split(PPO_SETTINGS.minibatch_size):
            logits, new_value = network.heads(encode(flat["image"][indices], flat["extras"][indices]))
            new_log_prob, entropy = CategoricalDistribution.log_prob_entropy(logits, flat["action"][indices])
            ratio = (new_log_prob - log_prob.flatten()[indices]).exp()
            adv = advantage.flatten()[indices]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = -surrogate + 0.25 * (new_value - target[indices]).square().mean() - 0.025 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), PPO_SETTINGS.max_grad_norm)
            optimizer.step()


def read_cpu_seconds() -> float:
    """Return CPU seconds of this process and of exited child processes."""
    usages = (resource.getrusage(process) for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(function: Callable[[], None]) -> tuple[float, float]:
    """Return CPU and wall-clock seconds of a call."""
    cpu, wall = read_cpu_seconds(), time.perf_counter()
    function()
    return read_cpu_seconds() - cpu, time.perf_counter() - wall


def run_episodes(n_envs: int, rounds: int) -> None:
    """Run `rounds` training episodes in each of `n_envs` games, including start and exit of worker processes."""
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
        published = measure(lambda: run_published_episode(engine, make_agent(spec)))
        single = measure(lambda: run_episodes(1, 2))
        double = measure(lambda: run_episodes(2, 2))
        rows.append((*published, single[0] / 2, single[1] / 2, double[0] / 4, double[1] / 4))
    names = ("published method", "llmrl, 1 game", "llmrl, 2 games")
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    for i, name in enumerate(names):
        cpu, wall = medians[2 * i], medians[2 * i + 1]
        print(
            f"{name:20} {cpu:6.2f} CPU s  {wall:6.2f} s wall per training episode   "
            f"{cpu / medians[0]:.2f} of the CPU time of the published method   "
            f"{cpu / PUBLISHED_SECONDS:.2f} of the {PUBLISHED_SECONDS:.0f} CPU s of the published code (target <= 0.33)"
        )


if __name__ == "__main__":
    main()
