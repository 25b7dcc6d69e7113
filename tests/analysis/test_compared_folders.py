"""`llmrl-report` for several folders: one table of runs, and the options that differ."""

from pathlib import Path

import pytest

from llmrl.analysis.report_tables import _drop_absent_parts, build_config_differences
from llmrl.cli.sweep_report import main
from llmrl.results.groups import group_into_tasks
from llmrl.results.run_records import read_runs
from run_folders import write_run


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    for seed in range(2):
        for name, rate in (("slow", 0.1), ("fast", 0.5)):
            for principal in ("ucb", "gp"):
                overrides = [f"principal={principal}", f"agent.rate={rate}"]
                write_run(tmp_path, name, overrides, seed, values=[rate + seed], report=None)
    return tmp_path


def test_folders_form_single_task(outputs: Path) -> None:
    records = read_runs(outputs)
    assert [task.title for task in group_into_tasks(records, outputs)] == ["fast", "slow"]
    [task] = group_into_tasks(records, outputs, by_name=False)
    labels = {group.label for group in task.groups}
    assert len(labels) == 4
    assert all(any(f"{part}" in label for label in labels) for part in ("fast", "slow", "ucb", "gp"))


def test_common_name_is_omitted_from_labels(outputs: Path) -> None:
    [task] = group_into_tasks(read_runs(outputs / "slow"), outputs, by_name=False)
    assert {group.label for group in task.groups} == {"principal=gp", "principal=ucb"}


def test_command_prints_comparison(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(outputs / "slow"), str(outputs / "fast"), "--diff", "--no-figures"])
    output = capsys.readouterr().out
    assert (outputs / "comparison" / "report.html").exists()
    table = (outputs / "comparison" / "tables" / "unknown_scores.csv").read_text()
    assert "slow" in table and "fast" in table
    assert "agent.rate=0.1" in output and "agent.rate=0.5" in output


def test_difference_layout_depends_on_group_count(outputs: Path) -> None:
    [joint_task] = group_into_tasks(read_runs(outputs / "slow"), outputs)
    table = build_config_differences(joint_task)
    assert table.columns == ["option", *(group.display_name for group in joint_task.groups)]
    assert [row[0] for row in table.rows] == ["of"]
    write_run(outputs, "slow", ["principal=cmaes", "agent.rate=0.1"], 0)
    write_run(outputs, "slow", ["principal=scan", "agent.rate=0.1"], 0)
    write_run(outputs, "slow", ["principal=sobol", "agent.rate=0.1"], 0)
    [five] = group_into_tasks(read_runs(outputs / "slow"), outputs)
    table = build_config_differences(five)
    assert table.columns == ["option", "value", "groups"] and len(table.rows) == 5


def test_optional_part_has_single_row() -> None:
    configs = [
        {"llm._target_": "a.b.Chat", "llm.model": "x", "llm.seed": "1", "env.n": "1"},
        {"llm._target_": "a.b.Chat", "llm.model": "y", "llm.seed": "1", "env.n": "2"},
        {"env.n": "1"},
    ]
    keys = sorted({key for config in configs for key in config})
    cells = {key: [config.get(key, "-") for config in configs] for key in keys}
    assert _drop_absent_parts(cells, configs) == {
        "env.n": ["1", "2", "1"],
        "llm": ["Chat", "Chat", "-"],
        "llm.model": ["x", "y", "-"],
    }


def test_equal_options_give_no_rows(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "slow", ["principal=ucb"], seed)
    [task] = group_into_tasks(read_runs(tmp_path), tmp_path)
    assert not build_config_differences(task).rows


def test_explorer_requires_single_folder(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(outputs / "slow"), str(outputs / "fast"), "--explore"])
    assert error.value.code
    assert "--explore" in capsys.readouterr().err
