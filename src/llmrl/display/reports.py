"""Reports of folders of runs, and the printed results of studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.analysis.report import Report, ReportSettings, Section
    from llmrl.analysis.report_tables import TaskComparison


def create_report(
    folder: Path,
    settings: ReportSettings | None = None,
    out: Path | None = None,
    figures: bool = True,
    report: Callable[[str], None] = lambda text: None,
    parts: Sequence[Path] = (),
) -> tuple[Report, Path]:
    """Read the runs in a folder and write their report.

    Args:
        folder: folder of the runs, at any level.
        settings: settings of the report; None: the defaults.
        out: folder of the report; None: `<folder>/report`.
        figures: whether to draw figures, which needs matplotlib.
        report: function that is called with progress messages.
        parts: folders in `folder` to which the report is restricted; empty: all.

    Returns:
        The report and its page.

    Raises:
        LlmrlError: there are no runs, a setting or metric is invalid, matplotlib is missing, or the report cannot be
            written.
    """
    from llmrl.analysis.aggregate import summarize
    from llmrl.analysis.figures import check_installed
    from llmrl.analysis.probes import draw_probes
    from llmrl.analysis.report import ReportSettings
    from llmrl.analysis.report_files import write_report
    from llmrl.sweeps.run_control import records

    if figures:
        check_installed()
    runs = list({run.folder: run for part in parts or [folder] for run in records(part)}.values())
    numbers = summarize(folder, settings or ReportSettings(), runs, report)
    for run in runs if figures else ():
        draw_probes(run.folder)
    return numbers, write_report(numbers, out or folder / "report", figures, report)


def show_study(folder: Path, report_section: Mapping[str, Any]) -> None:
    """Write the report of a study whose sweep has ended, and print its results, figures and page.

    Without matplotlib there are no figures, and a line tells how to get them.

    Args:
        folder: folder of the study's runs.
        report_section: current section `report` of the study, which may have changed since the runs started.

    Raises:
        LlmrlError: a run cannot be read, or the report cannot be written.
    """
    from importlib.util import find_spec

    from llmrl.analysis.report import ReportSettings
    from llmrl.analysis.report_tables import STUDY_TASKS, compare_tasks, slugs
    from llmrl.display.console import near, print_line
    from llmrl.results.study_settings import parse_settings

    has_matplotlib = find_spec("matplotlib") is not None
    numbers, page = create_report(
        folder, ReportSettings(study=parse_settings(report_section, "the study")), figures=has_matplotlib
    )
    comparison = compare_tasks(numbers)
    for section in numbers.sections if comparison is None else ():
        print_study(section)
    if comparison is not None:
        print_tasks(comparison)
    if not has_matplotlib:
        print_line("Figures need matplotlib: pip install 'llmrl[plots]', then run llmrl-report.")
    drawings = [
        f"{name}_study" for name, section in zip(slugs(numbers), numbers.sections, strict=True) if section.study
    ]
    for name in [] if not has_matplotlib else drawings if comparison is None else [STUDY_TASKS]:
        print_line(f"Figure: {near(page.parent / 'figures' / f'{name}.png')}")
    print_line(f"Report: {near(page)}")


def print_study(section: Section) -> None:
    """Print the question and the results of the study of a section; nothing if it has none."""
    from llmrl.display.console import print_line, print_report_table

    if section.study is None:
        return
    print_line(section.study.settings.question or "")
    for table in section.study.tables:
        print_report_table(table)
    for sentence in section.study.sentences:
        print_line(sentence)


def print_tasks(comparison: TaskComparison) -> None:
    """Print the question and the results of a study of several tasks; the report has each single task."""
    from llmrl.display.console import print_line, print_report_table

    print_line(comparison.settings.question or "")
    print_report_table(comparison.table)
    for sentence in comparison.sentences:
        print_line(sentence)
