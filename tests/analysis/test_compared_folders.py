"""`llmrl-report` of several folders: their runs in one table, and the options in which they differ."""

from pathlib import Path

import pytest

from llmrl.analysis.config_differences import _without_absent_parts, config_differences
from llmrl.analysis.groups import tasks_of
from llmrl.analysis.runs import read_runs
from llmrl.cli.sweep_report import main
from run_folders import write_run


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    for seed in range(2):
        for name, rate in (("slow", 0.1), ("fast", 0.5)):
            for principal in ("ucb", "gp"):
                typed = [f"principal={principal}", f"agent.rate={rate}"]
                write_run(tmp_path, name, typed, seed, values=[rate + seed], report=None)
    return tmp_path


def test_runs_of_several_folders_are_one_task(outputs: Path) -> None:
    records = read_runs(outputs)
    assert [task.title for task in tasks_of(records, outputs)] == ["fast", "slow"]
    [task] = tasks_of(records, outputs, by_name=False)
    labels = {group.label for group in task.groups}
    assert len(labels) == 4
    assert all(any(f"{part}" in label for label in labels) for part in ("fast", "slow", "ucb", "gp"))


def test_one_name_needs_no_name_in_labels(outputs: Path) -> None:
    [task] = tasks_of(read_runs(outputs / "slow"), outputs, by_name=False)
    assert {group.label for group in task.groups} == {"principal=gp", "principal=ucb"}


def test_command_compares_and_shows_differences(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(outputs / "slow"), str(outputs / "fast"), "--diff", "--no-figures"])
    printed = capsys.readouterr().out
    assert (outputs / "comparison" / "report.html").exists()
    table = (outputs / "comparison" / "tables" / "unknown_scores.csv").read_text()
    assert "slow" in table and "fast" in table
    assert "agent.rate=0.1" in printed and "agent.rate=0.5" in printed


def test_differences_of_two_groups_are_columns_and_of_more_are_rows(outputs: Path) -> None:
    [both] = tasks_of(read_runs(outputs / "slow"), outputs)
    table = config_differences(both)
    assert table.columns == ["option", *(group.shown for group in both.groups)]
    assert [row[0] for row in table.rows] == ["of"]
    write_run(outputs, "slow", ["principal=cmaes", "agent.rate=0.1"], 0)
    write_run(outputs, "slow", ["principal=scan", "agent.rate=0.1"], 0)
    write_run(outputs, "slow", ["principal=sobol", "agent.rate=0.1"], 0)
    [five] = tasks_of(read_runs(outputs / "slow"), outputs)
    table = config_differences(five)
    assert table.columns == ["option", "value", "groups"] and len(table.rows) == 5


def test_a_part_that_some_groups_lack_is_one_row() -> None:
    configs = [
        {"llm._target_": "a.b.Chat", "llm.model": "x", "llm.seed": "1", "env.n": "1"},
        {"llm._target_": "a.b.Chat", "llm.model": "y", "llm.seed": "1", "env.n": "2"},
        {"env.n": "1"},
    ]
    keys = sorted({key for config in configs for key in config})
    cells = {key: [config.get(key, "-") for config in configs] for key in keys}
    assert _without_absent_parts(cells, configs) == {
        "env.n": ["1", "2", "1"],
        "llm": ["Chat", "Chat", "-"],
        "llm.model": ["x", "y", "-"],
    }


def test_equal_options_give_no_rows(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "slow", ["principal=ucb"], seed)
    [task] = tasks_of(read_runs(tmp_path), tmp_path)
    assert not config_differences(task).rows


def test_explorer_takes_one_folder(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(outputs / "slow"), str(outputs / "fast"), "--explore"])
    assert ended.value.code
    assert "--explore" in capsys.readouterr().err
