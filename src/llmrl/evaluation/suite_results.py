"""Results of the tests of a suite, for one run or for several runs together, and their table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.results.groups import find_replication_units, group_into_tasks
from llmrl.results.run_records import RunRecord, read_run
from llmrl.results.table_format import EMPTY_CELL, ReportTable
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.files import report_write_errors, write_atomic, write_json
from llmrl.statistics.estimators import Interval, mean_proportion
from llmrl.statistics.intervals import MINIMUM_UNITS, describe

Results = Mapping[str, Any]
STUDENT = "student"
"""Name of the player that is the agent of a run. In results of several experiments, the label of each experiment is the
name of a player, whose results are means of the student's results over the runs of the experiment."""
_INTERVALS_NOTE = (
    f"95%; of several runs Student t over the runs, or over their pre-training runs, none below {MINIMUM_UNITS}; of "
    "one agent's episodes Wilson, and of the mean over kinds Zou and Donner"
)
INCOMPLETE_MARK = "‡"
"""Mark of the result of a player that could not play all kinds of a test."""


def summarize_test(test_results: Results) -> dict[str, Any]:
    """Return results of a test with each player's statistics summarized over kinds of task; None if it cannot play.

    In a summary, `success` is the mean success rate over kinds, with equal weights, and `low`, `high` are its 95%
    interval. `kinds` has the results of each kind, and `lacking` the reasons for kinds that could not be played.
    """
    players: dict[str, Any] = {}
    for name, kinds in test_results["players"].items():
        if kinds is None:
            players[name] = None
            continue
        intervals = [Interval(kind["success"], kind["low"], kind["high"]) for kind in kinds.values()]
        success_rate = mean_proportion(intervals)
        players[name] = {
            "success": success_rate.estimate,
            "low": success_rate.low,
            "high": success_rate.high,
            "episodes": sum(kind["episodes"] for kind in kinds.values()),
            "kinds": dict(kinds),
            "lacking": test_results["lacking"],
        }
    return {**{key: value for key, value in test_results.items() if key != "lacking"}, "players": players}


def group_runs_by_experiment(runs: Sequence[Path]) -> dict[str, list[RunRecord]]:
    """Return the records of each experiment's runs by its label in reports; the label of a single one is `STUDENT`.

    Raises:
        ConfigError: a run is given twice, or two experiments have the same label.
    """
    tasks = group_into_tasks([read_run(run) for run in runs], Path(), by_name=False)
    labeled_groups = [
        (group.label if len(tasks) == 1 else f"{task.title}, {group.label}", list(group.runs))
        for task in tasks
        for group in task.groups
    ]
    for label, records in labeled_groups:
        if len({run.folder for run in records}) < len(records) or [name for name, _ in labeled_groups].count(label) > 1:
            raise ConfigError(f"{records[0].folder} is the same experiment with the same seed as another run; give one")
    return {STUDENT: labeled_groups[0][1]} if len(labeled_groups) == 1 else dict(labeled_groups)


def merge_suite_results(results: Sequence[Results], groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, Any]:
    """Merge the results of several runs, with each experiment as a player.

    Results of an experiment are means over its runs with 95% t intervals, or the results of its only run; in a test
    that one of its runs could not play, they are None.

    Args:
        results: results of each run, with the same tests. Only those of the first run include players other than the
            student.
        groups: records of each experiment's runs (`group_runs_by_experiment`).
    """
    first_results = results[0]
    results_by_folder = {Path(result["runs"][0]).absolute(): result for result in results}
    results_by_label = {label: [results_by_folder[run.folder] for run in runs] for label, runs in groups.items()}
    other_players = [name for name in first_results["players"] if name != STUDENT]
    tests = []
    for test_index, test in enumerate(first_results["tests"]):
        refused: dict[str, str] = {}
        players: dict[str, Any] = {}
        for label, group_results in results_by_label.items():
            run_tests = [result["tests"][test_index] for result in group_results]
            refusals = [run_test["refused"][STUDENT] for run_test in run_tests if STUDENT in run_test["refused"]]
            players[label] = None
            if refusals:
                refused[label] = refusals[0]
            else:
                student_results = [run_test["players"][STUDENT] for run_test in run_tests]
                players[label] = _average_runs(student_results, find_replication_units(groups[label]))
        for name in other_players:
            players[name] = test["players"][name]
            if name in test["refused"]:
                refused[name] = test["refused"][name]
        is_same_env = all(result["tests"][test_index]["env"] == test["env"] for result in results)
        tests.append({**test, "env": test["env"] if is_same_env else None, "players": players, "refused": refused})
    return {
        **{key: value for key, value in first_results.items() if key not in ("checkpoint", "llm", "out")},
        "runs": [run for result in results for run in result["runs"]],
        "experiments": {
            label: [{"run": x["runs"][0], "checkpoint": x["checkpoint"], "llm": x["llm"]} for x in group_results]
            for label, group_results in results_by_label.items()
        },
        "intervals": _INTERVALS_NOTE,
        "players": [*groups, *other_players],
        "tests": tests,
    }


def _average_runs(run_results: Sequence[Results], units: Sequence[object]) -> dict[str, Any]:
    """Return the means of a player's results over runs; `units`: the replication unit of each run."""

    def average(results: Sequence[Results]) -> dict[str, Any]:
        estimate = describe(np.array([result["success"] for result in results]), units=units)
        return {
            "success": estimate["mean"],
            "low": estimate["low"],
            "high": estimate["high"],
            "episodes": sum(result["episodes"] for result in results),
            "per_run": [result["success"] for result in results],
        }

    if len(run_results) == 1:
        return dict(run_results[0])
    kinds = {kind: average([results["kinds"][kind] for results in run_results]) for kind in run_results[0]["kinds"]}
    return {**average(run_results), "kinds": kinds, "lacking": run_results[0]["lacking"]}


def build_suite_table(results: Results) -> ReportTable:
    """Return a table with a row for each test and player, and a column for each kind of task.

    A table of several experiments has a row for each test and a column for each player instead.
    """
    tests, names, runs = results["tests"], results["players"], results["runs"]
    n_experiments = len(results.get("experiments", ())) or 1
    csv_rows: list[list[object]] = [
        ["test", "player", "kind", "episodes", "successes", "success", "low", "high", "return", "length", "refused"]
    ]
    number_keys = ("episodes", "successes", "success", "low", "high", "return", "length")
    for test in tests:
        for name, player in ((name, test["players"][name]) for name in names):
            if player is None:
                csv_rows.append([test["name"], name, "mean", *[None] * 7, test["refused"][name]])
                continue
            for kind, result in (("mean", player), *player["kinds"].items()):
                csv_rows.append([test["name"], name, kind, *(result.get(key) for key in number_keys), ""])
            csv_rows += [[test["name"], name, kind, *[None] * 7, reason] for kind, reason in player["lacking"].items()]
    runs_text = "" if len(runs) == 1 else f", {len(runs)} runs" + (f" of {n_experiments}" if n_experiments > 1 else "")
    caption = (
        f"suite {results['suite']}: success in %, {results['mode']} actions, {results['episodes']} episodes of each "
        f"kind and test, seed {results['seed']}{runs_text}{' experiments' if n_experiments > 1 else ''}"
    )
    if n_experiments > 1:
        columns = ["test", *names]
        rows = [[test["title"], *(_format_with_interval(test["players"][name]) for name in names)] for test in tests]
    else:
        columns, rows = _build_kind_rows(tests, names)
    n_text_columns = 1 if n_experiments > 1 else 1 + (len(names) > 1)
    notes = [f"Intervals: {results['intervals']}.", *_build_incompleteness_notes(tests)]
    return ReportTable("table", caption, csv_rows, columns, rows, n_text_columns=n_text_columns, notes=notes)


def _build_kind_rows(tests: Sequence[Results], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table of one experiment, with a row for each test and player."""
    kinds = dict.fromkeys(k for test in tests for player in test["players"].values() if player for k in player["kinds"])
    kind_columns = [kind for kind in kinds if kind != "all"]
    rows = []
    for test in tests:
        for name in names:
            player, labels = test["players"][name], [test["title"], *([name] if len(names) > 1 else [])]
            if player is None:
                rows.append([*labels, EMPTY_CELL, EMPTY_CELL, *[EMPTY_CELL] * len(kind_columns)])
                continue
            cells = {kind: _format_percent(result["success"]) for kind, result in player["kinds"].items()}
            cells |= dict.fromkeys(player["lacking"], EMPTY_CELL)
            kind_cells = [cells.get(kind, "") for kind in kind_columns]
            rows.append([*labels, _format_success(player), _format_interval(player), *kind_cells])
    return ["test", *(["player"] if len(names) > 1 else []), "success", "95% interval", *kind_columns], rows


def _build_incompleteness_notes(tests: Sequence[Results]) -> list[str]:
    """Return notes on tests that players could not play, or only in part; tests with equal notes are combined."""
    partial_tests: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    unplayed_tests: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for test in tests:
        players_by_refusal: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in test["refused"].items():
            players_by_refusal[f"not played. {reason}"].append(name)
        players_by_gap: defaultdict[str, list[str]] = defaultdict(list)
        for name, player in test["players"].items():
            if player and player["lacking"]:
                note = f"{', '.join(player['kinds'])} only. {'; '.join(player['lacking'].values())}"
                players_by_gap[note].append(name)
        for players_by_note, tests_by_note in ((players_by_refusal, unplayed_tests), (players_by_gap, partial_tests)):
            for note, players in players_by_note.items():
                tests_by_note[", ".join(players), note].append(test["title"])
    return [
        f"{mark}{'; '.join(titles)}: {players}: {note}"
        for mark, tests_by_note in ((f"{INCOMPLETE_MARK} ", partial_tests), ("", unplayed_tests))
        for (players, note), titles in tests_by_note.items()
    ]


def write_suite(results: Results, folder: Path) -> None:
    """Write `results.json`, `table.csv` and `table.md` into a folder, each atomically.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    table = build_suite_table(results)
    write_json(folder / RESULTS_NAME, {**results, "out": str(folder)})
    write_atomic(folder / "table.csv", table.to_csv())
    write_atomic(folder / "table.md", f"{table.caption}\n\n{table.to_markdown()}\n")


def _format_success(player: Results) -> str:
    """Format the success rate of a player, with `INCOMPLETE_MARK` if it could not play all kinds."""
    return _format_percent(player["success"]) + (f" {INCOMPLETE_MARK}" if player["lacking"] else "")


def _format_percent(success_rate: float) -> str:
    return f"{100 * success_rate:.1f}"


def _format_with_interval(player: Results | None) -> str:
    if player is None:
        return EMPTY_CELL
    interval = "" if player["low"] is None else f" ({_format_interval(player)})"
    return _format_success(player) + interval


def _format_interval(player: Results) -> str:
    return (
        EMPTY_CELL if player["low"] is None else f"{_format_percent(player['low'])} … {_format_percent(player['high'])}"
    )
