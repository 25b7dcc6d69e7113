"""Wall time of one evaluation of policy search: 20 episodes of one policy, and of eight different ones at once.

    python benchmarks/policy_search.py [--rounds 7] [--workers 2] [--only cartpole swimmer ...]

Beside it the sequential loop that one would write with Gymnasium alone: an environment made once by `gymnasium.make`,
the policy in three lines of NumPy, episode after episode. Both play the same policies (the one of known_policies.json,
and seven near it) under the same seeds, and must return the same. They take turns, `rounds` times; printed are medians
over the rounds, and the lowest and highest ratio. Several evaluations are timed together where one takes less than a
fifth of a second. Two processes only show what they are worth where two cores are idle: a scheduler that gives every
session its share gives two processes of one session no more than one.

Targets: 10 where games are batched, 1.7 with two worker processes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmrl.api.environments import make_env

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np

from llmrl.agents.controllers.linear import LayerSettings
from llmrl.agents.search_agent import LayeredAgent, SearchAgent, TabularAgent
from llmrl.core.option_files import load_option
from llmrl.envs.gym import tasks

HERE = Path(__file__).parent
EPISODES, CANDIDATES = 20, 8
MIN_SECONDS = 0.2
RETURN_TOLERANCES = {"swimmer": 0.05}
"""Where returns may differ, by which share: the two add up a policy's sums in another order, and a thousand steps make
much of a last bit. Everywhere else they are equal to the last bit."""
SETTINGS = (
    ("cartpole", "batched"),
    ("frozen_lake", "batched"),
    ("mountain_car", "batched"),
    ("mountain_car_continuous", "batched"),
    ("cliff_walking", "batched"),
    ("navigation", "batched"),
    ("pong", "batched"),
    ("cartpole", "stock"),
    ("inverted_pendulum", "stock"),
    ("swimmer", "stock"),
)
Sequential = Callable[[np.ndarray, np.ndarray], np.ndarray]


def make_sequential_loop(option: dict[str, Any], clip: bool) -> Sequential:
    """Return the returns [q, k] of parameters [q, d] under seeds [k], with a loop in Python."""
    limit = {} if option["horizon"] is None else {"max_episode_steps": option["horizon"]}
    env = gymnasium.make(option["id"], **limit, **option["kwargs"])
    space = env.action_space
    real = isinstance(space, gymnasium.spaces.Box)
    size = space.shape[0] if isinstance(space, gymnasium.spaces.Box) else int(space.n)  # type: ignore[attr-defined]

    def play(vectors: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        return np.stack([play_one(parameters, seeds) for parameters in vectors])

    def play_one(parameters: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        table, weights, bias = parameters.astype(int), parameters[:-size].reshape(-1, size), parameters[-size:]
        returns = np.zeros(len(seeds))
        for i, seed in enumerate(seeds.tolist()):
            observation, _ = env.reset(seed=seed)
            is_over = False
            while not is_over:
                action: Any
                if isinstance(observation, int | np.integer):
                    action = table[observation]
                elif real:
                    action = (observation @ weights + bias).astype(np.float32)
                    if clip:
                        action = np.clip(action, space.low, space.high)
                else:
                    action = np.argmax(observation @ weights + bias)
                observation, reward, terminated, truncated, _ = env.step(action)
                returns[i] += reward
                is_over = terminated or truncated
        return returns

    return play


def seconds(work: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def policies(known: np.ndarray, table: bool, n_actions: int) -> np.ndarray:
    """Return a known policy and similar ones, [CANDIDATES, d]: weights 1 % off, or another action in one state."""
    rng = np.random.default_rng(0)
    vectors = np.tile(known, (CANDIDATES, 1))
    if table:
        vectors[np.arange(1, CANDIDATES), rng.choice(len(known), CANDIDATES - 1, replace=False)] += 1
        return vectors % n_actions
    vectors[1:] *= 1.0 + 0.01 * rng.standard_normal((CANDIDATES - 1, len(known)))
    return vectors


def measure(name: str, engine: str, rounds: int, workers: int) -> str:
    entry = next(entry for entry in json.loads((HERE / "known_policies.json").read_text()) if entry["env"] == name)
    env_option = load_option("env", name)
    env: Any = make_env(name, n_envs=1, engine=engine, text=None, progress=None)
    clip = entry.get("clip_actions", True)
    agent: SearchAgent = (
        TabularAgent(env.spec)
        if entry["agent"] == "tabular"
        else LayeredAgent(env.spec, LayerSettings(True, 1e9, None, "raw", clip))
    )
    seeds, known = np.arange(EPISODES), np.array(entry["parameters"], dtype=np.float64)
    similar_policies = policies(known, entry["agent"] == "tabular", env.spec.n_actions)
    loop = make_sequential_loop(env_option, clip)
    columns = []
    with env.evaluator(clip, workers) as evaluator:
        for candidates in (1, CANDIDATES):
            vectors = similar_policies[:candidates]

            def batched(vectors: np.ndarray = vectors) -> np.ndarray:
                return evaluator.evaluate(agent.controller, vectors, seeds).returns

            def sequential(vectors: np.ndarray = vectors) -> np.ndarray:
                return loop(vectors, seeds)

            check(name, sequential(), batched())
            times = [max(1, round(MIN_SECONDS / seconds(work, 1))) for work in (batched, sequential)]
            rows = [(seconds(sequential, times[1]), seconds(batched, times[0])) for _ in range(rounds)]
            slow, fast = np.median(rows, axis=0) * 1000
            ratios = sorted(sequential / batched for sequential, batched in rows)
            shown = f"{np.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            columns.append(f"{slow:9.1f}{fast:9.2f}  {shown:24}")
    where = "batched" if engine == "batched" else f"{workers} processes"
    return f"{name:25}{where:13}" + "".join(columns)


def check(name: str, sequential: np.ndarray, batched: np.ndarray) -> None:
    """Raise AssertionError unless the returns are the same."""
    tolerance = RETURN_TOLERANCES.get(name, 0.0)
    assert np.allclose(batched, sequential, rtol=tolerance, atol=0.0), f"{name}: {sequential} and {batched}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="environment options")
    arguments = parser.parse_args()
    tasks.register()
    head = f"{'loop ms':>9}{'ours ms':>9}  {'ratio':24}"
    print(f"{'':38}{f'1 policy x {EPISODES} episodes':42}{f'{CANDIDATES} policies x {EPISODES} episodes':42}")
    print(f"{'env':25}{'':13}{head}{head}")
    for name, engine in SETTINGS:
        if not arguments.only or name in arguments.only:
            print(measure(name, engine, arguments.rounds, arguments.workers), flush=True)


if __name__ == "__main__":
    main()
