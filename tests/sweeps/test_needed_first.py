"""Dependencies of the runs of a sweep: separate jobs that are executed first, once, and whose failures are reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import llmrl
from llmrl.core.errors import PrerequisiteFailed
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_references import list_referenced_runs
from llmrl.experiment.sweep_jobs import RUN_FUNCTION, build_job, with_prerequisites
from llmrl.run.status import read_status
from llmrl.sweeps.jobs import group_into_waves
from llmrl.sweeps.launch import launch

STUDY = "preset:legislative/escape_room_alone"
NEEDS = (
    *("experiment=legislative/escape_room_small", "principal=fixed", "design.steps=1", "design.adapt_rounds=1"),
    *(
        "design.references=0",
        "design.evaluations=0",
        "design.confirm_steps=0",
        "design.validate_episodes=2",
        "env.n_envs=2",
        "hardware/backend=here",
    ),
    f"agent.init_from={STUDY}",
)


@dataclass(frozen=True)
class StubJob:
    """Job with the attributes that determine its wave."""

    folder: Path
    prerequisites: tuple[StubJob, ...] = field(default=())


def test_waves_follow_dependencies():
    a, b, elsewhere = StubJob(Path("a")), StubJob(Path("b")), StubJob(Path("elsewhere"))
    c, d = StubJob(Path("c"), (a, elsewhere)), StubJob(Path("d"), (b,))
    e = StubJob(Path("e"), (c, a))
    assert group_into_waves([e, d, c, b, a]) == [[b, a], [d, c], [e]]
    assert group_into_waves([d, a]) == [[d, a]], "what is done is not waited for"
    assert group_into_waves([]) == []


def make_jobs(root: Path, *runs: tuple[str, ...]) -> list:
    return [
        build_job(Experiment.compose(*NEEDS, f"output_root={root}", *overrides), overrides) for overrides in runs
    ]  # fmt: skip


@pytest.mark.slow
def test_shared_dependency_is_single_job(tmp_path):
    base_job, cost_job, second = make_jobs(
        tmp_path, ("design.spending_cost=0.1",), ("design.spending_cost=0.2",), ("seed=1",)
    )
    jobs = with_prerequisites([base_job, cost_job, second])
    assert [job.prerequisites for job in jobs] == [(), (), (jobs[0],), (jobs[0],), (jobs[1],)]
    assert [job.config["seed"] for job in jobs] == [0, 1, 0, 0, 1] and jobs[0].command == "llmrl-train"
    assert group_into_waves(jobs) == [jobs[:2], jobs[2:]]
    runs = llmrl.sweep(*NEEDS, output_root=tmp_path, **{"design.spending_cost": [0.1, 0.2]})
    assert [run.state for run in runs] == ["finished"] * 2 and not any(run.skipped for run in runs)
    # It began first, and once; now nothing has to be computed for others.
    [first] = list_referenced_runs(base_job.config)
    times = [read_status(folder) for folder in (first.folder, *(run.folder for run in runs))]
    assert times[0].updated <= min(record.started for record in times[1:]) and times[0].attempt == 1
    assert with_prerequisites([base_job, cost_job]) == [base_job, cost_job]


def test_run_in_sweep_is_dependency(tmp_path):
    [wanting] = make_jobs(tmp_path, ())
    [run] = list_referenced_runs(wanting.config)
    job = build_job(Experiment(run.config, run.overrides), run.overrides)
    jobs = with_prerequisites([wanting, job])
    assert [job.folder for job in jobs] == [wanting.folder, job.folder] and jobs[0].prerequisites == (job,)
    assert group_into_waves(jobs) == [[job], [jobs[0]]]


@pytest.mark.slow
def test_dependency_failure_is_not_retried(tmp_path):
    """The config lacks the channel that agents read, which the dependency detects first."""
    broken = ("agent.observation_channels=[nothing]",)
    jobs = with_prerequisites(make_jobs(tmp_path, (*broken, "design.spending_cost=0.1"), broken))
    assert len(jobs) == 3
    outcomes, code = launch(jobs, RUN_FUNCTION, tmp_path / ".sweeps" / "a")
    assert code == 1 and [outcome.state for outcome in outcomes] == ["failed"] * 3
    first = outcomes[0]
    assert read_status(first.folder).attempt == 1, "others did not try it again"
    for outcome in outcomes[1:]:
        assert str(first.folder) in outcome.error and first.error in outcome.error, outcome.error
        assert STUDY in outcome.error
    # Asked for again, it is tried again, once.
    second_outcomes, _ = launch(with_prerequisites(jobs[1:]), RUN_FUNCTION, tmp_path / ".sweeps" / "b")
    assert [read_status(outcome.folder).attempt for outcome in second_outcomes] == [2, 2, 2]


def test_single_run_reports_dependency_failure(tmp_path):
    experiment = Experiment.compose(*NEEDS, f"output_root={tmp_path}", "agent.observation_channels=[nothing]")
    for _ in range(2):
        with pytest.raises(PrerequisiteFailed, match=rf"pre-training, {STUDY}.*nothing"):
            experiment.run()
        [run] = list_referenced_runs(experiment.config)
        assert not run.folder.exists(), "a rejected run leaves no folder, so that a repeated command tries it again"
