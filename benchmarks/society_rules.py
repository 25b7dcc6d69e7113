"""Base return per player and episode of rules and random play in Clean Up, Harvest and the escape room.

    python benchmarks/society_rules.py

Without a mechanism, on our own engine, episodes of the whole horizon, one seed. In Clean Up members are cleaners and
foragers, from one cleaner to six. Takes about two minutes of a core.
"""

from __future__ import annotations

import sys

import numpy as np

import llmrl
from llmrl.agents.heuristic_agent import HeuristicAgent
from llmrl.agents.mixed.mixed_agent import MixedPolicy, SeatedPolicy
from llmrl.agents.random_agent import RandomAgent
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector, evaluate_policy

GAMES = 4


def mean_base_return(env: VecEnv, policy: Policy) -> float:
    """Return the mean base return of a player."""
    episodes = evaluate_policy(Collector(env, policy, "cpu"), GAMES, Seeds(1))
    return float(np.mean([episode.base_returns for episode in episodes]))


def make_society(env: VecEnv, n: int) -> MixedPolicy:
    """Return `n` cleaners, and foragers in the other places."""
    places = {"cleaner": tuple(range(n)), "forager": tuple(range(n, env.spec.n_agents))}
    parts = [
        SeatedPolicy(HeuristicAgent(env.spec.select(seats, False), role=role).policy, seats)  # type: ignore[arg-type]
        for role, seats in places.items()
    ]
    return MixedPolicy(parts, env.spec.n_agents)


def main() -> None:
    """Print a line for each."""
    for name in ("harvest", "cleanup", "escape_room"):
        mechanism = {} if name == "escape_room" else {"mechanism": None}
        env = llmrl.make_env(name, n_envs=GAMES, **mechanism)
        found = {"random": RandomAgent(env.spec).policy, "heuristic": HeuristicAgent(env.spec).policy}
        if name == "cleanup":
            found["turn_taker"] = HeuristicAgent(env.spec, role="turn_taker").policy
            found |= {f"{n} cleaners, {env.spec.n_agents - n} foragers": make_society(env, n) for n in range(1, 7)}
        for what, policy in found.items():
            sys.stdout.write(f"{name:<12} {what:<24} {mean_base_return(env, policy):8.1f}\n")
        env.close()


if __name__ == "__main__":
    main()
