"""Formation of groups, scores and curves from runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.curves import align_curves
from llmrl.analysis.scores import ScoreRule, list_metric_names, read_series
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.groups import Group, explain_scripted_groups, group_into_tasks
from llmrl.results.run_records import RunRecord, read_runs
from run_folders import write_run


def record(root: Path, path: str, seed: int, model: str = "", **overrides: str) -> RunRecord:
    folder = root / path / f"s{seed}"
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return RunRecord(folder, folder.parent.parent.name, folder.parent.name, seed, "finished", overrides=keys, llm=model)


def test_labels_contain_differences(tmp_path: Path) -> None:
    runs = [record(tmp_path, "game/a-1", s, env="game", principal="ucb", env__n="8") for s in (2, 0, 10)]
    runs += [record(tmp_path, "game/b-2", s, env="game", principal="llm", llm__x="1", env__n="8") for s in (0, 1)]
    runs += [record(tmp_path, "game/c-3", 0, env="game", env__n="8")]
    [task] = group_into_tasks(runs, tmp_path)
    assert task.title == "game"
    assert task.common_overrides == {"env": "game", "env.n": "8"}
    assert [group.label for group in task.groups] == ["default", "principal=llm, x=1", "principal=ucb"]
    assert [[run.seed for run in group.runs] for group in task.groups] == [[0], [0, 1], [0, 2, 10]]
    assert [group.missing_seeds for group in task.groups] == [(1, 2, 10), (2, 10), (1,)]
    assert [group.n_expected_runs for group in task.groups] == [4, 4, 4]


def test_single_group_has_common_overrides(tmp_path: Path) -> None:
    [task] = group_into_tasks([record(tmp_path, "game/a-1", s, principal="ucb") for s in range(2)], tmp_path)
    assert (task.common_overrides, [group.label for group in task.groups]) == ({"principal": "ucb"}, ["all runs"])


def test_folders_separate_equal_overrides(tmp_path: Path) -> None:
    """Change a default between the runs: equal overrides belong to different experiments."""
    runs = [record(tmp_path, f"game/p-{code}", 0, principal="ucb") for code in ("aa", "bb")]
    [task] = group_into_tasks(runs, tmp_path)
    assert [group.label for group in task.groups] == ["default (aa)", "default (bb)"]


def test_equal_environment_names_are_separate_tasks(tmp_path: Path) -> None:
    runs = [record(tmp_path, f"mine/{e}{p}-1", 0, env=e, principal=p) for e in ("x", "y") for p in ("ucb", "llm")]
    tasks = group_into_tasks(runs, tmp_path)
    assert [task.title for task in tasks] == ["mine, env=x", "mine, env=y"]
    assert {group.label for task in tasks for group in task.groups} == {"principal=ucb", "principal=llm"}


def test_equal_run_names_get_folder(tmp_path: Path) -> None:
    tasks = group_into_tasks([record(tmp_path, f"{place}/game/a-1", 0) for place in ("mon", "tue")], tmp_path)
    assert [task.title for task in tasks] == ["mon/game", "tue/game"]


def test_model_substitute_is_labeled(tmp_path: Path) -> None:
    runs = [record(tmp_path, "g/a-1", 0, "scripted rule (not a language model)", llm="scripted")]
    runs += [record(tmp_path, "g/b-2", 0, "openai/gpt-4o", llm="gpt4o")]
    groups = group_into_tasks(runs, tmp_path)[0].groups
    assert [group.display_name for group in groups] == ["llm=gpt4o", "llm=scripted rule"]
    assert len(explain_scripted_groups(groups)) == 1 and explain_scripted_groups(groups[:1]) == []


@pytest.mark.parametrize(
    ("label", "model_label"),
    [
        ("principal=llm", "principal=scripted rule"),
        ("principal=llm, llm=scripted, design.steps=3", "principal=scripted rule, design.steps=3"),
        ("treatment=tax_llm", "treatment=scripted rule"),
        ("treatment=talk", "treatment=talk (scripted rule)"),
        ("agent=llm_player, llm=scripted", "agent=llm_player, llm=scripted rule"),
        ("all runs", "all runs (scripted rule)"),
        ("llm", "scripted rule"),
    ],
)
def test_fixed_rules_are_not_language_models(label: str, model_label: str) -> None:
    assert Group(label, (), "scripted rule (not a language model)").display_name == model_label
    assert Group(label, (), "gpt-4o (litellm)").display_name == label


def test_scores(tmp_path: Path) -> None:
    write_run(tmp_path, "game", [], 0, [float(i) for i in range(20)])
    write_run(tmp_path, "game", [], 1, [1.0, float("nan")])
    complete, broken = read_runs(tmp_path)
    assert ScoreRule().score(complete) == 19
    assert ScoreRule("other").score(complete) == 38
    assert ScoreRule("other", 0.1).score(complete) == 37
    assert ScoreRule("other", 0.11).score(complete) == pytest.approx(36)  # of 20 values, 2.2 are 3
    assert ScoreRule("other", 1).score(complete) == pytest.approx(19)
    assert "absent" in str(ScoreRule("absent").score(complete))
    assert "result" in str(ScoreRule().score(broken))
    assert str(ScoreRule("other").score(broken)).startswith("other ")
    assert list_metric_names([complete]) == ["other", "principal/objective"]
    places, values = read_series(broken.folder, "other")
    assert (places.tolist(), values.tolist()) == ([100], [2])


def test_corrupt_line_gives_reason(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "game", [], 0, [1.0, 2.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "other": 7\n{"step": 4, "other": 8')  # a broken line, and one still being written
    [run] = read_runs(tmp_path)
    assert "line 3 " in str(ScoreRule("other").score(run))
    with pytest.raises(RunFolderError, match="line 3 "):
        read_series(folder, "other")
    assert list_metric_names([run]) == ["other", "principal/objective"]


@pytest.mark.parametrize(("metric", "share"), [("x", -0.1), ("x", 1.5), ("", 0.1)])
def test_rejects_invalid_rules(metric: str, share: float) -> None:
    with pytest.raises(ConfigError, match="tail-fraction"):
        ScoreRule(metric, share)


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True), min_size=1, max_size=4))
def test_curves_use_common_range(places: list[list[int]]) -> None:
    """Use curves y = 3x + run, for which linear interpolation is exact."""
    runs = [(np.array(sorted(p), dtype=float), 3.0 * np.array(sorted(p)) + k) for k, p in enumerate(places)]
    common = align_curves(runs)
    first, last = max(min(p) for p in places), min(max(p) for p in places)
    if first > last:
        assert common is None
        return
    assert common is not None
    grid, values = common
    assert (grid[0], grid[-1]) == (first, last)
    assert values == pytest.approx(3 * grid[:, None] + np.arange(len(runs)))


def test_shared_steps_are_subsampled() -> None:
    places = np.arange(1000.0) ** 2
    grid, values = align_curves([(places, places), (places, -places)])  # type: ignore[misc]
    assert len(grid) == 200
    assert np.isin(grid, places).all()
    assert (grid[0], grid[-1]) == (0, 999**2)
    assert values.shape == (200, 2)
