"""Cost of acting in Harvest on the native engine, one thread: the forward pass of each core, and the rest of a step.

    python benchmarks/forward_pass.py [--games 1 16 64 1024] [--rounds 9] [--steps 100] [--no-update]

The first table is of `SocietyPolicy.act` without what draws actions: microseconds an agent step of core and heads, for
each batch of seven players a game. `as before` computes one-hots as they were before their table: scattered cell by
cell, all samples at once. The MLP reads 15 numbers. The second is of an update: forward
and backward of 512 samples. The third says what is left of a step of a rollout that learns, with the core of
`agent=harvest_society`, trained, and with one of convolutions: the environment, the forward pass, drawing actions with
their log-probabilities, and bookkeeping (all that the collector does beside).

All take turns within a round. Printed are the least processor time of a call over the rounds, which other work on the
machine disturbs least, and how many times the first row that is.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain_ppo import plain_ppo
from torch import nn

from llmrl.agents.ppo_agent import PPOAgent
from llmrl.algorithms.ppo import PPOSettings
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.spatial_cores import OneHots
from llmrl.rollout.collector import Collector

SETTINGS = PPOSettings(1e-3, 1e-5, 0.998, 0.98, 4, 512, 0.2, 0.2, True, 0.025, 0.5, 0.5, None, True)
PLAYERS, SAMPLES = 7, 512
PLANES = {"core": "planes", "planes": ["apple", "wall", "grass", "others"], "features": 64}
CORES: dict[str, dict[str, Any]] = {
    "convolutions [8,16] as before": {"map_channels": [8, 16], "features": 64},
    "convolutions [8,16]": {"map_channels": [8, 16], "features": 64},
    "convolutions [16,32,64], the default": {},
    "planes, four facts": PLANES,
    "MLP on numbers": {"core": "mlp", "core_hidden": [64], "features": 64},
}
NUMBERS = {"numbers": Channel((15,), "float32", 0, 1)}
ROLLOUTS = {
    "planes, four facts": {**PLANES, "head_hidden": [64]},
    "convolutions [8,16]": CORES["convolutions [8,16]"],
}


class ScatteredOneHots(OneHots):
    """One-hots written cell by cell, as they were before their table."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        entries = codes.long() + self.first_code
        return codes.new_zeros((*codes.shape[:-1], self.n_entries)).scatter_(-1, entries, 1)


def use_scattered_one_hots(network: ActorCritic) -> None:
    """Make the network compute as it did before."""
    network._piece = 0
    for module in network.modules():
        if type(module) is OneHots:
            module.__class__ = ScatteredOneHots


def make_games(n: int) -> NativeEnv:
    game = SubstrateSettings("harvest", n, observe=["grid"], mechanism=BracketedTax(), horizon=None)
    return NativeEnv(game, Seeds(0))


def numbers_spec(spec: EnvSpec) -> EnvSpec:
    return EnvSpec("numbers", spec.n_envs, PLAYERS, NUMBERS, spec.n_actions, spec.action_names, horizon=None)


def society(spec: EnvSpec, title: str, options: dict[str, Any]) -> PPOAgent:
    agent = plain_ppo(numbers_spec(spec) if "MLP" in title else spec, Seeds(0), SETTINGS, **options)
    if "before" in title:
        use_scattered_one_hots(agent.policy.groups()[0][0])
    return agent


def play_randomly(env: NativeEnv, steps: int = 20) -> dict[str, torch.Tensor]:
    """Return observations of games that random players have played for a while, and 15 numbers."""
    observation: Any = env.reset(seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        shape = (env.spec.n_envs, PLAYERS)
        observation = env.step(torch.randint(env.spec.n_actions, shape, generator=generator)).observation
    observations = {name: x.clone() for name, x in observation.items()}
    return observations | {"numbers": torch.rand(env.spec.n_envs, PLAYERS, 15, generator=generator)}


def min_seconds(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the processor seconds of each way, the minimum over `rounds` turns."""
    seconds = {title: float("inf") for title in variants}
    for variant in variants.values():
        variant()
    for _ in range(rounds):
        for title, variant in variants.items():
            begin = time.thread_time()
            variant()
            seconds[title] = min(seconds[title], time.thread_time() - begin)
    return seconds


def forward_pass(policy: nn.Module, observations: dict[str, torch.Tensor]) -> Callable[[], Any]:
    [(network, agents)] = policy.groups()  # type: ignore[operator]
    read = {name: observations[name] for name in policy.channels}  # type: ignore[union-attr]

    @torch.inference_mode()
    def variant() -> None:
        policy._play(network, agents, policy.extended(read), None)  # type: ignore[operator]

    return variant


def compare_forward(games: Sequence[int], rounds: int) -> None:
    columns = []
    for n in games:
        env = make_games(n)
        observations = play_randomly(env)
        variants = {title: forward_pass(society(env.spec, title, o).policy, observations) for title, o in CORES.items()}
        columns.append({title: 1e6 * x / (n * PLAYERS) for title, x in min_seconds(variants, rounds).items()})
    print_table("forward pass, us an agent step", [f"batch {n * PLAYERS:,}" for n in games], columns)


def compare_update(rounds: int) -> None:
    env = make_games(-(-SAMPLES // PLAYERS))
    observations = play_randomly(env)

    def step(network: ActorCritic, samples: dict[str, torch.Tensor]) -> None:
        network.zero_grad()
        logits, value = network(samples)
        (logits.square().mean() + value.square().mean()).backward()

    variants = {}
    for title, options in CORES.items():
        policy = society(env.spec, title, options).policy
        read = policy.extended({name: observations[name] for name in policy.channels})
        samples = {name: x.flatten(0, 1)[:SAMPLES] for name, x in read.items()}
        variants[title] = functools.partial(step, policy.groups()[0][0], samples)
    seconds = {title: 1e6 * x / SAMPLES for title, x in min_seconds(variants, rounds).items()}
    print_table(f"forward and backward of {SAMPLES} samples, us a sample", ["update"], [seconds])


def print_table(title: str, heads: list[str], columns: list[dict[str, float]]) -> None:
    print(f"\n{title:44}" + "".join(f"{head:>20}" for head in heads))
    for row in columns[0]:
        first = next(iter(columns[0]))
        cells = [f"{column[row]:10.2f} ({column[row] / column[first]:5.3f}x)" for column in columns]
        print(f"{row:44}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


class Rollouts:
    """Rollouts of one society, and the processor time of their parts."""

    def __init__(self, games: int, options: dict[str, Any]) -> None:
        env = make_games(games)
        policy = plain_ppo(env.spec, Seeds(0), SETTINGS, **options).policy
        self.seconds: dict[str, float] = {}
        self.generator = Seeds(0).torch("actions")
        env.step = self._measure_time("env", env.step)  # type: ignore[method-assign]
        policy._play = self._measure_time("forward", policy._play)  # type: ignore[method-assign]
        policy.act = self._measure_time("act", policy.act)  # type: ignore[method-assign]
        self.collector = Collector(env, policy, "cpu")
        self.collector.reset(0)

    def _measure_time(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured_call(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            result = call(*args, **kwargs)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - begin
            return result

        return measured_call

    def parts(self, steps: int) -> dict[str, float]:
        """Return microseconds per step of all games."""
        self.seconds = {}
        begin = time.thread_time()
        self.collector.collect(steps, self.generator)
        whole = time.thread_time() - begin
        spent = self.seconds
        seconds = {
            "env": spent["env"],
            "forward": spent["forward"],
            "sampling": spent["act"] - spent["forward"],
            "bookkeeping": whole - spent["env"] - spent["act"],
            "whole": whole,
        }
        return {name: 1e6 * x / steps for name, x in seconds.items()}


def compare_step_parts(games: Sequence[int], steps: int, rounds: int) -> None:
    print(f"\n{'a step of a rollout that learns, us an agent':50}" + "".join(f"{name:>13}" for name in PARTS))
    for n in games:
        for title, options in ROLLOUTS.items():
            rollouts = Rollouts(n, options)
            rollouts.parts(10)
            turns = [rollouts.parts(steps) for _ in range(rounds)]
            best = min(turns, key=lambda turn: turn["whole"])
            row = "".join(f"{best[name] / (n * PLAYERS):13.2f}" for name in PARTS)
            print(f"{f'{n:,} games, {title}':50}{row}", flush=True)


PARTS = ("env", "forward", "sampling", "bookkeeping", "whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", type=int, default=[1, 16, 64, 1024])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="of a rollout")
    parser.add_argument("--no-update", action="store_true", help="leave the second table out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    compare_forward(args.games, args.rounds)
    if not args.no_update:
        compare_update(args.rounds)
    compare_step_parts([n for n in args.games if n in (1, 64)], args.steps, args.rounds)


if __name__ == "__main__":
    main()
