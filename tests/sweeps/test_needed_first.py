"""Runs that runs of a sweep need are jobs of their own: first, once, and their failure is told where it matters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import llmrl
from llmrl.core.errors import PrerequisiteFailed
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_references import needed
from llmrl.experiment.sweep_jobs import TASK, job_of, with_needed
from llmrl.run.status import read_status
from llmrl.sweeps.jobs import waves
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
class Named:
    """As much of a job as its place in the order depends on."""

    folder: Path
    after: tuple[Named, ...] = field(default=())


def test_waves_come_after_what_they_wait_for():
    a, b, elsewhere = Named(Path("a")), Named(Path("b")), Named(Path("elsewhere"))
    c, d = Named(Path("c"), (a, elsewhere)), Named(Path("d"), (b,))
    e = Named(Path("e"), (c, a))
    assert waves([e, d, c, b, a]) == [[b, a], [d, c], [e]]
    assert waves([d, a]) == [[d, a]], "what is done is not waited for"
    assert waves([]) == []


def jobs_of(root: Path, *runs: tuple[str, ...]) -> list:
    return [
        job_of(Experiment.compose(*NEEDS, f"output_root={root}", *overrides), overrides) for overrides in runs
    ]  # fmt: skip


@pytest.mark.slow
def test_what_several_need_is_one_job_before_them(tmp_path):
    one, other, second = jobs_of(tmp_path, ("design.spending_cost=0.1",), ("design.spending_cost=0.2",), ("seed=1",))
    jobs = with_needed([one, other, second])
    assert [job.after for job in jobs] == [(), (), (jobs[0],), (jobs[0],), (jobs[1],)]
    assert [job.config["seed"] for job in jobs] == [0, 1, 0, 0, 1] and jobs[0].command == "llmrl-train"
    assert waves(jobs) == [jobs[:2], jobs[2:]]
    runs = llmrl.sweep(*NEEDS, output_root=tmp_path, **{"design.spending_cost": [0.1, 0.2]})
    assert [run.state for run in runs] == ["finished"] * 2 and not any(run.skipped for run in runs)
    # It began first, and once; now nothing has to be computed for others.
    [first] = needed(one.config)
    times = [read_status(folder) for folder in (first.folder, *(run.folder for run in runs))]
    assert times[0].updated <= min(each.started for each in times[1:]) and times[0].attempt == 1
    assert with_needed([one, other]) == [one, other]


def test_a_run_of_the_same_sweep_is_waited_for(tmp_path):
    [wanting] = jobs_of(tmp_path, ())
    [run] = needed(wanting.config)
    own = job_of(Experiment(run.config, run.overrides), run.overrides)
    jobs = with_needed([wanting, own])
    assert [job.folder for job in jobs] == [wanting.folder, own.folder] and jobs[0].after == (own,)
    assert waves(jobs) == [[own], [jobs[0]]]


@pytest.mark.slow
def test_a_failure_is_told_where_it_is_needed_and_nothing_is_tried_twice(tmp_path):
    """The channel that agents are to read is there for neither of them; the one that learns first finds out."""
    broken = ("agent.observation_channels=[nothing]",)
    jobs = with_needed(jobs_of(tmp_path, (*broken, "design.spending_cost=0.1"), broken))
    assert len(jobs) == 3
    outcomes, code = launch(jobs, TASK, tmp_path / ".sweeps" / "a")
    assert code == 1 and [outcome.state for outcome in outcomes] == ["failed"] * 3
    first = outcomes[0]
    assert read_status(first.folder).attempt == 1, "others did not try it again"
    for outcome in outcomes[1:]:
        assert str(first.folder) in outcome.error and first.error in outcome.error, outcome.error
        assert "which this run needs" in outcome.error and STUDY in outcome.error
    # Asked for again, it is tried again, once.
    again, _ = launch(with_needed(jobs[1:]), TASK, tmp_path / ".sweeps" / "b")
    assert [read_status(outcome.folder).attempt for outcome in again] == [2, 2, 2]


def test_by_itself_a_run_says_the_same(tmp_path):
    experiment = Experiment.compose(*NEEDS, f"output_root={tmp_path}", "agent.observation_channels=[nothing]")
    for _ in range(2):
        with pytest.raises(
            PrerequisiteFailed, match=rf"pre-training, {STUDY}.*which this run needs .* failed: .*nothing"
        ):
            experiment.run()
        [run] = needed(experiment.config)
        assert not run.folder.exists(), "a rejected run leaves no folder, so that a repeated command tries it again"
