"""What a sweep would do, in one table."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.experiment.experiment import Experiment
from llmrl.experiment.sweep_jobs import PlannedRun
from llmrl.experiment.sweep_plan import longest, sweep_plan
from sweeping import refused

SMALL = ("env=escape_room", "env.n_envs=4", "design.steps=2", "design.adapt_rounds=3", "design.validate_episodes=4")

READING = ("env=frozen_lake", "agent=llm_player", "play.episodes=1", "env.n_envs=1", "env.horizon=3")


def told(text):
    return " ".join(text.replace("│", " ").split())


def test_one_table_tells_of_all_runs(tmp_path):
    """Of processes, steps, calls, money and time, and why a run is alone; nothing is written."""
    swept = (
        "principal=ucb,llm,metagrad",
        "seed=0,1,2",
        "hardware.parallel=1",
        "design.evaluations=0",
        "design.confirm_steps=0",
        "llm=gpt4o",
    )
    done = refused(*SMALL, *swept, "design.references=0", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = told(done.stdout)
    assert "9 runs in 4 processes: 1 of 6 runs, 3 of 1 run" in said
    assert re.search(r"time: about \d+ (s|min|h)", said) and "1 at once, and replies of language models" in said
    steps = 2 * (3 + 1) * 5 * 4
    assert re.search(rf"principal=ucb[^│]*│ +3 │ +{3 * steps:,} │ +- │ +- │", done.stdout)
    assert said.count("principal differentiates the agents' learning") == 1
    assert re.search(rf"in all 9 {9 * steps:,} 6, at most [\d,]+ \$[\d.]+, at most \$[\d.]+", said)
    assert not list(tmp_path.iterdir())


def test_what_jobs_would_ask_of_a_cluster(tmp_path):
    """Without one."""
    words = ("hardware=slurm_cpu", "hardware.backend.partition=short", "hardware.backend.setup=[module load cuda]")
    runs = [
        PlannedRun(Experiment.compose(*SMALL, *words, f"seed={s}", f"output_root={tmp_path}", "hardware.rows=1"))
        for s in (0, 1, 2)
    ]
    [request] = sweep_plan(runs).requests
    assert request.startswith("sbatch: an array of 3 jobs")
    for option in ("--partition=short", "--cpus-per-task=1", "--time=1440", "module load cuda"):
        assert option in request
    here = [PlannedRun(Experiment.compose(*SMALL, f"seed={s}", f"output_root={tmp_path}")) for s in (0, 1)]
    assert sweep_plan(here).requests == []


def test_runs_that_come_first_are_counted_once(tmp_path):
    runs = [
        PlannedRun(
            Experiment.compose(*SMALL, f"principal={p}", f"seed={s}", f"output_root={tmp_path}", "hardware.parallel=1")
        )
        for p in ("ucb", "random")
        for s in (0, 1)
    ]
    title, rows, _ = sweep_plan(runs)
    assert "4 runs in 1 process: 1 of 4 runs" in title
    before = [row for row in rows if row[0].startswith("before them")]
    assert len(before) == 2 and rows[-1][:2] == ["in all", "6"]
    sums = [int(row[2].replace(",", "")) for row in rows]
    assert sums[-1] == sum(sums[:-1])


def test_agents_that_ask_a_model_cannot_be_timed(tmp_path):
    runs = [PlannedRun(Experiment.compose(*READING, f"seed={s}", f"output_root={tmp_path}")) for s in (0, 1)]
    title, rows, _ = sweep_plan(runs)
    assert "time: unknown" in title and rows[0][-1].startswith("only loops")


@given(st.lists(st.floats(0.0, 10.0), max_size=12), st.integers(1, 5))
def test_the_longest_is_between_a_share_of_the_work_and_all_of_it(seconds, places):
    found = longest(seconds, places)
    least = max([sum(seconds) / places, *seconds], default=0.0)
    assert least - 1e-9 <= found <= sum(seconds) + 1e-9
    assert found == pytest.approx(sum(seconds)) if places == 1 else True
