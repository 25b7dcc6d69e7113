"""Studies with a single command: swept values, comparisons and the end of their sweep."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from llmrl.config.treatments import list_studies
from llmrl.core.option_files import get_root, read_file
from llmrl.experiment.composition import compose_plain
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import check_values
from some import mark_long_except_every
from sweeping import load_status, run_sweep

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "data"
COMPLETE_STUDIES = [study for study in list_studies() if study.startswith(("studies/", "first/"))]


def swept(study: str) -> dict[str, list[str]]:
    """Return the values that a study sweeps by itself, by key."""
    params: dict[str, str] = {}
    for path in _files(get_root() / "experiment" / f"{study}.yaml"):
        params |= (read_file(path).get("hydra") or {}).get("sweeper", {}).get("params", {})
    return {key: str(values).split(",") for key, values in params.items()}


def _files(path: Path) -> list[Path]:
    """Return the path of a study after those of the studies that it is based on."""
    paths: list[Path] = []
    for entry in read_file(path).get("defaults", []):
        if isinstance(entry, str) and entry.startswith("/experiment/"):
            paths += _files(get_root() / f"{entry.lstrip('/')}.yaml")
    return [*paths, path]


@pytest.mark.parametrize("study", mark_long_except_every(3, COMPLETE_STUDIES))
def test_sweep_has_question(study):
    report, values = compose_plain("train", f"experiment={study}")["report"], swept(study)
    assert report["question"].endswith("?") and report["unit"]
    assert len(values["seed"]) > 1 or len(values["agent.init_from_seed"]) > 1
    used = {value for options in values.values() for value in options}
    assert {*report["baselines"], *report["levels"]} <= used
    # The table of published results also has groups that the sweep does not run.
    assert not report["published"] or (used & {*report["published"]} and report["source"])


@pytest.mark.long
@pytest.mark.parametrize("study", COMPLETE_STUDIES)
def test_sweep_values_compose(study):
    """With the first values of the other keys; the last of every key together, too."""
    values = swept(study)
    first = {key: options[0] for key, options in values.items()}
    runs = [{**first, key: value} for key, options in values.items() if key != "seed" for value in options]
    for overrides in [*runs, {key: options[-1] for key, options in values.items()}]:
        words = [f"{key}={value}" for key, value in overrides.items() if not key.startswith("agent.init_from")]
        check_values(Experiment.compose(f"experiment={study}", *words).config)


@pytest.mark.parametrize("study", [study for study in COMPLETE_STUDIES if "landscape" in study])
def test_landscape_is_single_step(study):
    config = compose_plain("train", f"experiment={study}")
    settings = 1
    for values in config["principal"]["grid"]:
        settings *= len(values)
    assert (config["design"]["candidates"], config["design"]["steps"]) == (settings, 1)
    assert config["env"]["n_envs"] % settings == 0


@pytest.mark.parametrize("study", [study for study in COMPLETE_STUDIES if study.endswith("_figure")])
def test_societies_are_crossed_with_seeds(study):
    values = swept(study)
    assert {"random", "scan", "fixed", "llm", "metagrad"} <= set(values["principal"])
    pretrained = values["agent.init_from_seed"]
    assert len(values["seed"]) >= 10 if pretrained == ["own"] else len(pretrained) * len(values["seed"]) >= 10
    assert pretrained == ["own"] or len(pretrained) >= 5, "intervals need five units"


@pytest.mark.slow
def test_sweep_ends_with_study_report(tmp_path):
    small = ("env.n_envs=4", "design.steps=3", "design.adapt_rounds=1", "design.validate_episodes=4")
    small = (*small, "principal=random,scan", "seed=0,1", "design.references=0", "hardware/backend=here")
    done = run_sweep("experiment=studies/escape_room_figure", *small, "output_root=out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "random (returns less" in done.stdout
    assert "out/escape_room_figure/report/figures/escape_room_figure_study.png" in done.stdout
    assert {row["state"] for row in load_status(tmp_path, "out")} == {"finished"}
    page = (tmp_path / "out" / "escape_room_figure" / "report" / "report.html").read_text()
    assert "Planned comparisons" in page


@pytest.mark.long
@pytest.mark.slow
def test_landscape_ends_with_map(tmp_path):
    small = ("env.n_envs=12", "design.adapt_rounds=1", "design.validate_episodes=2", "design.candidates=6", "seed=0,1")
    grid = "principal.grid=[[0,3,6],[0],[0],[0],[0],[0],[0,3],[0]]"
    done = run_sweep(
        "experiment=studies/landscape_escape_room",
        *small,
        grid,
        "hardware/backend=here",
        "output_root=out",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "best of 6 " in done.stdout and "landscape_escape_room_study.png" in done.stdout


def test_generalization_evaluates_stored_recommendations():
    """Those of Bayesian optimization for each society, and the ten best settings of the landscape."""
    vectors = compose_plain("train", "experiment=studies/generalization_harvest")["principal"]["vectors"]
    with (RESULTS / "harvest_figure_runs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "gp"]
    for row in rows:
        [recommendation] = json.loads(row["recommendations"])
        assert vectors[int(row["seed"])] == pytest.approx([*recommendation["mechanism"].values()], abs=6e-4)
    with (RESULTS / "landscape_harvest_landscape.csv").open() as file:
        settings = sorted(csv.DictReader(file), key=lambda row: -float(row["mean"]))
    best = [[float(row[name]) for name in ("rate_1", "rate_2", "rate_3")] for row in settings[:10]]
    assert len(rows) == 10 and vectors[10:] == [*best, [0, 0, 0]]


@pytest.mark.parametrize("study", ["generalization_harvest", "deviation_harvest"])
def test_listed_vectors_are_measured_in_parallel(study):
    config = compose_plain("train", f"experiment=studies/{study}")
    assert config["design"]["candidates"] == len(config["principal"]["vectors"]) and config["design"]["steps"] == 1


@pytest.mark.long
@pytest.mark.slow
def test_generalization_ends_with_regret(tmp_path):
    small = ("env.horizon=20", "design.adapt_rounds=1", "design.validate_episodes=1", "agent.init_from=null")
    treatments = "treatment=none,players_5,players_14,other_map,policy_gradient"
    words = (*small, treatments, "seed=0,1", "hardware/backend=here", "output_root=out")
    done = run_sweep("experiment=studies/generalization_harvest", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tables = tmp_path / "out" / "generalization_harvest" / "report" / "tables"
    header, *lines = (tables / "generalization_harvest_study_regret.csv").read_text().splitlines()
    assert header == "setting,group,regret,low,high" and len(lines) == 5 * (21 + 3)


@pytest.mark.long
@pytest.mark.slow
def test_deviation_ends_with_changes(tmp_path):
    rounds = ("design.adapt_rounds=1", "design.validation_rounds=[0,1]", "design.validate_episodes=1")
    options = "agent: harvest_society, observation_channels: null, init_from: null"
    members = f"[{{count: 1, {options}, name: deviator}}, {{count: 6, {options}, freeze: all, name: others}}]"
    words = (*rounds, f"agent.members={members}", "env.horizon=20", "seed=0,1", "hardware/backend=here")
    done = run_sweep("experiment=studies/deviation_harvest", *words, "output_root=out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tables = tmp_path / "out" / "deviation_harvest" / "report" / "tables"
    header, *lines = (tables / "deviation_harvest_study_kinds.csv").read_text().splitlines()
    assert header.startswith("kind,rate_1,rate_2,rate_3,after_0,after_1,change") and len(lines) == 2 * 10


@pytest.mark.long
@pytest.mark.slow
def test_tax_planners_are_in_comparison(tmp_path):
    small = (
        "env.n_envs=4",
        "env.n_agents=10",
        "design.steps=6",
        "design.validate_episodes=4",
        "design.confirm_steps=0",
        "design.evaluations=1",
        "design.anytime=false",
    )
    small = (*small, "treatment=us_federal,no_tax,saez", "seed=0,1", "design.references=0", "hardware/backend=here")
    done = run_sweep("experiment=studies/tax_planners", *small, "output_root=out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["state"] for row in load_status(tmp_path, "out")} == {"finished"}
    assert "Planned comparisons" in done.stdout
    assert re.search(r"saez +│ us_federal │ +\+", done.stdout), done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_incomplete_study_is_not_reported(tmp_path):
    small = ("env.n_envs=4", "design.steps=2", "design.adapt_rounds=1", "principal=random,llm", "seed=0")
    ends_early = ("design.references=0", "hardware/backend=here", "llm.budget.calls=1")
    done = run_sweep("experiment=studies/escape_room_figure", *small, *ends_early, "output_root=out", cwd=tmp_path)
    assert done.returncode == 3
    assert {row["state"] for row in load_status(tmp_path, "out")} == {"finished", "budget_exhausted"}
    assert "Figure:" not in done.stdout
