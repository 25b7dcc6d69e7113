"""The plan of a sweep, in one table."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.experiment.experiment import Experiment
from llmrl.experiment.sweep_plan import compute_makespan, plan_sweep
from sweeping import run_refused_sweep

SMALL = ("env=escape_room", "env.n_envs=4", "design.steps=2", "design.adapt_rounds=3", "design.validate_episodes=4")

READING = ("env=frozen_lake", "agent=llm_player", "play.episodes=1", "env.n_envs=1", "env.horizon=3")


def normalize_text(text):
    return " ".join(text.replace("│", " ").split())


def test_table_covers_all_runs(tmp_path):
    """Check processes, steps, calls, cost, time and reasons for separate runs; nothing is written."""
    swept = (
        "principal=ucb,llm,metagrad",
        "seed=0,1,2",
        "hardware.parallel=1",
        "design.evaluations=0",
        "design.confirm_steps=0",
        "llm=gpt4o",
    )
    done = run_refused_sweep(*SMALL, *swept, "design.references=0", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    output = normalize_text(done.stdout)
    assert "9 runs in 4 processes: 1 of 6 runs, 3 of 1 run" in output
    assert re.search(r"time: about \d+ (s|min|h).* 1 at once, .*language models", output)
    steps = 2 * (3 + 1) * 5 * 4
    assert re.search(rf"principal=ucb[^│]*│ +3 │ +{3 * steps:,} │ +- │ +- │", done.stdout)
    assert output.count("principal=metagrad)") == 1
    assert re.search(rf"in all 9 {9 * steps:,} 6, at most [\d,]+ \$[\d.]+, at most \$[\d.]+", output)
    assert not list(tmp_path.iterdir())


def test_lists_cluster_requests(tmp_path):
    """List the requests of jobs without a cluster."""
    words = ("hardware=slurm_cpu", "hardware.backend.partition=short", "hardware.backend.setup=[module load cuda]")
    runs = [
        Experiment.compose(*SMALL, *words, f"seed={s}", f"output_root={tmp_path}", "hardware.rows=1") for s in (0, 1, 2)
    ]
    [request] = plan_sweep(runs)[2]
    assert request.startswith("sbatch: an array of 3 jobs")
    for option in ("--partition=short", "--cpus-per-task=1", "--time=1440", "module load cuda"):
        assert option in request
    planned_runs = [Experiment.compose(*SMALL, f"seed={s}", f"output_root={tmp_path}") for s in (0, 1)]
    assert plan_sweep(planned_runs)[2] == []


def test_lists_cluster_request_of_one_run(tmp_path):
    done = run_refused_sweep(*SMALL, "hardware=slurm_cpu", "design.references=0", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "environment steps" in done.stdout and "\nsbatch: 1 job with --job-name=llmrl" in done.stdout


def test_prerequisites_are_counted_once(tmp_path):
    runs = [
        Experiment.compose(*SMALL, f"principal={p}", f"seed={s}", f"output_root={tmp_path}", "hardware.parallel=1")
        for p in ("ucb", "random")
        for s in (0, 1)
    ]
    title, rows, _ = plan_sweep(runs)
    assert "4 runs in 1 process: 1 of 4 runs" in title
    prerequisite_rows = [row for row in rows if row[0].startswith("before them")]
    assert len(prerequisite_rows) == 2 and rows[-1][:2] == ["in all", "6"]
    sums = [int(row[2].replace(",", "")) for row in rows]
    assert sums[-1] == sum(sums[:-1])


def test_language_model_agents_are_not_timed(tmp_path):
    runs = [Experiment.compose(*READING, f"seed={s}", f"output_root={tmp_path}") for s in (0, 1)]
    title, rows, _ = plan_sweep(runs)
    assert "time: unknown" in title and "loops design" in rows[0][-1]


@given(st.lists(st.floats(0.0, 10.0), max_size=12), st.integers(1, 5))
def test_longest_job_is_bounded(seconds, places):
    bound = compute_makespan(seconds, places)
    lower_bound = max([sum(seconds) / places, *seconds], default=0.0)
    assert lower_bound - 1e-9 <= bound <= sum(seconds) + 1e-9
    assert bound == pytest.approx(sum(seconds)) if places == 1 else True
