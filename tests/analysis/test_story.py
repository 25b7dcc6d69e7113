"""Sections of a report besides scores: proposals, society, teachers and players."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explored import write_player_run
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import Report, ReportSettings
from llmrl.analysis.report_files import write_report
from llmrl.analysis.story.group_tables import select_informative_metrics
from llmrl.analysis.story.story import MAX_CHARACTERS, truncate_start
from llmrl.results.table_format import ReportTable
from llmrl.run.run import Run

SETTINGS = ReportSettings()


def has_principal(root: Path, principal: str, seed: int, objectives: list[float], agents: int = 3) -> Path:
    """Write a run whose proposals are (tax, fine) = (i, 1) and whose number of eaten apples equals the objective."""
    run = Run.open(root, "town", {"of": principal}, [f"principal={principal}", f"seed={seed}"], seed)
    history = []
    with run:
        for i, value in enumerate(objectives):
            vector = {"tax": float(i), "fine": 1.0}
            told = {f"principal/{name}": x for name, x in vector.items()} | {"principal/objective": value}
            told |= {"welfare/mean": value / agents, "welfare/sum": value, "welfare/minimum": -value}
            told |= {"welfare/equality": 0.5 + value / 1000, "validation/apples_eaten": 10 * value}
            told |= {"validation/zaps": 2.0 + seed, "validation/apples_paid": 10 * value, "validation/return": 3.0}
            run.metrics.log("proposal", "proposals", told, proposals=i + 1, principal_steps=i + 1, env_steps=10 * i)
            history.append(
                {"step": i + 1, "candidate": 0, "objective": value, "standard_error": 1.0, "values": [value]}
                | {"mechanism": vector, "context": None}
            )
        best = max(history, key=lambda row: row["objective"])
        recommendation = {"evaluations": 4, "measurements": 1, "objective": best["objective"] - 2}
        run.result = best["objective"] - 2
        run.summary = {
            "history": history,
            "recommendation": run.result,
            "online_performance": objectives[-1],
            "recommendations": [{**best, **recommendation}],
        }
    return run.folder


def told(report: Report, name: str) -> ReportTable:
    [section] = report.sections
    [table] = [table for table in section.story.tables if table.name == name]
    return table


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    for seed in range(2):
        has_principal(root, "ucb", seed, [1.0, 5.0, 8.0 + seed, 6.0, 7.0])
        has_principal(root, "random", seed, [1.0, 2.0, 0.5, 1.0, 3.0])
    return root


def test_shows_best_proposal_per_group(town: Path) -> None:
    table = told(compute_report(town, SETTINGS), "best")
    assert table.columns[:6] == ["group", "run", "tax", "fine", "objective", "evaluations"]
    ucb, random = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert (ucb["group"], ucb["tax"], ucb["objective"], ucb["apples eaten"]) == ("ucb", "2", "7.0 ± 1.0", "90.0")
    assert ucb["run"].startswith("run:") and ucb["run"].endswith("/s1")
    assert ucb["mean of the runs"] == "6.5 ± 0.5" and ucb["evaluations"] == "4"
    assert random["group"] == "random" and random["tax"] == "4"


def test_welfare_accompanies_objective(town: Path) -> None:
    table = told(compute_report(town, SETTINGS), "society")
    # What is paid is as much as what is eaten, and fills no column of its own; the file has it.
    assert table.columns == ["group", "objective", "worst-off", "equality", "apples eaten", "zaps"]
    assert [row[0] for row in table.rows] == ["ucb", "random"]
    assert table.rows[0][1] == "7.00 ± 0.00" and table.rows[0][5] == "2.50 ± 0.50"
    assert "validation/apples_paid" in table.csv_rows[0]


def test_single_agent_has_no_society(tmp_path: Path) -> None:
    for principal in ("ucb", "random"):
        has_principal(tmp_path, principal, 0, [1.0, 2.0], agents=1)
    assert {table.name for table in compute_report(tmp_path, SETTINGS).sections[0].story.tables} == {"best"}


def test_omits_constant_columns() -> None:
    rows = [{"dirt": 1.0, "apples_eaten": 2.0, "apples_eaten_quarter_1": 1.0, "entropy": 1.0, "paid": 2.0, "none": 0.0}]
    assert select_informative_metrics(rows) == ["apples_eaten", "dirt"]


def test_teacher_plans_and_invalid_shares(tmp_path: Path) -> None:
    for seed, share in ((0, 1.0), (1, 0.5)):
        run = Run.open(tmp_path, "rooms", {"of": "x"}, ["agent=ppo", f"seed={seed}"], seed)
        with run:
            numbers = {"teacher/states": 16.0, "llm/invalid_share": 0.1 * (1 + seed), "teacher/agreement": share}
            run.metrics.log("update", "env_steps", numbers, env_steps=10, updates=1)
            run.metrics.log("update", "env_steps", {"teacher/states": 18.0}, env_steps=20, updates=2)
            run.result = 1.0
        plans = {"a locked door": {"find the key": share, **({"explore": 0.5} if share < 1 else {})}}
        (run.folder / "plans.json").write_text(json.dumps({"domain": "rooms", "plans": plans}))
    report = compute_report(tmp_path, SETTINGS)
    teachers = told(report, "teacher")
    assert teachers.columns == ["group", "runs", "states", "invalid replies", "agreement of the student"]
    assert teachers.rows == [["all runs", "2", "18 ± 0", "15.0 ± 5.0 %", "75.0 ± 25.0 %"]]
    assert told(report, "plans").rows == [["all runs", "a locked door", "find the key (75%); explore (25%)"]]


def test_page_shows_conversation(tmp_path: Path) -> None:
    write_player_run(tmp_path, 3)
    report = compute_report(tmp_path, SETTINGS)
    [section] = report.sections
    [exchange] = section.story.exchanges
    assert exchange.prompt.endswith("prompt of step 0 for 0") and exchange.action == "go 0" and exchange.reward == 1.0
    page = write_report(report, tmp_path / "report")
    text = page.read_text()
    assert "Requests and replies" in text
    assert "<script>" not in text and "&lt;script&gt;" in text
    # What these runs have nothing of has no heading.
    assert not [title for title in ("Proposals over time", "Society of agents", "Advice of teachers") if title in text]


def test_page_shows_proposals(tmp_path: Path) -> None:
    for seed in range(3):
        has_principal(tmp_path, "ucb", seed, [1.0, 5.0 + seed])
        has_principal(tmp_path, "random", seed, [1.0, 2.0 + 2 * seed * seed])
    page = write_report(compute_report(tmp_path, SETTINGS), tmp_path / "report")
    text = page.read_text()
    assert '<th class="r">mean</th>' in text and "robability that a run of the row" in text
    assert "Proposals over time" in text and (page.parent / "figures" / "town_proposals.png").is_file()
    # Chapters without content have no heading.
    assert "Society of agents" in text and "Advice of teachers" not in text


def test_long_prompts_are_truncated() -> None:
    text = "\n".join(f"line {i}" for i in range(1000))
    shortened = truncate_start(text)
    assert shortened.endswith("line 999") and len(shortened) < MAX_CHARACTERS + 60
    first, rest = shortened.split("\n", 1)
    assert first == f"[{len(text) - len(rest):,} characters before]" and rest.startswith("line ")


def test_page_shows_principal_text(tmp_path: Path) -> None:
    folder = has_principal(tmp_path, "llm", 0, [1.0, 2.0])
    call = {"hash": "x", "time": 1.0, "spent": {}, "model": "m", "sample_seed": 0, "repeat": 0, "purpose": "principal"}
    calls = [
        {**call, "messages": [{"role": "user", "content": "Propose a fee."}], "reply": reply}
        for reply in ("fee 1", "fee 2")
    ]
    (folder / "llm_calls.jsonl").write_text("".join(json.dumps(call_line) + "\n" for call_line in calls))
    [section] = compute_report(tmp_path, SETTINGS).sections
    [exchange] = section.story.exchanges
    assert (exchange.prompt, exchange.reply, exchange.source) == ("Propose a fee.", "fee 2", "principal, call 2")
    assert "fee 2" in write_report(compute_report(tmp_path, SETTINGS), tmp_path / "report").read_text()
