"""Printed tables of `llmrl-evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llmrl.display.console import near, new_table, terminal
from llmrl.display.run_summary import estimates_table, interval, print_carried, print_validity_warning


def print_evaluation(results: dict[str, Any]) -> None:
    """Print the results of `llmrl-evaluate`."""
    console = terminal()
    mechanism = results.get("mechanism")
    title = f"{results['episodes']} episodes, seed {results['seed']}, checkpoint {results['checkpoint']}"
    if mechanism:
        console.print(f"Mechanism: {', '.join(f'{k}={v:.3g}' for k, v in mechanism.items())}", soft_wrap=True)
    if results["context"]:
        console.print(f"Context: {results['context']}", soft_wrap=True)
    print_validity_warning(console, results)
    if "mechanisms" in results:
        _print_comparison(console, title, results)
        return
    several = len(results["players"]) > 1
    console.print(_compare_players(title, results["players"]) if several else estimates_table(title, results["table"]))
    print_carried(console, results["carried"])
    console.print(f"Saved in {results['out']}: results.json, episodes.csv" + (", videos/" if results["videos"] else ""))


def _print_comparison(console: Console, title: str, results: dict[str, Any]) -> None:
    """Print a comparison of mechanisms: table, method, files and conclusions."""
    from llmrl.results.mechanism_comparison import cells, method_sentences

    entries, differences = results["mechanisms"], results["differences"]
    columns = ["means of an episode", *(f"{mechanism['name']}\n{mechanism['words']}" for mechanism in entries)]
    columns += [f"{difference['name']} - {difference['reference']}\n(95% interval)" for difference in differences]
    table = new_table(title, columns)
    for row in cells(entries, differences, results["labels"]):
        table.add_row(*row)
    console.print(table)
    objective = results["objective"]
    cost = f" - {objective['spending_cost']:g} x spending of the mechanism" if objective["spending_cost"] else ""
    console.print(
        f"{objective['column']}: {objective['formula']}{cost}; x_i is the reward of agent i from the game in an "
        "episode, before the mechanism.",
        soft_wrap=True,
    )
    for line in method_sentences(results):
        console.print(line, soft_wrap=True)
    print_carried(console, results["carried"])
    out = Path(results["out"])
    videos = ", videos/" if results["videos"] else ""
    console.print(f"Saved in {near(out)}: results.json, episodes.csv{videos}", soft_wrap=True)
    for file in results["videos"][:1]:  # MP4, or GIF where no MP4 could be written; stills follow
        console.print(f"Video, side by side: {near(Path(file))}", soft_wrap=True)
    for sentence in results["sentences"]:
        console.print(sentence, style="bold", soft_wrap=True)


def _compare_players(title: str, players: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a column for each player and a row for each measurement except welfare.

    A `-` marks measurements without a value.
    """
    table = new_table(title, ["mean\n95% interval", *(f"{player['policy']}\n{player['mode']}" for player in players)])
    names = dict.fromkeys(name for player in players for name in player["table"])
    for name in names:
        if not name.startswith(("welfare/", "base ")):
            rows = [player["table"].get(name) for player in players]
            cells = ["-" if row is None else f"{row['mean']:.3f}\n{interval(row)}" for row in rows]
            table.add_row(name.replace("_", " "), *cells)
    return table
