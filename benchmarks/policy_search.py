"""Duration of an evaluation in policy search: 20 episodes of one policy, and of eight policies at once.

    python benchmarks/policy_search.py [--rounds 7] [--workers 2] [--only cartpole swimmer ...]

The baseline is a sequential loop with Gymnasium: an environment from `gymnasium.make`, a policy in three lines of
NumPy, and one episode after another. Both play the same policies (the policy of known_policies.json and seven
perturbations) on the same seeds, and must have the same returns. Measurements alternate for `rounds` rounds; prints
medians over rounds, and the lowest and highest ratio. Evaluations of less than 0.2 s are repeated within a measurement.
Two worker processes are faster only if two cores are idle. On machines whose scheduler assigns CPU shares to sessions
(autogroup), two processes of a session may have no more CPU time than one.

Targets for the ratio: 10 for batched games, 1.7 with two worker processes.
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

FOLDER = Path(__file__).parent
EPISODES, CANDIDATES = 20, 8
MIN_SECONDS = 0.2
RETURN_TOLERANCES = {"swimmer": 0.05}
"""Relative tolerance of returns by environment. Sums of floating-point numbers in a different order differ in the last
bit, and these differences grow over a thousand steps. All other environments require equal returns."""
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
SequentialEvaluator = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function from parameters [q, d] and seeds [k] to returns [q, k]."""


def make_sequential_loop(option: dict[str, Any], clip: bool) -> SequentialEvaluator:
    """Return a function that evaluates policies with a loop in Python."""
    limit = {} if option["horizon"] is None else {"max_episode_steps": option["horizon"]}
    env = gymnasium.make(option["id"], **limit, **option["kwargs"])
    space = env.action_space
    is_continuous = isinstance(space, gymnasium.spaces.Box)
    size = space.shape[0] if isinstance(space, gymnasium.spaces.Box) else int(space.n)  # type: ignore[attr-defined]

    def play(vectors: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        return np.stack([play_policy(parameters, seeds) for parameters in vectors])

    def play_policy(parameters: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        table, weights, bias = parameters.astype(int), parameters[:-size].reshape(-1, size), parameters[-size:]
        returns = np.zeros(len(seeds))
        for i, seed in enumerate(seeds.tolist()):
            observation, _ = env.reset(seed=seed)
            is_done = False
            while not is_done:
                action: Any
                if isinstance(observation, int | np.integer):
                    action = table[observation]
                elif is_continuous:
                    action = (observation @ weights + bias).astype(np.float32)
                    if clip:
                        action = np.clip(action, space.low, space.high)
                else:
                    action = np.argmax(observation @ weights + bias)
                observation, reward, terminated, truncated, _ = env.step(action)
                returns[i] += reward
                is_done = terminated or truncated
        return returns

    return play


def measure_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the mean duration of a call, seconds."""
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def make_similar_policies(parameters: np.ndarray, is_tabular: bool, n_actions: int) -> np.ndarray:
    """Return a policy and perturbations of it, [CANDIDATES, d].

    Perturbations change weights by about 1 %, or the action in one state of a tabular policy.
    """
    rng = np.random.default_rng(0)
    vectors = np.tile(parameters, (CANDIDATES, 1))
    if is_tabular:
        vectors[np.arange(1, CANDIDATES), rng.choice(len(parameters), CANDIDATES - 1, replace=False)] += 1
        return vectors % n_actions
    vectors[1:] *= 1.0 + 0.01 * rng.standard_normal((CANDIDATES - 1, len(parameters)))
    return vectors


def measure(name: str, engine: str, rounds: int, workers: int) -> str:
    """Measure both evaluations of an environment, and return a row of the table."""
    entry = next(entry for entry in json.loads((FOLDER / "known_policies.json").read_text()) if entry["env"] == name)
    env_option = load_option("env", name)
    env: Any = make_env(name, n_envs=1, engine=engine, text=None, progress=None)
    clip = entry.get("clip_actions", True)
    agent: SearchAgent = (
        TabularAgent(env.spec)
        if entry["agent"] == "tabular"
        else LayeredAgent(env.spec, LayerSettings(True, 1e9, None, "raw", clip))
    )
    seeds, parameters = np.arange(EPISODES), np.array(entry["parameters"], dtype=np.float64)
    policies = make_similar_policies(parameters, entry["agent"] == "tabular", env.spec.n_actions)
    loop = make_sequential_loop(env_option, clip)
    columns = []
    with env.build_evaluator(clip, workers) as evaluator:
        for candidates in (1, CANDIDATES):
            vectors = policies[:candidates]

            def batched(vectors: np.ndarray = vectors) -> np.ndarray:
                return evaluator.evaluate(agent.controller, vectors, seeds).returns

            def sequential(vectors: np.ndarray = vectors) -> np.ndarray:
                return loop(vectors, seeds)

            check_returns(name, sequential(), batched())
            repeats = [max(1, round(MIN_SECONDS / measure_seconds(f, 1))) for f in (sequential, batched)]
            rows = [
                (measure_seconds(sequential, repeats[0]), measure_seconds(batched, repeats[1])) for _ in range(rounds)
            ]
            sequential_ms, batched_ms = np.median(rows, axis=0) * 1000
            ratios = sorted(sequential_seconds / batched_seconds for sequential_seconds, batched_seconds in rows)
            ratio_cell = f"{np.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            columns.append(f"{sequential_ms:9.1f}{batched_ms:9.2f}  {ratio_cell:24}")
    engine_name = "batched" if engine == "batched" else f"{workers} processes"
    return f"{name:25}{engine_name:13}" + "".join(columns)


def check_returns(name: str, sequential: np.ndarray, batched: np.ndarray) -> None:
    """Check that returns are equal up to the tolerance.

    Raises:
        AssertionError: returns differ.
    """
    tolerance = RETURN_TOLERANCES.get(name, 0.0)
    assert np.allclose(batched, sequential, rtol=tolerance, atol=0.0), f"{name}: {sequential} and {batched}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="environment options")
    arguments = parser.parse_args()
    tasks.register()
    header = f"{'loop ms':>9}{'llmrl ms':>9}  {'ratio':24}"
    print(f"{'':38}{f'1 policy x {EPISODES} episodes':42}{f'{CANDIDATES} policies x {EPISODES} episodes':42}")
    print(f"{'env':25}{'':13}{header}{header}")
    for name, engine in SETTINGS:
        if not arguments.only or name in arguments.only:
            print(measure(name, engine, arguments.rounds, arguments.workers), flush=True)


if __name__ == "__main__":
    main()
