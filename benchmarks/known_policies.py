"""Returns of stored policies with high performance, over 100 episodes each, and a search for new policies.

    python benchmarks/known_policies.py                      print the table of docs/gymnasium.md
    python benchmarks/known_policies.py --search swimmer     search for a policy of a task with CMA-ES

`known_policies.json` contains the policies: flattened weights of a linear policy (agent=linear), or the action of each
state (agent=tabular).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.agents.controllers.linear import LayerSettings
from llmrl.agents.search_agent import LayeredAgent, SearchAgent, TabularAgent
from llmrl.api.environments import make_env
from llmrl.core.records import EvaluationBatch

FOLDER = Path(__file__).parent
POLICIES = json.loads((FOLDER / "known_policies.json").read_text())
EPISODES = 100
FIRST_SEED = 10_000
"""First seed of evaluations; searches use smaller seeds."""


def make_environment(entry: dict[str, Any]) -> Any:
    """Create the environment of an entry of `known_policies.json`."""
    return make_env(entry["env"], n_envs=1, text=None, progress=None, kwargs=entry.get("kwargs", {}))


def make_agent(entry: dict[str, Any], env: Any, bound: float = 1e9, decimals: int | None = None) -> SearchAgent:
    if entry["agent"] == "tabular":
        return TabularAgent(env.spec)
    return LayeredAgent(env.spec, LayerSettings(True, bound, decimals, "raw", entry["clip_actions"]))


def evaluate_policy(entry: dict[str, Any], episodes: int = EPISODES, workers: int | None = None) -> EvaluationBatch:
    """Evaluate a policy on seeds that no search has used."""
    env = make_environment(entry)
    controller = make_agent(entry, env).controller
    with env.build_evaluator(entry.get("clip_actions", True), workers) as evaluator:
        seeds = FIRST_SEED + np.arange(episodes)
        return evaluator.evaluate(controller, np.array([entry["parameters"]], dtype=np.float64), seeds)


def search(entry: dict[str, Any], iterations: int, episodes: int, bound: float, decimals: int | None) -> None:
    """Optimize the parameters with CMA-ES, and print the policy with the highest return on validation seeds."""
    from cmaes import CMA

    env = make_environment(entry)
    controller = make_agent(entry, env, bound, decimals).controller
    space = controller.space
    limits = np.stack((space.low, space.high), axis=1)
    optimizer = CMA(np.zeros(space.dim), bound / 4, bounds=limits, seed=entry.get("seed", 0))
    best, best_value = np.zeros(space.dim), -np.inf
    with env.build_evaluator(entry["clip_actions"], None) as evaluator:
        for iteration in range(iterations):
            population = [optimizer.ask() for _ in range(optimizer.population_size)]
            vectors = space.round_values(np.array(population))
            seeds = iteration * episodes + np.arange(episodes)
            values = evaluator.evaluate(controller, vectors, seeds).returns.mean(axis=1)
            optimizer.tell([(x, -float(value)) for x, value in zip(population, values, strict=True)])
            if values.max() > best_value:
                validation_return = evaluator.evaluate(
                    controller, vectors[[values.argmax()]], 9_000 + np.arange(20)
                ).returns.mean()
                if validation_return > best_value:
                    best, best_value = vectors[values.argmax()], float(validation_return)
            if iteration % 10 == 9:
                print(f"iteration {iteration + 1}: {values.mean():.1f}, best {best_value:.2f}", flush=True)
    print(json.dumps({**entry, "parameters": np.round(best, 6).tolist()}))


def print_table() -> None:
    print(f"{'env':32}{'agent':9}{'actions':10}{'mean':>9}{'s.e.':>9}{'s.d.':>10}{'success':>9}{'seconds':>9}")
    for entry in POLICIES:
        start = time.perf_counter()
        batch = evaluate_policy(entry)
        seconds, returns = time.perf_counter() - start, batch.returns[0]
        option = " ".join([entry["env"], *(f"{key}={value}" for key, value in entry.get("kwargs", {}).items())])
        actions = "" if "clip_actions" not in entry else "clipped" if entry["clip_actions"] else "not clipped"
        success_rate = "" if batch.successes is None else f"{batch.successes.mean():.2f}"
        deviation = returns.std(ddof=1)
        print(
            f"{option:32}{entry['agent']:9}{actions:10}{returns.mean():9.3f}{deviation / np.sqrt(returns.size):9.3f}"
            f"{deviation:10.3f}{success_rate:>9}{seconds:9.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", help="environment option for which to search a linear policy")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--bound", type=float, default=6.0)
    parser.add_argument("--decimals", type=int, default=1)
    parser.add_argument("--as-is", action="store_true", help="do not clip actions to their bounds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.search is None:
        return print_table()
    entry = {"env": arguments.search, "agent": "linear", "clip_actions": not arguments.as_is, "seed": arguments.seed}
    search(entry, arguments.iterations, arguments.episodes, arguments.bound, arguments.decimals)


if __name__ == "__main__":
    main()
