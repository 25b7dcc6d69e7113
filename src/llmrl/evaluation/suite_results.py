"""Results of the tests of a suite: shares of successes by test and kind of task, as a table and a figure."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core import atomic_files
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.table_format import NOTHING, ReportTable
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.files import write_atomic, write_bytes, write_json
from llmrl.statistics.estimators import Interval, mean_proportion

if TYPE_CHECKING:
    from llmrl.analysis.figures import Drawing

log = logging.getLogger(__name__)

Results = Mapping[str, Any]
_MARKS = "os^Dv<>"
INCOMPLETE_MARK = "‡"
"""Mark of the result of a player that could not play all kinds of a test."""


def summarize_test(test: Results) -> dict[str, Any]:
    """Return a test with each player's results over its kinds of task; None for a player that could not play it.

    `success` is the equally weighted mean of the kinds' shares, with the 95% interval `low`, `high`. `kinds` holds the
    results of each kind. `lacking` holds the reasons for kinds that could not be played.
    """
    players: dict[str, Any] = {}
    for name, kinds in test["players"].items():
        if kinds is None:
            players[name] = None
            continue
        share = mean_proportion([Interval(kind["success"], kind["low"], kind["high"]) for kind in kinds.values()])
        players[name] = {
            "success": share.estimate,
            "low": share.low,
            "high": share.high,
            "episodes": sum(kind["episodes"] for kind in kinds.values()),
            "kinds": dict(kinds),
            "lacking": test["lacking"],
        }
    return {**{key: value for key, value in test.items() if key != "lacking"}, "players": players}


def suite_table(results: Results) -> ReportTable:
    """Return a table with a row for each test and player, and columns for kinds of task.

    For several experiments it has a row for each test and a column for each player.
    """
    tests, names, runs = results["tests"], results["players"], results["runs"]
    experiments = len(results.get("experiments", ())) or 1
    data: list[list[object]] = [
        ["test", "player", "kind", "episodes", "successes", "success", "low", "high", "return", "length", "refused"]
    ]
    numbers = ("episodes", "successes", "success", "low", "high", "return", "length")
    for test in tests:
        for name, player in ((name, test["players"][name]) for name in names):
            if player is None:
                data.append([test["name"], name, "mean", *[None] * 7, test["refused"][name]])
                continue
            for kind, result in (("mean", player), *player["kinds"].items()):
                data.append([test["name"], name, kind, *(result.get(column) for column in numbers), ""])
            data += [[test["name"], name, kind, *[None] * 7, reason] for kind, reason in player["lacking"].items()]
    runs_text = "" if len(runs) == 1 else f", {len(runs)} runs" + (f" of {experiments}" if experiments > 1 else "")
    caption = (
        f"suite {results['suite']}: success in %, {results['mode']} actions, {results['episodes']} episodes of each "
        f"kind and test, seed {results['seed']}{runs_text}{' experiments' if experiments > 1 else ''}"
    )
    columns, rows = _side_by_side(tests, names) if experiments > 1 else _with_kinds(tests, names)
    texts = 1 if experiments > 1 else 1 + (len(names) > 1)
    notes = [f"Intervals: {results['intervals']}.", *_notes(tests)]
    return ReportTable("table", caption, data, columns, rows, texts=texts, notes=notes)


def _with_kinds(tests: Sequence[Results], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    kinds = dict.fromkeys(k for test in tests for player in test["players"].values() if player for k in player["kinds"])
    kinds_shown = [kind for kind in kinds if kind != "all"]
    rows = []
    for test in tests:
        for name in names:
            player, head = test["players"][name], [test["title"], *([name] if len(names) > 1 else [])]
            if player is None:
                rows.append([*head, NOTHING, NOTHING, *[NOTHING] * len(kinds_shown)])
                continue
            shares = [
                _percent(player["kinds"][kind]["success"]) if kind in player["kinds"] else "" for kind in kinds_shown
            ]
            shares = [NOTHING if kind in player["lacking"] else x for kind, x in zip(kinds_shown, shares, strict=True)]
            rows.append([*head, _success_text(player), _interval(player), *shares])
    return ["test", *(["player"] if len(names) > 1 else []), "success", "95% interval", *kinds_shown], rows


def _side_by_side(tests: Sequence[Results], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for test in tests:
        players = [test["players"][name] for name in names]
        cells = [NOTHING if player is None else _with_interval(player) for player in players]
        rows.append([test["title"], *cells])
    return ["test", *names], rows


def _notes(tests: Sequence[Results]) -> list[str]:
    """Return notes on tests that players did not play, or not completely; equal reasons are combined."""
    partial_tests: dict[tuple[str, str, str], list[str]] = {}
    refused_tests: dict[tuple[str, str], list[str]] = {}
    for test in tests:
        reasons = dict.fromkeys(test["refused"].values())
        for reason in reasons:
            players = ", ".join(name for name, player_reason in test["refused"].items() if player_reason == reason)
            refused_tests.setdefault((players, reason), []).append(test["title"])
        incomplete: dict[tuple[str, str], list[str]] = {}
        for name, player in test["players"].items():
            if player and player["lacking"]:
                incomplete.setdefault((_only(player), "; ".join(player["lacking"].values())), []).append(name)
        for (only, reason), incomplete_players in incomplete.items():
            partial_tests.setdefault((", ".join(incomplete_players), only, reason), []).append(test["title"])
    notes = [
        f"{INCOMPLETE_MARK} {'; '.join(titles)}: {players}: {only}. {reason}"
        for (players, only, reason), titles in partial_tests.items()
    ]
    return notes + [
        f"{'; '.join(titles)}: {players}: not played. {reason}" for (players, reason), titles in refused_tests.items()
    ]


def write_suite(results: Results, folder: Path, figure: bool = True) -> None:
    """Write `results.json`, `table.csv`, `table.md` and `suite.png` into a folder, each atomically.

    The figure is left out if matplotlib is not installed.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {atomic_files.describe_write_error(folder, error)}") from error
    table = suite_table(results)
    write_json(folder / RESULTS_NAME, {**results, "out": str(folder)})
    write_atomic(folder / "table.csv", table.csv())
    write_atomic(folder / "table.md", f"{table.caption}\n\n{table.markdown()}\n")
    if not figure:
        return
    from llmrl.analysis.figures import check_installed

    try:
        check_installed()
    except ConfigError:
        log.warning("suite.png is not drawn: figures need matplotlib (pip install 'llmrl[plots]')")
        return
    write_bytes(folder / "suite.png", suite_drawing(results).png)


def suite_drawing(results: Results) -> Drawing:
    """Return the figure of a suite: a bar for each player in each test, with its interval; points are kinds of task.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from llmrl.analysis.figures import styled

    caption = (
        f"Success in each test, {results['mode']} actions. Whiskers: intervals ({results['intervals']}). "
        "Marks: kinds of task."
    )
    return styled("suite", caption, lambda: _figure(results))


def _figure(results: Results) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from llmrl.analysis.group_styles import COLORS

    tests, names = results["tests"], results["players"]
    bar_height, player_kinds = 0.8 / len(names), [p["kinds"] for t in tests for p in t["players"].values() if p]
    kinds = dict.fromkeys(kind for result in player_kinds if len(result) > 1 for kind in result)
    marks = {kind: _MARKS[i % len(_MARKS)] for i, kind in enumerate(kinds)}
    dot: dict[str, Any] = {"color": "white", "mec": "black", "mew": 0.7, "markersize": 4.5, "linestyle": "none"}
    figure = Figure(figsize=(9, 1.6 + len(tests) * max(0.34, 0.2 * len(names))), layout="constrained")
    panel = figure.subplots()
    for y, test in enumerate(tests):
        for k, name in enumerate(names):
            place, player = y - 0.4 + bar_height * (k + 0.5), test["players"][name]
            if player is None:
                panel.text(0.01, place, "not played", va="center", color="#666666", fontsize=8)
                continue
            if player["lacking"]:
                panel.text(1.03, place, _only(player), va="center", fontsize=8)
            panel.barh(place, player["success"], bar_height * 0.92, color=COLORS[k % len(COLORS)], alpha=0.75)
            if player["low"] is not None:
                panel.plot([player["low"], player["high"]], [place, place], color="black", linewidth=1.5)
            for kind, result in player["kinds"].items() if len(player["kinds"]) > 1 else ():
                panel.plot(result["success"], place, marker=marks[kind], clip_on=False, zorder=3, **dot)
    panel.set_yticks(range(len(tests)), [textwrap.fill(test["title"], 40) for test in tests])
    panel.set_ylim(len(tests) - 0.4, -0.6)
    panel.set_xlim(0, 1.02)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("success")
    handles: list[Any] = [Patch(color=COLORS[k % len(COLORS)], alpha=0.75, label=n) for k, n in enumerate(names)]
    handles.append(Line2D([], [], color="black", label=textwrap.fill(results["intervals"], 70)))
    handles += [Line2D([], [], label=kind, marker=mark, **dot) for kind, mark in marks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _only(player: Results) -> str:
    return f"{', '.join(player['kinds'])} only"


def _success_text(player: Results) -> str:
    """Return the share of successes, with a mark if not all kinds were played."""
    return _percent(player["success"]) + (f" {INCOMPLETE_MARK}" if player["lacking"] else "")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _with_interval(player: Results) -> str:
    return _success_text(player) if player["low"] is None else f"{_success_text(player)} ({_interval(player)})"


def _interval(player: Results) -> str:
    if player["low"] is None:
        return NOTHING
    return f"{_percent(player['low'])} … {_percent(player['high'])}"
