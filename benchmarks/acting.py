"""CPU time of an action selection for societies of seven agents: compiled code compared with eager torch.

    python benchmarks/acting.py [--societies 1 2 7 16 50] [--games 1] [--rounds 9] [--calls 100]

Each society plays `--games` games of Harvest, with the small network of the environment option (features of grid cells)
or with an MLP that reads the grid. Methods alternate and use one thread. Prints microseconds per call, the minimum over
rounds, and the speedup of compiled code. Both methods must select the same actions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from plain_ppo import PPO_SETTINGS, build_ppo_agent

import llmrl
from llmrl.algorithms.societies import partitioned_policy
from llmrl.algorithms.societies.compiled_acting import CompiledSocieties
from llmrl.core.seeding import Seeds

NETWORKS: dict[str, dict[str, Any]] = {
    "facts of the map": {"core": "planes", "planes": ["apple", "wall", "grass", "others"], "features": 64},
    "MLP": {"core": "mlp", "core_hidden": [64], "features": 64},
}
WARMUP_STEPS = 30


def build_act_functions(network: str, n: int, games: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return functions that select the actions of `n` societies, by method, with equal random numbers."""
    env = llmrl.make_env("harvest", n_envs=n * games)
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(WARMUP_STEPS):
        actions = torch.randint(env.spec.n_actions, (n * games, env.spec.n_agents), generator=generator)
        step = env.step(actions)
    options = {**NETWORKS[network], "head_hidden": [64]}
    policies = [build_ppo_agent(env.spec, Seeds(i), PPO_SETTINGS, **options).policy for i in range(n)]
    observation = {name: step.observation[name] for name in policies[0].channels}
    compiled = CompiledSocieties(policies, games, observation)
    with patch.object(partitioned_policy, "is_compilable", return_value=False):
        stacked = partitioned_policy.StackedPolicies(policies, games, observation)
    shape = (games, env.spec.n_agents, env.spec.n_actions)

    def make_generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(i) for i in range(n)]

    def act_compiled() -> torch.Tensor:
        uniform = torch.cat([torch.rand(shape, generator=x) for x in make_generators()])
        return compiled.act(observation, uniform).action

    return {
        "torch": lambda: stacked.act(observation, make_generators()).action,
        "compiled": act_compiled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--societies", type=int, nargs="+", default=[1, 2, 7, 16, 50])
    parser.add_argument("--games", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for network in NETWORKS:
        for n in args.societies:
            acts = build_act_functions(network, n, args.games)
            actions = [act() for act in acts.values()]
            assert torch.equal(*actions)
            seconds = dict.fromkeys(acts, float("inf"))
            for _ in range(args.rounds):
                for method, act in acts.items():
                    start = time.process_time()
                    for _ in range(args.calls):
                        act()
                    seconds[method] = min(seconds[method], (time.process_time() - start) / args.calls)
            times = ", ".join(f"{method} {1e6 * x:6.0f} us" for method, x in seconds.items())
            print(f"{network:17} {n:3} societies: {times} ({seconds['torch'] / seconds['compiled']:.1f}x)", flush=True)


if __name__ == "__main__":
    main()
