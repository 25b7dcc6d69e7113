"""Base returns of heuristic and random policies in Clean Up, Harvest and the escape room.

    python benchmarks/society_rules.py

Returns are means over players and episodes, without a mechanism, in the native engine, over the full horizon, for one
seed. In Clean Up, societies of one to six cleaners, with foragers as the other members, are also evaluated. Takes
about two minutes on one core.
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


def evaluate_base_return(env: VecEnv, policy: Policy) -> float:
    """Return the base return of an episode, averaged over players and `GAMES` episodes."""
    episodes = evaluate_policy(Collector(env, policy, "cpu"), GAMES, Seeds(1))
    return float(np.mean([episode.base_returns for episode in episodes]))


def make_society(env: VecEnv, n: int) -> MixedPolicy:
    """Return the policy of a society with `n` cleaners; all other players are foragers."""
    role_players = {"cleaner": tuple(range(n)), "forager": tuple(range(n, env.spec.n_agents))}
    parts = [
        SeatedPolicy(HeuristicAgent(env.spec.select_seats(players, False), role=role).policy, players)  # type: ignore[arg-type]
        for role, players in role_players.items()
    ]
    return MixedPolicy(parts, env.spec.n_agents)


def main() -> None:
    """Print a row for each environment and policy."""
    for name in ("harvest", "cleanup", "escape_room"):
        mechanism = {} if name == "escape_room" else {"mechanism": None}
        env = llmrl.make_env(name, n_envs=GAMES, **mechanism)
        policies = {"random": RandomAgent(env.spec).policy, "heuristic": HeuristicAgent(env.spec).policy}
        if name == "cleanup":
            policies["turn_taker"] = HeuristicAgent(env.spec, role="turn_taker").policy
            policies |= {f"{n} cleaners, {env.spec.n_agents - n} foragers": make_society(env, n) for n in range(1, 7)}
        for policy_name, policy in policies.items():
            sys.stdout.write(f"{name:<12} {policy_name:<24} {evaluate_base_return(env, policy):8.1f}\n")
        env.close()


if __name__ == "__main__":
    main()
