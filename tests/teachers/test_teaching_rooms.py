"""Teachers in rooms: coverage of states and returns."""

import sys
from pathlib import Path

import numpy as np
import pytest

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.teachers.offline_planner import OfflinePlanner
from llmrl.teachers.teacher_factory import find_domain
from some import mark_long_except

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from teacher_quality import PUBLISHED, TASKS, play

pytestmark = pytest.mark.slow

ROOMS = ("simple_doorkey", "lava_doorkey", "colored_doorkey", "two_door")


@pytest.mark.parametrize("task", mark_long_except(["simple_doorkey", "two_door"], ROOMS))
def test_tables_cover_reachable_states(task):
    """200 episodes of random actions in which walking, picking up and dropping are frequent."""
    layout, view = TASKS[task]
    env = RoomsEnv(Seeds(2), layout(), n_envs=200, agent_view_size=view)
    domain = find_domain(task)
    table = OfflinePlanner(domain, missing_state="error")
    rng = np.random.default_rng(0)
    grid, done, texts = env.reset(seed=2)["grid"], np.zeros(200, dtype=bool), set()
    for _ in range(150):
        sentences = {domain.scene({"grid": x[0]}, 0, None).sentence for x in grid[~done]}
        for plans in table.plans(sorted(sentences)):
            assert sum(p for _, p in plans) == pytest.approx(1)
        texts |= sentences
        step = env.step(rng.choice(7, size=(200, 1), p=[0.1, 0.1, 0.55, 0.15, 0.05, 0.05, 0]))
        grid, done = step.observation["grid"], step.terminated | step.truncated
    # Colors are told apart here, and doors by number.
    assert len(texts) >= {"colored_doorkey": 14, "two_door": 3}.get(task, 6)


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("task", mark_long_except(["lava_doorkey"], ROOMS))
def test_paper_teachers_match_measurements(task, mode):
    """Within four standard errors of both measurements together."""
    n, n_reference = (250, 300) if task == "two_door" else (500, 600 if task == "colored_doorkey" else 1000)
    results = play(task, "published", mode, n, seed=11)
    names = ("success", "return", "length")
    for name, reference in zip(names, PUBLISHED[task, mode], strict=True):
        x = results[name]
        assert abs(x.mean() - reference) <= 4 * x.std() * (1 / n + 1 / n_reference) ** 0.5 + 1e-9, name


@pytest.mark.parametrize(
    ("task", "teacher", "success", "value"),
    [
        pytest.param("simple_doorkey", "corrected", 1.0, 0.87, marks=pytest.mark.long),
        pytest.param("lava_doorkey", "corrected", 1.0, 0.87, marks=pytest.mark.long),
        ("colored_doorkey", "corrected", 1.0, 0.84),
        pytest.param("two_door", "corrected", 0.6, 0.17, marks=pytest.mark.long),
        pytest.param("simple_doorkey", "oracle", 1.0, 0.875, marks=pytest.mark.long),
        pytest.param("lava_doorkey", "oracle", 1.0, 0.87, marks=pytest.mark.long),
        pytest.param("colored_doorkey", "oracle", 1.0, 0.85, marks=pytest.mark.long),
        ("unlock_pickup", "oracle", 1.0, 0.94),
    ],
)
def test_corrected_teachers_play_better(task, teacher, success, value):
    results = play(task, teacher, "soft", 150 if task == "two_door" else 300, seed=5)
    assert results["success"].mean() >= success
    assert results["return"].mean() >= value
