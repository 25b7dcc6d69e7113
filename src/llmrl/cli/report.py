"""What the command line prints: plans, summaries and tables."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmrl.cli.reached import print_reached
from llmrl.core.fields import read_object
from llmrl.core.printable import printable
from llmrl.core.protocols import ChatModel, Meter, Scorer
from llmrl.llms.ledger import FILE_NAME
from llmrl.llms.validity import misgiving
from llmrl.run.content import RESULTS_NAME, SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.run.run import Run
    from llmrl.sweeps.jobs import Outcome


class Terminal(Console):
    """A console that shows texts from outside as what they are: brackets are no markup, colons no emoji, and what a
    terminal would obey is spelled out.

    Args:
        width: where the output is no terminal; tables that go to a file are not squeezed into 80 columns.
    """

    def __init__(self, width: int = 120) -> None:
        super().__init__(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def terminal() -> Console:
    """The console of everything that is printed."""
    return Terminal()


def print_line(text: object) -> None:
    """A line that is to stay as it is, whatever its length; of texts from outside what can be printed."""
    sys.stdout.write(f"{printable(text)}\n")


def print_plan(rows: Sequence[tuple[str, str]]) -> None:
    """The plan of a dry run."""
    print_rows("Plan (dry_run=true: everything was built; beside a few steps for the time, nothing was run)", rows)


def print_skipped(run: Run) -> None:
    """A finished run of the same configuration and seed is not run again."""
    result = "" if run.result is None else f" (result {run.result:.4g})"
    console = terminal()
    console.print(f"Already finished{result}: {run.folder}\nrerun=true runs it again and keeps the old one.")
    print_misgiving(console, _json(run.folder / SUMMARY_NAME))
    configs = (run.config, _recorded(run.folder))
    wanted, made = (config.get("play", {}).get("videos", 0) for config in configs)
    if wanted > made:
        console.print(
            f"It was run with play.videos={made}, and {wanted} are asked for: rerun=true plays the same episodes "
            "again, with films (replies that llm.cache kept are not paid again), and "
            f"{shlex.join(['llmrl-evaluate', str(_near(run.folder)), '--video'])} films an episode of another seed.",
            soft_wrap=True,
        )


def _recorded(folder: Path) -> dict[str, Any]:
    """The config that a run was started with last; empty where it cannot be read."""
    from llmrl.core.errors import RunFolderError
    from llmrl.run.content import read_config

    try:
        return read_config(folder, ())
    except RunFolderError:
        return {}


def print_summary(run: Run) -> None:
    """The end of a run: what was reached, and where to look."""
    console = terminal()
    history = run.summary.get("history")
    if history:
        names = list(history[0]["mechanism"])
        table = Table(title="Principal steps")
        contextual = [] if history[0]["context"] is None else ["context"]
        for column in ("step", *names, *contextual, "objective", "± s.e."):
            table.add_column(column, justify="right")
        shown = history if len(history) <= 30 else [*history[:5], *history[-25:]]
        named = run.summary["best_of_contexts"] or [run.summary["best"]]
        best = [(row["mechanism"], row["context"]) for row in named]
        for row in shown:
            cells = [str(row["step"]), *(f"{row['mechanism'][n]:.3g}" for n in names)]
            cells += [row[key] for key in contextual]
            error = row["standard_error"]
            cells += [f"{row['objective']:.3f}", "-" if error is None else f"{error:.3f}"]
            table.add_row(*cells, style="bold" if (row["mechanism"], row["context"]) in best else None)
        console.print(table)
        _print_best(console, run.summary["best_measured_again"], named)
        if "references" in run.summary:
            print_reached(console, run.summary["references"])
    measured = _measured(run.folder)
    if measured:
        table = Table(title=f"{measured['episodes']} final episodes")
        for column in ("", *_ESTIMATES):
            table.add_column(column, justify="right" if column else "left")
        for name, row in measured["table"].items():
            table.add_row(name.replace("_", " "), *_numbers(row))
        console.print(table)
        _print_carried(console, measured["carried"])
    table = Table(title=str(run.folder), show_header=False, min_width=70)
    for name, value in run.summary.items():
        if isinstance(value, int | float | str) and not (measured and name.startswith(("evaluation/", "welfare/"))):
            table.add_row(name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else f"{value}")
    console.print(table)
    print_misgiving(console, run.summary)
    console.print(f"Curves: {shlex.join(['tensorboard', '--logdir', str(run.folder.parent.parent)])}", soft_wrap=True)
    console.print(
        f"Video and table of episodes: {shlex.join(['llmrl-evaluate', str(run.folder), '--video'])}", soft_wrap=True
    )
    if "principal_steps" in run.summary:
        console.print("The best mechanism beside none: the same with --mechanism none,best", soft_wrap=True)


UNDERSTOOD = ("llm_judged_replies", "llm_invalid_share")
"""Entries of a summary that say how far a language model was understood."""
UNANSWERED = "llm_calls_failed"
"""Entry of the summary of a run (`llm.failures=fall_back`) in which no call was answered."""


def _misgiving(summary: Mapping[str, Any]) -> str:
    if summary.get(UNANSWERED):
        return f"THE MODEL NEVER ANSWERED: all of its {summary[UNANSWERED]:,.0f} calls failed"
    judged, share = (summary.get(name) for name in UNDERSTOOD)
    return misgiving(judged, share)


def print_misgiving(console: Console, summary: Mapping[str, Any]) -> None:
    """That results rest on fallbacks, where a language model was asked and not understood."""
    if said := _misgiving(summary):
        console.print(
            f"WARNING: {said}. These results rest on fallbacks; what it said is in {FILE_NAME}.",
            style="bold red",
            soft_wrap=True,
        )


def _print_best(console: Console, measured_again: bool, named: Sequence[dict[str, Any]]) -> None:
    """The best proposals, and what their numbers are."""
    table = Table(title="Best proposals" if len(named) > 1 else "Best proposal")
    contextual = [] if named[0]["context"] is None else ["context"]
    for column in (*named[0]["mechanism"], *contextual, "objective", "± s.e.", "measurements"):
        table.add_column(column, justify="right")
    for row in named:
        error = row["standard_error"]
        cells = [*(f"{x:.3g}" for x in row["mechanism"].values()), *(row[key] for key in contextual)]
        cells += [f"{row['objective']:.3f}", "-" if error is None else f"{error:.3f}", str(row["measurements"])]
        table.add_row(*cells)
    console.print(table)
    if not measured_again:
        console.print(
            "Chosen for these very measurements, so luck is in them; design.race=3 measures the best few again.",
            soft_wrap=True,
        )


def _print_carried(console: Console, carried: Sequence[str]) -> None:
    """Why episodes that depend on one another have no error; nothing where none do."""
    if carried:
        console.print(
            f"Episodes carry something over to the next ones ({', '.join(carried)}), so they depend on one another and "
            "have no standard error: that takes several runs (seed=0,1,2,...).",
            soft_wrap=True,
        )


_ESTIMATES = ("mean", "s.e.", "95% interval", "min", "max")


def _measured(folder: Path) -> dict[str, Any]:
    """What the final episodes of a run measured; empty where it has none."""
    return _json(folder / RESULTS_NAME)


def _json(path: Path) -> dict[str, Any]:
    """A record of a run; empty where there is none that can be read."""
    try:
        return read_object(path)
    except (FileNotFoundError, ValueError):
        return {}


def _numbers(row: dict[str, float | None]) -> list[str]:
    """A row of `analysis.statistics.describe`, as text."""
    number = {key: "-" if value is None else f"{value:,.3f}" for key, value in row.items()}
    return [number["mean"], number["standard_error"], _interval(row), number["min"], number["max"]]


def llm_summary(llm: ChatModel | Scorer | None) -> dict[str, Any]:
    """Rows of the summary that say whose words the results rest on, and what they cost."""
    if llm is None:
        return {}
    totals = llm.metrics() if isinstance(llm, Meter) else {}
    shown = {
        "llm_calls": totals.get("llm/calls"),
        "llm_calls_paid": totals.get("spent/llm_calls"),
        "llm_usd_paid": totals.get("spent/llm_cost"),
        "llm_judged_replies": totals.get("llm/judged_replies"),
        "llm_invalid_share": totals.get("llm/invalid_share"),
    }
    if totals.get("spent/llm_unsettled_calls"):
        # Nobody knows whether these were generated, and charged.
        shown["llm_replies_lost"] = totals["spent/llm_unsettled_calls"]
    if totals.get("spent/llm_unsettled_cost"):
        shown["llm_usd_unsettled_at_most"] = totals["spent/llm_unsettled_cost"]
    if totals.get("llm/calls") == 0 and totals.get("spent/llm_failed_calls"):
        shown[UNANSWERED] = totals["spent/llm_failed_calls"]
    return {"llm": llm.label, **{name: value for name, value in shown.items() if value is not None}}


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A table of names and values."""
    table = Table(title=title, show_header=False, min_width=70)
    for name, value in rows:
        table.add_row(name, value)
    terminal().print(table)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "ll") -> None:
    """A table of texts, flush left where `sides` has `l`, and of numbers, flush right; names of runs are long."""
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if sides[i : i + 1] == "l" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Terminal(200).print(table)


def print_evaluation(results: dict[str, Any]) -> None:
    """The table of `llmrl-evaluate`."""
    console = terminal()
    imposed = results.get("mechanism")
    title = f"{results['episodes']} episodes, seed {results['seed']}, checkpoint {results['checkpoint']}"
    if imposed:
        title += "\n" + ", ".join(f"{k}={v:.3g}" for k, v in imposed.items())
    if results["context"]:
        title += f"\ncontext: {results['context']}"
    table = Table(title=title)
    print_misgiving(console, results)
    if "mechanisms" in results:
        _print_comparison(console, table, results)
        return
    if len(results["players"]) > 1:
        _compare_players(table, results["players"])
    else:
        for column in ("", *_ESTIMATES):
            table.add_column(column, justify="left" if not column else "right")
        for name, row in results["table"].items():
            table.add_row(name, *_numbers(row))
    console.print(table)
    _print_carried(console, results["carried"])
    console.print(f"Saved in {results['out']}: results.json, episodes.csv" + (", videos/" if results["videos"] else ""))


def _print_comparison(console: Console, table: Table, results: dict[str, Any]) -> None:
    """Mechanisms beside one another, how they were compared, where the films are, and at last what came of it."""
    from llmrl.evaluation.comparison import cells, told

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
    _print_carried(console, results["carried"])
    out = Path(results["out"])
    videos = ", videos/" if results["videos"] else ""
    console.print(f"Saved in {_near(out)}: results.json, episodes.csv{videos}", soft_wrap=True)
    for file in results["videos"]:
        if file.endswith(".mp4"):
            console.print(f"Film, side by side: {_near(Path(file))}", soft_wrap=True)
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
            cells = ["-" if row is None else f"{row['mean']:.3f}\n{_interval(row)}" for row in rows]
            table.add_row(name.replace("_", " "), *cells)


def _interval(row: dict[str, float | None]) -> str:
    low, high = ("-" if row[end] is None else f"{row[end]:.3f}" for end in ("low", "high"))
    return f"{low} … {high}"


def print_sweep(outcomes: Sequence[Outcome]) -> None:
    """The closing table of a sweep, and what to do next."""
    from llmrl.run.folder import split_overrides
    from llmrl.run.names import title

    outcomes = list({outcome.folder: outcome for outcome in outcomes}.values())
    counts = Counter(outcome.state for outcome in outcomes)
    notes = ["nothing to do" if o.skipped and o.state == "finished" else o.error for o in outcomes]
    for i, outcome in enumerate(outcomes):
        if outcome.state == "finished" and (said := _misgiving(_json(outcome.folder / SUMMARY_NAME))):
            notes[i] = said
    table = Table(title=", ".join(f"{n} {state}" for state, n in counts.most_common()))
    for column in ("run", "seed", "state", "result", *([""] if any(notes) else [])):
        table.add_column(column, justify="right" if column in ("seed", "result") else "left", overflow="fold")
    for outcome, note in zip(outcomes, notes, strict=True):
        name = title(split_overrides(outcome.job.naming)) or outcome.folder.parent.name
        result = "" if outcome.result is None else f"{outcome.result:.5g}"
        style = {"finished": None, "submitted": None, "elsewhere": "dim"}.get(outcome.state, "bold")
        cells = [name, str(outcome.job.config["seed"]), outcome.state, result, *([note] if any(notes) else [])]
        table.add_row(*cells, style=style)
    console = terminal()
    console.print(table)
    unfinished = [o for o in outcomes if o.state not in ("finished", "elsewhere", "submitted")]
    if unfinished:
        console.print(f"Why: {shlex.join(['llmrl-sweep', 'logs', str(_near(unfinished[0].folder))])}", soft_wrap=True)
        console.print("The same command again runs what is missing.")
    root = shlex.quote(str(_near(common_folder([outcome.folder for outcome in outcomes]))))
    for command in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        console.print(f"{command} {root}", soft_wrap=True)


def _near(folder: Path) -> Path:
    """A folder as one would type it here."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def common_folder(folders: Sequence[Path]) -> Path:
    """The folder that all run folders of a sweep are in, one above their groups where there are several."""
    parents = [str(folder.parent.parent) for folder in folders]
    return Path(os.path.commonpath(parents))
