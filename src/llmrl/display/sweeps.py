"""Printed results of sweeps and studies, and the report of a folder of runs."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.display.console import print_line, print_report_table, print_table, relative_to_cwd
from llmrl.display.results import find_validity_warning
from llmrl.run.files import read_json_or_empty
from llmrl.run.status import SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.analysis.report import Report, ReportSettings
    from llmrl.results.study_settings import StudyResult
    from llmrl.sweeps.backends.protocol import JobOutcome


def print_sweep(outcomes: Sequence[JobOutcome], show_commands: bool = True) -> None:
    """Print the states and results of the runs of a sweep.

    Args:
        outcomes: outcomes of all jobs; prerequisite runs are not in the table.
        show_commands: whether to print the commands that show the runs.
    """
    from llmrl.run.folder import format_overrides, split_overrides

    unique_outcomes = list({outcome.folder: outcome for outcome in outcomes}.values())
    outcomes = [outcome for outcome in unique_outcomes if not outcome.job.purpose]
    notes = ["nothing to do" if x.skipped and x.state == "finished" else x.error for x in outcomes]
    for i, outcome in enumerate(outcomes):
        if outcome.state == "finished" and (
            warning := find_validity_warning(read_json_or_empty(outcome.folder / SUMMARY_NAME))
        ):
            notes[i] = warning
    counts_text = ", ".join(f"{n} {state}" for state, n in Counter(outcome.state for outcome in outcomes).most_common())
    rows, styles = [], []
    for outcome, note in zip(outcomes, notes, strict=True):
        name = format_overrides(split_overrides(outcome.job.label_overrides)) or outcome.folder.parent.name
        result = "" if outcome.result is None else f"{outcome.result:.5g}"
        styles.append({"finished": None, "submitted": None, "elsewhere": "dim"}.get(outcome.state, "bold"))
        rows.append([name, str(outcome.job.config["seed"]), outcome.state, result, *([note] if any(notes) else [])])
    print_table(counts_text, ["run", "seed", "state", "result", *([""] if any(notes) else [])], rows, "lrlrl", styles)
    incomplete = [x for x in unique_outcomes if x.state not in ("finished", "elsewhere", "submitted")]
    if incomplete:
        logs_command = shlex.join(["llmrl-sweep", "logs", str(relative_to_cwd(incomplete[0].folder))])
        print_line(f"Log of the first unfinished run: {logs_command}")
        print_line("The command of the sweep, repeated, continues the unfinished runs.")
    if not show_commands:
        return
    print_next_commands(Path(os.path.commonpath([outcome.folder.parent.parent for outcome in outcomes])))


def print_next_commands(folder: Path) -> None:
    """Print the commands that show the state and the results of the runs in a folder."""
    quoted_folder = shlex.quote(str(relative_to_cwd(folder)))
    for command in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        print_line(f"{command} {quoted_folder}")


def create_report(
    folder: Path,
    settings: ReportSettings | None = None,
    report_folder: Path | None = None,
    draws_figures: bool = True,
    on_progress: Callable[[str], None] = lambda text: None,
    folders: Sequence[Path] = (),
) -> tuple[Report, Path]:
    """Read the runs in a folder and write their report.

    Args:
        folder: folder that contains run folders, directly or in subfolders.
        settings: settings of the report; None: `ReportSettings()`.
        report_folder: folder of the report; None: `<folder>/report`.
        draws_figures: whether to draw figures, which needs matplotlib.
        on_progress: function that is called with progress messages.
        folders: folders in `folder` to whose runs the report is restricted; empty: all runs.

    Returns:
        The report and the path of its page.

    Raises:
        LlmrlError: there are no runs, a setting or metric is invalid, matplotlib is missing, or the report cannot be
            written.
    """
    from llmrl.analysis.aggregate import compute_report
    from llmrl.analysis.figures import check_matplotlib
    from llmrl.analysis.probes import draw_probes
    from llmrl.analysis.report import ReportSettings
    from llmrl.analysis.report_files import write_report
    from llmrl.sweeps.run_control import query_run_records

    if draws_figures:
        check_matplotlib()
    runs = list({run.folder: run for root in folders or [folder] for run in query_run_records(root)}.values())
    report = compute_report(folder, settings or ReportSettings(), runs, on_progress)
    for run in runs if draws_figures else ():
        draw_probes(run.folder)
    return report, write_report(report, report_folder or folder / "report", draws_figures, on_progress)


def show_study(folder: Path, settings_node: Mapping[str, Any]) -> None:
    """Write the report of a study whose sweep has ended; print its results and the paths of its figures and page.

    Without matplotlib there are no figures, and a line with the installation command is printed.

    Args:
        folder: folder of the study's runs.
        settings_node: section `report` of the study's current file, which may differ from that of the runs.

    Raises:
        LlmrlError: a run cannot be read, or the report cannot be written.
    """
    from importlib.util import find_spec

    from llmrl.analysis.report import ReportSettings
    from llmrl.analysis.report_tables import TASK_COMPARISON_NAME, build_slugs, compare_tasks
    from llmrl.results.study_settings import parse_study_settings

    has_matplotlib = find_spec("matplotlib") is not None
    report, page = create_report(
        folder, ReportSettings(study=parse_study_settings(settings_node, "the study")), draws_figures=has_matplotlib
    )
    comparison = compare_tasks(report)
    for study in (section.study for section in report.sections if comparison is None):
        if study is not None:
            print_study(study)
    if comparison is not None:
        print_study(comparison)
    if not has_matplotlib:
        print_line("Figures need matplotlib: pip install 'llmrl[plots]', then run llmrl-report.")
    figure_names = [
        f"{name}_study" for name, section in zip(build_slugs(report), report.sections, strict=True) if section.study
    ]
    for name in [] if not has_matplotlib else figure_names if comparison is None else [TASK_COMPARISON_NAME]:
        print_line(f"Figure: {relative_to_cwd(page.parent / 'figures' / f'{name}.png')}")
    print_line(f"Report: {relative_to_cwd(page)}")


def print_study(study: StudyResult) -> None:
    """Print the question, the tables and the conclusions of a study."""
    print_line(study.settings.question or "")
    for table in study.tables:
        print_report_table(table)
    for sentence in study.sentences:
        print_line(sentence)
