"""Results of the tests of a suite, and their table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.results.table_format import EMPTY_CELL, ReportTable
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.files import report_write_errors, write_atomic, write_json
from llmrl.statistics.estimators import Interval, mean_proportion

Results = Mapping[str, Any]
STUDENT = "student"
"""Name of the player that is the agent of the run."""
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


def build_suite_table(results: Results) -> ReportTable:
    """Return a table with a row for each test and player, and a column for each kind of task."""
    tests, names = results["tests"], results["players"]
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
    caption = (
        f"suite {results['suite']}: success in %, {results['mode']} actions, {results['episodes']} episodes of each "
        f"kind and test, seed {results['seed']}"
    )
    columns, rows = _build_kind_rows(tests, names)
    n_text_columns = 1 + (len(names) > 1)
    notes = [f"Intervals: {results['intervals']}.", *_build_incompleteness_notes(tests)]
    return ReportTable("table", caption, csv_rows, columns, rows, n_text_columns=n_text_columns, notes=notes)


def _build_kind_rows(tests: Sequence[Results], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table, with a row for each test and player."""
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


def _format_interval(player: Results) -> str:
    return f"{_format_percent(player['low'])} … {_format_percent(player['high'])}"
