"""Reports of folders of runs: written, and what a study shows printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.analysis.report import Report, Section
    from llmrl.analysis.report_settings import ReportSettings
    from llmrl.analysis.study_tasks import TasksCompared


def reported(
    folder: Path,
    settings: ReportSettings | None = None,
    out: Path | None = None,
    figures: bool = True,
    said: Callable[[str], None] = lambda text: None,
    parts: Sequence[Path] = (),
) -> tuple[Report, Path]:
    """Read the runs in and under a folder and write their report.

    Args:
        folder: folder of the runs.
        settings: settings of the report; None: the defaults.
        out: folder of the report; None: `<folder>/report`.
        figures: whether to draw figures, which needs matplotlib.
        said: called with progress messages.
        parts: folders in `folder` to which the report is restricted; empty: all.

    Returns:
        The report and its page.

    Raises:
        LlmrlError: no such folder, no runs, an unknown metric, senseless settings, matplotlib missing, no place to
            write.
    """
    from llmrl.analysis.aggregate import summarize
    from llmrl.analysis.figures import check_installed
    from llmrl.analysis.probes import draw_probes
    from llmrl.analysis.report_files import write_report
    from llmrl.analysis.report_settings import ReportSettings
    from llmrl.sweeps.run_control import records

    if figures:
        check_installed()
    runs = list({run.folder: run for part in parts or [folder] for run in records(part)}.values())
    numbers = summarize(folder, settings or ReportSettings(), runs, said)
    for run in runs if figures else ():
        draw_probes(run.folder)
    return numbers, write_report(numbers, out or folder / "report", figures, said)


def show_study(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write the report of the folder of a study whose sweep has ended, and print what it says: its figure and page.

    Without matplotlib there are no figures, and a line says so.

    Args:
        folder: of its runs.
        asked: the section `report` of the study as it is now, which may have changed since runs began.

    Raises:
        LlmrlError: a run cannot be read, or the report cannot be written.
    """
    from importlib.util import find_spec

    from llmrl.analysis.report_settings import ReportSettings
    from llmrl.analysis.report_tables import slugs
    from llmrl.analysis.study_settings import settings_from
    from llmrl.analysis.study_tasks import NAME, tasks_compared
    from llmrl.display.console import near, print_line

    drawn = find_spec("matplotlib") is not None
    numbers, page = reported(folder, ReportSettings(study=settings_from(asked, "the study")), figures=drawn)
    over = tasks_compared(numbers)
    for section in numbers.sections if over is None else ():
        print_study(section)
    if over is not None:
        print_tasks(over)
    if not drawn:
        print_line("There are no figures: they need matplotlib, pip install 'llmrl[plots]', and then llmrl-report.")
    drawings = [f"{name}_study" for name, each in zip(slugs(numbers), numbers.sections, strict=True) if each.study]
    for name in [] if not drawn else drawings if over is None else [NAME]:
        print_line(f"Figure: {near(page.parent / 'figures' / f'{name}.png')}")
    print_line(f"Report: {near(page)}")


def print_study(section: Section) -> None:
    """Print what the study of a section asks and finds; nothing where it is none."""
    from llmrl.display.console import print_line, print_table

    if section.study is None:
        return
    print_line(section.study.settings.question or "")
    for table in section.study.tables:
        if not table.columns:
            continue  # of a file alone
        print_table(table.caption, table.columns, table.rows, table.sides)
        for note in table.notes:
            print_line(note)
    for sentence in section.study.sentences:
        print_line(sentence)


def print_tasks(over: TasksCompared) -> None:
    """Print what a study of several tasks asks and finds; the report has each task by itself."""
    from llmrl.display.console import print_line, print_table

    print_line(over.settings.question or "")
    print_table(over.table.caption, over.table.columns, over.table.rows, over.table.sides)
    for sentence in over.sentences:
        print_line(sentence)
