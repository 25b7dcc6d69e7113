"""Performance of teachers in the rooms, compared with published measurements.

    python benchmarks/teacher_quality.py --episodes 1000

Teachers are stored plans, as published and corrected, and the oracle. Each game plays one episode after a seeded reset,
so that short episodes are not overrepresented. Published numbers were measured with the released code and its stored
plans (1,000 episodes of simple and lava, 600 of colored and 300 of two_door in hard mode).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.tasks import ColoredDoorKey, LavaDoorKey, RoomTask, SimpleDoorKey, TwoDoor, UnlockPickup
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.teachers.offline_planner import OfflinePlanner
from llmrl.teachers.planners import OraclePlanner, Planner
from llmrl.teachers.policy_teacher import PlanPolicy
from llmrl.teachers.teacher_factory import find_domain

TASKS: dict[str, tuple[type[RoomTask], int]] = {
    "simple_doorkey": (SimpleDoorKey, 3),
    "lava_doorkey": (LavaDoorKey, 3),
    "colored_doorkey": (ColoredDoorKey, 3),
    "two_door": (TwoDoor, 3),
    "unlock_pickup": (UnlockPickup, 7),
}
PUBLISHED = {
    ("simple_doorkey", "hard"): (1.0, 0.862, 23.0),
    ("simple_doorkey", "soft"): (1.0, 0.861, 23.1),
    ("lava_doorkey", "hard"): (0.540, 0.473, 16.2),
    ("lava_doorkey", "soft"): (0.547, 0.479, 16.3),
    ("colored_doorkey", "hard"): (0.628, 0.457, 84.0),
    ("colored_doorkey", "soft"): (0.657, 0.487, 80.0),
    ("two_door", "hard"): (0.103, 0.081, 138.0),
    ("two_door", "soft"): (0.103, 0.081, 138.0),
}
"""Published (success rate, mean return, mean length in steps) by task and mode."""


def play(task: str, teacher: str, mode: str, episodes: int, seed: int) -> dict[str, np.ndarray]:
    """Play one episode in each of `episodes` games with the actions of a teacher.

    Args:
        task: key of `TASKS`.
        teacher: `published`, `corrected` or `oracle`.
        mode: `hard` or `soft`, as in `PlanPolicy`.
        episodes: number of episodes.
        seed: seed of the games and of the actions.

    Returns:
        `success`, `return` and `length` of the episodes, each of shape [episodes].
    """
    layout, view = TASKS[task]
    env = RoomsEnv(Seeds(seed), layout(), n_envs=episodes, agent_view_size=view)
    domain = find_domain(task, parity=teacher == "published")
    planner: Planner = OraclePlanner(domain) if teacher == "oracle" else OfflinePlanner(domain, teacher)
    plan_policy = PlanPolicy(planner, mode)  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    observation = env.reset(seed=seed)
    memory = np.zeros((episodes, 1, domain.memory_size)) if domain.memory_size else None
    is_active = np.ones(episodes, dtype=bool)
    totals = {"success": np.zeros(episodes), "return": np.zeros(episodes), "length": np.zeros(episodes)}
    while is_active.any():
        active = np.flatnonzero(is_active)
        active_memory = None if memory is None else memory[active]
        scenes = plan_policy.scenes({"grid": observation["grid"][active]}, active_memory)
        if memory is not None:
            memory[active] = active_memory
        advice = plan_policy.advise(scenes, rng.random(len(active)))
        action = np.zeros((episodes, 1), dtype=np.int64)
        action[active, 0] = (advice.cumsum(1) <= rng.random(len(active))[:, None]).sum(1).clip(max=6)
        step = env.step(action)
        observation = step.observation
        totals["success"][active] += step.info["success"][active]
        totals["return"][active] += step.reward[active, 0]
        totals["length"][active] += 1
        is_active &= ~(step.terminated | step.truncated)
    return totals


def format_interval(x: np.ndarray) -> str:
    """Format the mean of `x` and the half-width of its 95 % confidence interval."""
    return f"{x.mean():8.3f} ± {1.96 * x.std(ddof=1) / len(x) ** 0.5:6.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--teachers", nargs="*", default=["published", "corrected", "oracle"])
    parser.add_argument("--modes", nargs="*", default=["hard", "soft"])
    options = parser.parse_args()
    print(f"{'task':16}{'teacher':10}{'mode':5} {'success':>17} {'return':>17} {'length':>17}   s  published numbers")
    for task in options.tasks:
        for teacher in options.teachers:
            if teacher != "oracle" and find_domain(task).tables is None:
                continue
            for mode in options.modes[:1] if teacher == "oracle" else options.modes:
                start = time.perf_counter()
                totals = play(task, teacher, mode, options.episodes, options.seed)
                seconds = time.perf_counter() - start
                published = PUBLISHED.get((task, mode)) if teacher == "published" else None
                published_text = "" if published is None else "{:.3f} {:.3f} {:.1f}".format(*published)
                numbers = " ".join(format_interval(x) for x in totals.values())
                print(f"{task:16}{teacher:10}{mode:5} {numbers} {seconds:4.0f}  {published_text}", flush=True)


if __name__ == "__main__":
    main()
