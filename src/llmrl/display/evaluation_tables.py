"""Printed tables of `llmrl-evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.display.console import near, print_line, print_table
from llmrl.display.run_summary import interval, print_carried, print_estimates, print_validity_warning


def print_evaluation(results: dict[str, Any]) -> None:
    """Print the results of `llmrl-evaluate`."""
    mechanism = results.get("mechanism")
    title = f"{results['episodes']} episodes, seed {results['seed']}, checkpoint {results['checkpoint']}"
    if mechanism:
        print_line(f"Mechanism: {', '.join(f'{k}={v:.3g}' for k, v in mechanism.items())}")
    if results["context"]:
        print_line(f"Context: {results['context']}")
    print_validity_warning(results)
    if "mechanisms" in results:
        _print_comparison(title, results)
        return
    several = len(results["players"]) > 1
    if several:
        _print_players(title, results["players"])
    else:
        print_estimates(title, results["table"])
    print_carried(results["carried"])
    print_line(f"Saved in {results['out']}: results.json, episodes.csv" + (", videos/" if results["videos"] else ""))


def _print_comparison(title: str, results: dict[str, Any]) -> None:
    """Print a comparison of mechanisms: table, method, files and conclusions."""
    from llmrl.results.mechanism_comparison import cells, method_sentences

    entries, differences = results["mechanisms"], results["differences"]
    columns = ["means of an episode", *(f"{mechanism['name']}\n{mechanism['words']}" for mechanism in entries)]
    columns += [f"{difference['name']} - {difference['reference']}\n(95% interval)" for difference in differences]
    print_table(title, columns, cells(entries, differences, results["labels"]), "l")
    objective = results["objective"]
    cost = f" - {objective['spending_cost']:g} x spending of the mechanism" if objective["spending_cost"] else ""
    print_line(
        f"{objective['column']}: {objective['formula']}{cost}; x_i is the reward of agent i from the game in an "
        "episode, before the mechanism."
    )
    for line in method_sentences(results):
        print_line(line)
    print_carried(results["carried"])
    out = Path(results["out"])
    videos = ", videos/" if results["videos"] else ""
    print_line(f"Saved in {near(out)}: results.json, episodes.csv{videos}")
    for file in results["videos"][:1]:  # MP4, or GIF where no MP4 could be written; stills follow
        print_line(f"Video, side by side: {near(Path(file))}")
    for sentence in results["sentences"]:
        print_line(sentence, style="bold")


def _print_players(title: str, players: Sequence[dict[str, Any]]) -> None:
    """Print a table with a column for each player and a row for each measurement except welfare.

    A `-` marks measurements without a value.
    """
    table_rows = []
    for name in dict.fromkeys(name for player in players for name in player["table"]):
        if not name.startswith(("welfare/", "base ")):
            rows = [player["table"].get(name) for player in players]
            cells = ["-" if row is None else f"{row['mean']:.3f}\n{interval(row)}" for row in rows]
            table_rows.append([name.replace("_", " "), *cells])
    columns = ["mean\n95% interval", *(f"{player['policy']}\n{player['mode']}" for player in players)]
    print_table(title, columns, table_rows, "l")
