"""The tables of `llmrl-evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llmrl.display.console import near, terminal
from llmrl.display.run_summary import ESTIMATES, interval, numbers, print_carried, print_validity_warning


def print_evaluation(results: dict[str, Any]) -> None:
    """The table of `llmrl-evaluate`."""
    console = terminal()
    imposed = results.get("mechanism")
    table = Table(title=f"{results['episodes']} episodes, seed {results['seed']}, checkpoint {results['checkpoint']}")
    if imposed:
        console.print(f"Mechanism: {', '.join(f'{k}={v:.3g}' for k, v in imposed.items())}", soft_wrap=True)
    if results["context"]:
        console.print(f"Context: {results['context']}", soft_wrap=True)
    print_validity_warning(console, results)
    if "mechanisms" in results:
        _print_comparison(console, table, results)
        return
    if len(results["players"]) > 1:
        _compare_players(table, results["players"])
    else:
        for column in ("", *ESTIMATES):
            table.add_column(column, justify="left" if not column else "right")
        for name, row in results["table"].items():
            table.add_row(name, *numbers(row))
    console.print(table)
    print_carried(console, results["carried"])
    console.print(f"Saved in {results['out']}: results.json, episodes.csv" + (", videos/" if results["videos"] else ""))


def _print_comparison(console: Console, table: Table, results: dict[str, Any]) -> None:
    """Mechanisms beside one another, how they were compared, where the videos are, and at last what came of it."""
    from llmrl.analysis.mechanism_comparison import cells, told

    entries, compared = results["mechanisms"], results["differences"]
    table.add_column("means of an episode")
    for each in entries:
        table.add_column(f"{each['name']}\n{each['words']}", justify="right")
    for each in compared:
        table.add_column(f"{each['name']} - {each['reference']}\n(95% interval)", justify="right")
    for row in cells(entries, compared, results["labels"]):
        table.add_row(*row)
    console.print(table)
    judged = results["objective"]
    cost = f", less {judged['spending_cost']:g} x what the mechanism pays out" if judged["spending_cost"] else ""
    console.print(
        f"{judged['column']}: {judged['formula']}{cost}; x_i is what the game pays agent i in an episode, before the "
        "mechanism.",
        soft_wrap=True,
    )
    for line in told(results):
        console.print(line, soft_wrap=True)
    print_carried(console, results["carried"])
    out = Path(results["out"])
    videos = ", videos/" if results["videos"] else ""
    console.print(f"Saved in {near(out)}: results.json, episodes.csv{videos}", soft_wrap=True)
    for file in results["videos"][:1]:  # MP4, or GIF where no MP4 could be written; stills follow
        console.print(f"Film, side by side: {near(Path(file))}", soft_wrap=True)
    for sentence in results["sentences"]:
        console.print(sentence, style="bold", soft_wrap=True)


def _compare_players(table: Table, players: Sequence[dict[str, Any]]) -> None:
    """A column for each player, a row for each number, welfare aside; `-` where its episodes say nothing of it."""
    table.add_column("mean\n95% interval")
    for player in players:
        table.add_column(f"{player['policy']}\n{player['mode']}", justify="right")
    names = dict.fromkeys(name for player in players for name in player["table"])
    for name in names:
        if not name.startswith(("welfare/", "base ")):
            rows = [player["table"].get(name) for player in players]
            cells = ["-" if row is None else f"{row['mean']:.3f}\n{interval(row)}" for row in rows]
            table.add_row(name.replace("_", " "), *cells)
