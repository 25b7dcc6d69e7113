"""Printed results of runs and evaluations, and messages about runs that are already finished."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.trust import SHELL_PERMISSION
from llmrl.display.console import print_fields, print_line, print_table, relative_to_cwd
from llmrl.llms.call_log import CALL_LOG_NAME
from llmrl.llms.usage import FAILED_CALLS_KEY, VALIDITY_KEYS
from llmrl.llms.validity import validity_warning
from llmrl.results.principal_scores import ONLINE_PERFORMANCE, RECOMMENDATION, RECOMMENDATION_ERROR, REFERENCE_TITLES
from llmrl.run.artifacts import RESULTS_NAME, TRUSTED_KEY
from llmrl.run.files import read_json_or_empty
from llmrl.run.sink import FOLDER as LOGGERS_FOLDER
from llmrl.run.status import SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.run.run import Run


_SCORE_KEYS = (RECOMMENDATION, RECOMMENDATION_ERROR, ONLINE_PERFORMANCE)
"""Keys of `summary.json` that `build_objective_rows` includes."""
_LEVEL_TITLES = {**REFERENCE_TITLES, "last_proposals": "mean of the last proposals", "recommendation": "recommendation"}
"""Key of a reference level in `references` of `summary.json` -> its title, in the order of the printed table."""


def print_already_finished(run: Run) -> None:
    """Print that a run with the same config and seed is already finished."""
    result = "" if run.result is None else f" (result {run.result:.4g})"
    print_line(f"Already finished{result}: {run.folder}\nrerun=true runs it again and keeps the old content.")
    print_validity_warning(read_json_or_empty(run.folder / SUMMARY_NAME))


def print_summary(run: Run) -> None:
    """Print the results of a run, and commands for its evaluation."""
    history = run.summary.get("history")
    if history:
        print_principal_steps(run.summary)
        print_recommendations(run.summary)
        if "references" in run.summary:
            print_reference_levels(run.summary["references"])
    final_results = read_json_or_empty(run.folder / RESULTS_NAME)
    if final_results:
        print_estimates(f"{final_results['episodes']} final episodes", final_results["table"])
        print_dependence_note(final_results["carried"])
    rows = build_objective_rows(run.summary) if history else []
    for name, value in run.summary.items():
        is_already_printed = (history and name in _SCORE_KEYS) or (
            final_results and name.startswith(("evaluation/", "welfare/"))
        )
        if isinstance(value, int | float | str) and not is_already_printed:
            rows.append((name.replace("_", " "), _format_value(value)))
    print_fields(f"{run.folder.parent.parent.name}, {run.folder.name}", rows)
    print_line(f"Run folder: {relative_to_cwd(run.folder)}")
    print_validity_warning(run.summary)
    for line in describe_loggers(run.config["loggers"], run.folder):
        print_line(line)
    print_line(f"Video and table of episodes: {format_evaluate_command(run.config, run.folder)}")
    if "principal_steps" in run.summary:
        print_line("Comparison of the recommended mechanism with none: the same command with --mechanism none,best")


def _format_value(value: float | str) -> str:
    """Return a value of a summary as text: whole numbers in full, other numbers with four significant digits."""
    if not isinstance(value, float):
        return f"{value}"
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.4g}"


def format_evaluate_command(config: Mapping[str, Any], folder: Path) -> str:
    """Return the command that evaluates a run with a video, and trusts the modules outside llmrl that it needs.

    Args:
        config: config of the run, with `trusted_modules`.
        folder: run folder.
    """
    permissions = config.get(TRUSTED_KEY, ())
    modules = [x for x in permissions if x != SHELL_PERMISSION and "@" not in x and "://" not in x]
    trust_arguments = [word for module in modules for word in ("--trust", module)]
    return shlex.join(["llmrl-evaluate", str(folder), "--video", *trust_arguments])


def describe_loggers(loggers: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a line for each logger with the location of its records, or the command that shows them.

    Args:
        loggers: section `loggers` of the config.
        folder: run folder.
    """
    lines = []
    if "tensorboard" in loggers:
        lines.append(f"Curves: {shlex.join(['tensorboard', '--logdir', str(folder.parent.parent)])}")
    if "wandb" in loggers:
        settings = loggers["wandb"]
        project = settings.get("project") or folder.parent.parent.name
        wandb_folder = folder / LOGGERS_FOLDER / "wandb"
        sync_command = f"{shlex.join(['wandb', 'sync', str(wandb_folder)])}/offline-run-*"
        is_offline = settings.get("mode") == "offline"
        location = f"in {wandb_folder}; to send it: {sync_command}" if is_offline else f"project {project}"
        lines.append(f"Weights & Biases: {location}")
    if "mlflow" in loggers:
        from llmrl.run.sinks.mlflow import get_database_uri

        uri = loggers["mlflow"].get("tracking_uri") or get_database_uri(folder.parents[2])
        is_server = "://" in uri and not uri.startswith("sqlite")
        # The extra `loggers` installs only the client of MLflow, without its server.
        command = f"{shlex.join(['mlflow', 'server', '--backend-store-uri', uri])} (after pip install mlflow)"
        lines.append(f"MLflow: {uri if is_server else command}")
    return lines


def find_validity_warning(summary: Mapping[str, Any]) -> str:
    """Return a warning that all or many replies of a language model were invalid; "" if there is nothing to report."""
    if summary.get(FAILED_CALLS_KEY):
        return f"THE MODEL NEVER ANSWERED: all of its {summary[FAILED_CALLS_KEY]:,.0f} calls failed"
    n_replies, share = (summary.get(name) for name in VALIDITY_KEYS)
    return validity_warning(n_replies, share)


def print_validity_warning(summary: Mapping[str, Any]) -> None:
    """Print the warning of `find_validity_warning`, if there is one."""
    if warning := find_validity_warning(summary):
        print_line(
            f"WARNING: {warning}. These results rest on fallbacks; the replies are in {CALL_LOG_NAME}.",
            style="bold red",
        )


def print_estimates(title: str, rows: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print statistics of measurements.

    Args:
        title: title of the table.
        rows: `table` of `results.json`: statistics (`statistics.intervals.describe`) by name of the measurement.
    """
    table_rows = []
    for name, row in rows.items():
        texts = {key: "-" if value is None else f"{value:,.3f}" for key, value in row.items()}
        cells = [texts["mean"], texts["standard_error"], format_interval(row), texts["min"], texts["max"]]
        table_rows.append([name.replace("_", " "), *cells])
    print_table(title, ["", "mean", "s.e.", "95% interval", "min", "max"], table_rows, alignments="l")


def print_principal_steps(summary: Mapping[str, Any]) -> None:
    """Print the proposals of a principal, if there are many the first and the last; recommended vectors are bold."""
    history = summary["history"]
    names = list(history[0]["mechanism"])
    context_columns = [] if history[0]["context"] is None else ["context"]
    rows = history if len(history) <= 30 else [*history[:5], *history[-25:]]
    recommendations = [(row["mechanism"], row["context"]) for row in summary["recommendations"]]
    cells = [
        [
            str(row["step"]),
            *(f"{row['mechanism'][n]:.3g}" for n in names),
            *(row[key] for key in context_columns),
            f"{row['objective']:.3f}",
            _format_standard_error(row["standard_error"]),
        ]
        for row in rows
    ]
    styles = ["bold" if (row["mechanism"], row["context"]) in recommendations else None for row in rows]
    columns = ["step", *names, *context_columns, "objective", "± s.e."]
    print_table("Principal steps", columns, cells, alignments="", styles=styles)


def _format_standard_error(error: float | None) -> str:
    return "-" if error is None else f"{error:,.3f}"


def print_recommendations(summary: Mapping[str, Any]) -> None:
    """Print the recommended vector of each context with its evaluation."""
    rows = summary["recommendations"]
    context_columns = [] if rows[0]["context"] is None else ["context"]
    columns = [*rows[0]["mechanism"], *context_columns, "objective", "± s.e.", "evaluations"]
    table_rows = []
    for row in rows:
        # A vector without measurements is recommended only in a context without proposals.
        suffix = "" if row["measurements"] else " (not tried)"
        cells = [*(f"{x:.3g}" for x in row["mechanism"].values()), *(f"{row[key]}{suffix}" for key in context_columns)]
        cells += ["-" if row[key] is None else f"{row[key]:.3f}" for key in ("objective", "standard_error")]
        table_rows.append([*cells, str(row["evaluations"])])
    print_table("Recommendations" if len(rows) > 1 else "Recommendation", columns, table_rows, alignments="")


def build_objective_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs (name, text) of a run's highest objective, recommended objective and online performance.

    The highest of many noisy measurements is biased upward, as is the mean of the measurements by which a vector was
    selected. The evaluation of the recommendation on fresh seeds is unbiased.
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
        evaluation_text = f"{summary[RECOMMENDATION]:,.4g}" + ("" if error is None else f" ± {error:.3g} (s.e.)")
        rows.append(("recommendation, evaluation on fresh seeds", f"{evaluation_text}: the result"))
    online_text = f"{summary[ONLINE_PERFORMANCE]:,.4g} (mean of the last fifth of the proposals)"
    result_note = "" if RECOMMENDATION in summary else ": the result, because design.evaluations=0"
    return [*rows, ("online performance", online_text + result_note)]


def print_dependence_note(carried: Sequence[str]) -> None:
    """If episodes depend on each other, print that there is no standard error.

    Args:
        carried: names of the states that agents keep from one episode to the next; empty: episodes are independent.
    """
    if carried:
        print_line(
            f"Agents carry a state from one episode to the next ({', '.join(carried)}), so episodes depend on each "
            "other and have no standard error. Use several runs to estimate one (seed=0,1,2,...)."
        )


def format_interval(row: Mapping[str, float | None]) -> str:
    """Return the interval from `low` to `high` of a row of statistics as text; `-` if it is unknown."""
    low, high = row["low"], row["high"]
    return "-" if low is None or high is None else f"{low:.3f} … {high:.3f}"


def print_reference_levels(references: Mapping[str, Any]) -> None:
    """Print the reference levels of each context, and sentences about them, from `references` of `summary.json`."""
    contexts = references["contexts"]
    has_contexts = contexts[0]["context"] is not None
    columns = [*(["context"] if has_contexts else []), "", "objective", "± s.e.", "mechanism"]
    rows, styles = [], []
    for context in contexts:
        for i, (level, display_name) in enumerate(_LEVEL_TITLES.items()):
            row = context[level]
            if row is None:
                continue
            cells = [context["context"] if i == 0 else ""] if has_contexts else []
            cells += [display_name, f"{row['value']:,.3f}"]
            cells.append(_format_standard_error(row["standard_error"]))
            has_mechanism = level in ("scan_best", "recommendation")
            cells.append(", ".join(f"{name} {x:.3g}" for name, x in row["mechanism"].items()) if has_mechanism else "")
            rows.append(cells)
            styles.append("bold" if level == "recommendation" else None)
    print_table("Reference levels", columns, rows, "llrrl"[not has_contexts :], styles)
    for sentence in describe_references(references):
        print_line(sentence)


def describe_references(references: Mapping[str, Any]) -> list[str]:
    """Return sentences about gains, learning and warnings, from `references` of `summary.json`."""
    sentences = [
        f"{_describe_gain(context)}{_describe_shortfall(context)}"
        for context in references["contexts"]
        if context["gain"] is not None
    ]
    if references["learned"] is False:
        sentences.append(
            "By online performance, the last proposals are not significantly better than the first ones or than the "
            "mean of the coarse scan: nothing shows that the principal learned."
        )
    if references["warning"]:
        sentences.append(f"Warning: {references['warning']}.")
    return sentences


def _describe_gain(context: Mapping[str, Any]) -> str:
    """Return a sentence with the gain of a context's recommendation over no mechanism."""
    value, error = context["gain"]["value"], context["gain"]["standard_error"]
    location = "" if context["context"] is None else f" in context {context['context']}"
    text = f"The recommendation{location} is {abs(value):.3g} {'above' if value >= 0 else 'below'} no mechanism"
    if error is None:
        return f"{text}; more measurements (design.references=2) would show whether this is more than noise."
    text += f" (standard error of the difference {error:.2g})"
    return f"{text}." if context["gain"]["beyond_noise"] else f"{text}: within noise (three standard errors)."


def _describe_shortfall(context: Mapping[str, Any]) -> str:
    """Return a sentence if the recommendation is not better than the best vector of the coarse scan; else ""."""
    if context["scan_best"] is None:
        return ""
    shortfall = context["scan_best"]["value"] - context["recommendation"]["value"]
    if shortfall < 0:
        return ""
    return (
        f" It is {shortfall:.3g} below the best of the coarse scan, the highest of {len(context['scan'])} noisy means."
    )


def print_evaluation(results: dict[str, Any]) -> None:
    """Print the results of `llmrl-evaluate`, the content of `results.json` with the folder `out`."""
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
    if len(results["players"]) > 1:
        _print_player_table(title, results["players"])
    else:
        print_estimates(title, results["table"])
    print_dependence_note(results["carried"])
    print_line(f"Saved in {results['out']}: results.json, episodes.csv" + (", videos/" if results["videos"] else ""))


def _print_comparison(title: str, results: dict[str, Any]) -> None:
    """Print a comparison of mechanisms: table, method, files and conclusions."""
    from llmrl.results.mechanism_comparison import build_table_rows, describe_method

    mechanisms, differences = results["mechanisms"], results["differences"]
    columns = ["means of an episode", *(f"{mechanism['name']}\n{mechanism['words']}" for mechanism in mechanisms)]
    columns += [f"{difference['name']} - {difference['reference']}\n(95% interval)" for difference in differences]
    print_table(title, columns, build_table_rows(mechanisms, differences, results["labels"]), alignments="l")
    objective = results["objective"]
    cost_term = f" - {objective['spending_cost']:g} x spending of the mechanism" if objective["spending_cost"] else ""
    print_line(
        f"{objective['column']}: {objective['formula']}{cost_term}; x_i is the reward of agent i from the game in an "
        "episode, before the mechanism."
    )
    for line in describe_method(results):
        print_line(line)
    print_dependence_note(results["carried"])
    videos = ", videos/" if results["videos"] else ""
    print_line(f"Saved in {relative_to_cwd(Path(results['out']))}: results.json, episodes.csv{videos}")
    for file in results["videos"][:1]:  # the first is the video (MP4 or GIF), the others are images
        print_line(f"Video, side by side: {relative_to_cwd(Path(file))}")
    for sentence in results["sentences"]:
        print_line(sentence, style="bold")


def _print_player_table(title: str, players: Sequence[dict[str, Any]]) -> None:
    """Print a table with a column for each player and a row for each measurement except welfare and base returns."""
    table_rows = []
    for name in dict.fromkeys(name for player in players for name in player["table"]):
        if not name.startswith(("welfare/", "base ")):
            rows = [player["table"].get(name) for player in players]
            cells = ["-" if row is None else f"{row['mean']:.3f}\n{format_interval(row)}" for row in rows]
            table_rows.append([name.replace("_", " "), *cells])
    columns = ["mean\n95% interval", *(f"{player['policy']}\n{player['mode']}" for player in players)]
    print_table(title, columns, table_rows, alignments="l")
