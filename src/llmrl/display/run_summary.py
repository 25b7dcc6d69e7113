"""What is printed of a run: its plan, that it was finished before, and what it came to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from llmrl.analysis.principal_scores import ONLINE, RECOMMENDATION, RECOMMENDATION_ERROR
from llmrl.analysis.reference_lines import LINES
from llmrl.core.plain_data import read_object
from llmrl.display.console import near, print_rows, terminal
from llmrl.llms.budget import LATENCY
from llmrl.llms.call_log import FILE_NAME
from llmrl.llms.usage import UNANSWERED, UNDERSTOOD
from llmrl.llms.validity import validity_warning
from llmrl.run.artifacts import RESULTS_NAME, TRUSTED_KEY
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.sinks.sink import FOLDER as LOGGERS_FOLDER
from llmrl.run.source_copies import changed_sources
from llmrl.run.status import SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.run.run import Run


ESTIMATES = ("mean", "s.e.", "95% interval", "min", "max")

SCORES = (RECOMMENDATION, RECOMMENDATION_ERROR, ONLINE)
"""Keys of a summary that `objective_rows` shows in words."""
_LINES = {**LINES, "last_proposals": "mean of the last proposals", "recommendation": "recommendation"}
"""Levels of each context in a summary's `references`, in the order of the table, and their display names."""


def print_plan(rows: Sequence[tuple[str, str]]) -> None:
    """The plan of a dry run."""
    print_rows("Plan (dry_run=true: everything was built; beside a few steps for the time, nothing was run)", rows)


def print_skipped(run: Run) -> None:
    """A finished run of the same configuration and seed is not run again."""
    result = "" if run.result is None else f" (result {run.result:.4g})"
    console = terminal()
    console.print(f"Already finished{result}: {run.folder}\nrerun=true runs it again and keeps the old one.")
    if changed := changed_sources(run.folder):
        console.print(
            f"Changed since, in comments, docstrings or layout only: {', '.join(changed)}", soft_wrap=True, markup=False
        )
    print_validity_warning(console, record(run.folder / SUMMARY_NAME))
    configs = (run.config, _recorded(run.folder))
    wanted, made = (config.get("play", {}).get("videos", 0) for config in configs)
    added = sorted(set(run.config.get("loggers", {})) - set(configs[1].get("loggers", {})))
    if configs[1] and added:
        console.print(f"It was run without loggers {', '.join(added)}, which get nothing now.", soft_wrap=True)
    if wanted > made:
        console.print(
            f"It was run with play.videos={made}, and {wanted} are asked for: rerun=true plays the same episodes "
            "again, with videos (replies that llm.cache kept are not paid again), and "
            f"{evaluate_command(run.config, near(run.folder))} records an episode of another seed.",
            soft_wrap=True,
        )


def _recorded(folder: Path) -> dict[str, Any]:
    """The config that a run was started with last; empty where it cannot be read."""
    from llmrl.core.errors import RunFolderError
    from llmrl.run.artifacts import read_config

    try:
        return read_config(folder, ())
    except RunFolderError:
        return {}


def print_summary(run: Run) -> None:
    """The end of a run: what was reached, and where to look."""
    console = terminal()
    history = run.summary.get("history")
    if history:
        print_steps(console, run.summary)
        print_recommendations(console, run.summary)
        if "references" in run.summary:
            print_reached(console, run.summary["references"])
    measured = _measured(run.folder)
    if measured:
        _print_episodes(console, measured)
    table = Table(title=f"{run.folder.parent.parent.name}, {run.folder.name}", show_header=False, min_width=70)
    if history:
        for row in objective_rows(run.summary):
            table.add_row(*row)
    for name, value in run.summary.items():
        if name in SCORES and history:
            continue
        if isinstance(value, int | float | str) and not (measured and name.startswith(("evaluation/", "welfare/"))):
            table.add_row(name.replace("_", " "), _format_value(value))
    if "llm" in run.summary and (seconds := _reply_seconds(run.folder)) is not None:
        table.add_row("llm waiting time", f"{seconds:,.3g} s (sum over paid replies)")
    console.print(table)
    console.print(f"Run folder: {near(run.folder)}", soft_wrap=True)
    print_validity_warning(console, run.summary)
    for line in logger_lines(run.config["loggers"], run.folder):
        console.print(line, soft_wrap=True)
    console.print(f"Video and table of episodes: {evaluate_command(run.config, run.folder)}", soft_wrap=True)
    if "principal_steps" in run.summary:
        console.print("The recommended mechanism and none: the same with --mechanism none,best", soft_wrap=True)


def _format_value(value: float | str) -> str:
    """Return an entry of a summary as text: whole numbers in full, other numbers with four digits."""
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.4g}"


def _reply_seconds(folder: Path) -> float | None:
    """Return the seconds that the paid replies of a run took in all; None without a language model."""
    path = folder / METRICS_NAME
    rows = read_metrics(path) if path.exists() else []
    return next((row[LATENCY] for row in reversed(rows) if LATENCY in row), None)


def evaluate_command(config: Mapping[str, Any], folder: Path) -> str:
    """Return the command that films a run, with the modules that were trusted for it on its command line.

    Args:
        config: config of the run, with `trusted_modules`.
        folder: run folder.
    """
    modules = [entry for entry in config.get(TRUSTED_KEY, ()) if "@" not in entry and "://" not in entry]
    trusted = [word for module in modules for word in ("--trust", module)]
    return shlex.join(["llmrl-evaluate", str(folder), "--video", *trusted])


def logger_lines(loggers: Mapping[str, Any], folder: Path) -> list[str]:
    """Return where the records of each logger are, with the command or address that shows them.

    Args:
        loggers: section `loggers` of the config.
        folder: run folder.
    """
    from llmrl.run.sinks.mlflow import database_uri

    lines = []
    if "tensorboard" in loggers:
        lines.append(f"Curves: {shlex.join(['tensorboard', '--logdir', str(folder.parent.parent)])}")
    if "wandb" in loggers:
        settings = loggers["wandb"]
        project = settings.get("project") or folder.parent.parent.name
        runs = folder / LOGGERS_FOLDER / "wandb"
        offline = f"in {runs}; to send it: {shlex.join(['wandb', 'sync', str(runs)])}/offline-run-*"
        lines.append(f"Weights & Biases: {offline if settings.get('mode') == 'offline' else f'project {project}'}")
    if "mlflow" in loggers:
        uri = loggers["mlflow"].get("tracking_uri") or database_uri(folder.parents[2])
        lines.append(f"MLflow: {uri}" if "://" in uri and not uri.startswith("sqlite") else f"MLflow: {_server(uri)}")
    return lines


def _server(uri: str) -> str:
    """Return the command that shows a database; the extra `loggers` has the client alone, which cannot."""
    return f"{shlex.join(['mlflow', 'server', '--backend-store-uri', uri])} (after pip install mlflow)"


def validity_warning_of(summary: Mapping[str, Any]) -> str:
    if summary.get(UNANSWERED):
        return f"THE MODEL NEVER ANSWERED: all of its {summary[UNANSWERED]:,.0f} calls failed"
    judged, share = (summary.get(name) for name in UNDERSTOOD)
    return validity_warning(judged, share)


def print_validity_warning(console: Console, summary: Mapping[str, Any]) -> None:
    """That results rest on fallbacks, where a language model was asked and not understood."""
    if said := validity_warning_of(summary):
        console.print(
            f"WARNING: {said}. These results rest on fallbacks; what it said is in {FILE_NAME}.",
            style="bold red",
            soft_wrap=True,
        )


def _print_episodes(console: Console, measured: Mapping[str, Any]) -> None:
    """Print the table of a run's final episodes, from its `results.json`."""
    table = Table(title=f"{measured['episodes']} final episodes")
    for column in ("", *ESTIMATES):
        table.add_column(column, justify="right" if column else "left")
    for name, row in measured["table"].items():
        table.add_row(name.replace("_", " "), *numbers(row))
    console.print(table)
    print_carried(console, measured["carried"])


def print_steps(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the first and newest proposals of a principal, those that it recommends in bold."""
    history = summary["history"]
    names = list(history[0]["mechanism"])
    table = Table(title="Principal steps")
    contextual = [] if history[0]["context"] is None else ["context"]
    for column in ("step", *names, *contextual, "objective", "± s.e."):
        table.add_column(column, justify="right")
    shown = history if len(history) <= 30 else [*history[:5], *history[-25:]]
    recommended = [(row["mechanism"], row["context"]) for row in summary["recommendations"]]
    for row in shown:
        cells = [str(row["step"]), *(f"{row['mechanism'][n]:.3g}" for n in names)]
        cells += [row[key] for key in contextual]
        error = row["standard_error"]
        cells += [f"{row['objective']:.3f}", "-" if error is None else f"{error:.3f}"]
        table.add_row(*cells, style="bold" if (row["mechanism"], row["context"]) in recommended else None)
    console.print(table)


def print_recommendations(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the recommendation of each context."""
    rows = summary["recommendations"]
    table = Table(title="Recommendations" if len(rows) > 1 else "Recommendation")
    contextual = [] if rows[0]["context"] is None else ["context"]
    for column in (*rows[0]["mechanism"], *contextual, "objective", "± s.e.", "evaluations"):
        table.add_column(column, justify="right")
    for row in rows:
        # A principal that made no proposal in a context recommends no mechanism there.
        mark = "" if row["measurements"] else " (not tried)"
        cells = [*(f"{x:.3g}" for x in row["mechanism"].values()), *(f"{row[key]}{mark}" for key in contextual)]
        cells += ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("objective", "standard_error")]
        table.add_row(*cells, str(row["evaluations"]))
    console.print(table)


def objective_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the objective of a run with a principal at each stage of selection, as (name, value) rows.

    The highest of many noisy measurements and the mean of the measurements that selected a vector are biased upward;
    the evaluation of the recommendation on fresh seeds is not.
    """
    recommendations = summary["recommendations"]
    highest = max(row["objective"] for row in (*summary["history"], *summary["confirmations"]))
    rows = [("highest single measurement", f"{highest:,.4g} (of {summary['measurements']}, biased upward)")]
    if all(row["measurements"] for row in recommendations):
        mean = sum(row["measured"] for row in recommendations) / len(recommendations)
        n = sum(row["measurements"] for row in recommendations)
        rows.append(("recommendation, measurements", f"{mean:,.4g} (mean of {n} that selected it, biased upward)"))
    if RECOMMENDATION in summary:
        error = summary[RECOMMENDATION_ERROR]
        value = f"{summary[RECOMMENDATION]:,.4g}" + ("" if error is None else f" ± {error:.3g} (s.e.)")
        rows.append(("recommendation, evaluation on fresh seeds", f"{value}: the result"))
    online = f"{summary[ONLINE]:,.4g} (mean of the last fifth of the proposals)"
    unevaluated = "" if RECOMMENDATION in summary else ": the result, because design.evaluations=0"
    return [*rows, ("online performance", online + unevaluated)]


def print_carried(console: Console, carried: Sequence[str]) -> None:
    """Why episodes that depend on one another have no error; nothing where none do."""
    if carried:
        console.print(
            f"Episodes carry something over to the next ones ({', '.join(carried)}), so they depend on one another and "
            "have no standard error: that takes several runs (seed=0,1,2,...).",
            soft_wrap=True,
        )


def _measured(folder: Path) -> dict[str, Any]:
    """What the final episodes of a run measured; empty where it has none."""
    return record(folder / RESULTS_NAME)


def record(path: Path) -> dict[str, Any]:
    """A record of a run; empty where there is none that can be read."""
    try:
        return read_object(path)
    except (FileNotFoundError, ValueError):
        return {}


def numbers(row: dict[str, float | None]) -> list[str]:
    """A row of `analysis.intervals.describe`, as text."""
    number = {key: "-" if value is None else f"{value:,.3f}" for key, value in row.items()}
    return [number["mean"], number["standard_error"], interval(row), number["min"], number["max"]]


def interval(row: dict[str, float | None]) -> str:
    low, high = row["low"], row["high"]
    return "-" if low is None or high is None else f"{low:.3f} … {high:.3f}"


def print_reached(console: Console, found: Mapping[str, Any]) -> None:
    """Print the table of a summary's `references`, and what it comes to."""
    contexts = found["contexts"]
    several = contexts[0]["context"] is not None
    table = Table(title="What is reached")
    for column in (*(["context"] if several else []), "", "objective", "± s.e.", "mechanism"):
        table.add_column(column, justify="right" if column in ("objective", "± s.e.") else "left", overflow="fold")
    for own in contexts:
        for i, (line, words) in enumerate(_LINES.items()):
            row = own[line]
            if row is None:
                continue
            error = row["standard_error"]
            cells = [*([own["context"] if i == 0 else ""] if several else []), words, f"{row['value']:,.3f}"]
            cells += ["-" if error is None else f"{error:,.3f}"]
            shown = line in ("scan_best", "recommendation")
            cells.append(", ".join(f"{name} {x:.3g}" for name, x in row["mechanism"].items()) if shown else "")
            table.add_row(*cells, style="bold" if line == "recommendation" else None)
        table.add_section()
    console.print(table)
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=True)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Say in plain words what a summary's `references` come to."""
    said = [f"{_gain(own)}{_beside_scan(own)}" for own in found["contexts"] if own["gain"] is not None]
    if found["learned"] is False:
        said.append(
            "By online performance, the last proposals are better neither "
            "than the first ones nor than the coarse scan's average by more than "
            "noise: nothing shows that the principal learned from what it asked."
        )
    if found["warning"]:
        said.append(f"Warning: {found['warning']}.")
    return said


def _gain(own: Mapping[str, Any]) -> str:
    """Return how far the recommendation of a context is above no mechanism."""
    value, error = own["gain"]["value"], own["gain"]["standard_error"]
    where = "" if own["context"] is None else f" in context {own['context']}"
    said = f"The recommendation{where} is {abs(value):.3g} {'above' if value >= 0 else 'below'} no mechanism"
    if error is None:
        return f"{said}; whether that is more than noise takes more measurements (design.references=2)."
    said += f" (standard error of the difference {error:.2g})"
    return f"{said}." if own["gain"]["beyond_noise"] else f"{said}: not beyond noise (three standard errors)."


def _beside_scan(own: Mapping[str, Any]) -> str:
    """Say so if a few blind vectors had found as much."""
    if own["scan_best"] is None:
        return ""
    short = own["scan_best"]["value"] - own["recommendation"]["value"]
    if short < 0:
        return ""
    return f" It is {short:.3g} below the best of the coarse scan, the highest of {len(own['scan'])} noisy means."
