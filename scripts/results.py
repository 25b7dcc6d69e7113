"""Store the results of studies, and write or check the result pages of the documentation.

    python scripts/results.py outputs/harvest_figure outputs/landscape_harvest   # store studies in docs/results
    python scripts/results.py --add outputs/harvest_figure   # add runs to a stored study
    python scripts/results.py --write   # write all tables, the pages and the tables of the README
    python scripts/results.py --check   # recompute all numbers and compare; the exit code is 1 if there is a difference

The first command recomputes the report of each folder with the current settings of the study file. It stores the
figure, the per-run values (`results_runs`) and the tables of the report in `docs/results`, and prints the tables and
sentences. `--check` recomputes the tables from the per-run values, and the pages from the tables (`results_pages`).
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from results_pages import ResultPages
from results_runs import restore_runs, write_runs

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import Report, ReportSettings
from llmrl.analysis.report_tables import TASK_COMPARISON_NAME, TaskComparison, build_slugs, compare_tasks
from llmrl.display.sweeps import create_report
from llmrl.experiment.composition import compose_plain
from llmrl.results.run_records import read_runs
from llmrl.results.study_settings import StudySettings, parse_study_settings
from llmrl.results.table_format import ReportTable
from llmrl.run import metrics, status
from llmrl.run.artifacts import CONFIG_NAME

ROOT = Path(__file__).parents[1]
RUNS_SUFFIX = "_runs.csv"
"""Suffix of files with per-run values."""


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Store studies, write pages or check pages, and return the exit code.

    Args:
        arguments: command-line arguments; None: those of the process.
        root: root of the repository.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="output folders of studies to store")
    parser.add_argument("--add", action="store_true", help="preserve stored runs that are missing in the folders")
    parser.add_argument("--write", action="store_true", help="write all pages from their templates")
    parser.add_argument("--check", action="store_true", help="compare all tables and pages with their sources")
    options = parser.parse_args(arguments)
    if not (options.folders or options.write or options.check):
        parser.error("give folders of studies, --write or --check")
    results = root / "docs" / "results"
    for folder in options.folders:
        if options.add:
            with tempfile.TemporaryDirectory() as scratch:
                sys.stdout.write(store_study(merge_stored_runs(folder, results, Path(scratch)), results) + "\n")
        else:
            sys.stdout.write(store_study(folder, results) + "\n")
    pages = ResultPages(root)
    if options.write:
        for path, table in compute_tables(results / "data"):
            path.write_text(table)
        pages.write()
    problems = [*find_table_problems(results / "data"), *pages.find_problems()] if options.check else []
    for problem in problems:
        sys.stdout.write(problem.rstrip("\n") + "\n")
    return 1 if problems else 0


def store_study(folder: Path, results: Path) -> str:
    """Store the figure, the per-run values and the tables of a study, and return its tables and sentences as Markdown.

    Args:
        folder: output folder of the study.
        results: folder of the result pages.
    """
    settings = read_study_settings(folder)
    report, page = create_report(folder, ReportSettings(study=settings))
    for part in ("figures", "data"):
        (results / part).mkdir(parents=True, exist_ok=True)
    comparison = compare_tasks(report)
    figure = TASK_COMPARISON_NAME if comparison is not None else f"{build_slugs(report)[0]}_study"
    for suffix in ("", "_online"):
        source = page.parent / "figures" / f"{figure}{suffix}.png"
        if not suffix or source.exists():
            shutil.copy(source, results / "figures" / f"{folder.name}{suffix}.png")
    data = results / "data"
    write_runs(folder, settings, *_get_run_files(data, folder.name))
    study = comparison or report.sections[0].study
    assert study is not None
    texts = [f"## {settings.question}", f"![](figures/{folder.name}.png)", study.caption]
    for name, table in iterate_study_tables(report):
        (data / f"{folder.name}_{name}.csv").write_text(table.to_csv())
        texts += [table.caption, table.to_markdown()] if table.columns else []
    return "\n\n".join([*texts, *study.sentences]) + "\n"


def merge_stored_runs(folder: Path, results: Path, scratch: Path) -> Path:
    """Create a folder with the runs of a study in `folder`, and the stored runs that it does not contain.

    Args:
        folder: output folder of the study.
        results: folder of the result pages.
        scratch: empty folder in which the returned folder is created.
    """
    combined = scratch / folder.name
    restore_runs(*_get_run_files(results / "data", folder.name), combined)
    for run in read_runs(folder):
        run_folder = combined / run.folder.relative_to(folder)
        shutil.rmtree(run_folder, ignore_errors=True)
        run_folder.mkdir(parents=True)
        for name in (CONFIG_NAME, status.FILE_NAME, status.SUMMARY_NAME, metrics.FILE_NAME):
            shutil.copy(run.folder / name, run_folder)
    return combined


def compute_tables(data: Path) -> Iterator[tuple[Path, str]]:
    """Compute the tables of all studies with per-run values, and yield the path and the content of each CSV file."""
    for runs in sorted(data.glob(f"*{RUNS_SUFFIX}")):
        study = runs.name.removesuffix(RUNS_SUFFIX)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / study
            restore_runs(*_get_run_files(data, study), folder)
            report = compute_report(folder, ReportSettings(study=read_study_settings(folder)))
        for name, table in iterate_study_tables(report):
            yield data / f"{study}_{name}.csv", table.to_csv()


def find_table_problems(data: Path) -> list[str]:
    """Recompute the tables of all studies with per-run values, and return a message for each difference."""
    problems = []
    for path, table in compute_tables(data):
        if path.exists():
            problems += [f"{path}, {text}" for text in _iterate_differences(path.read_text(), table)]
        else:
            problems.append(f"{path} is missing")
    return problems


def iterate_study_tables(report: Report) -> Iterator[tuple[str, ReportTable]]:
    """Yield (name, table) for the tables of a study; tables of several tasks have a column `task`."""
    comparison = compare_tasks(report)
    if comparison is not None:
        tables = [*comparison.tables, *_join_task_tables(comparison)]
    else:
        [section] = report.sections
        assert section.study is not None
        tables = list(section.study.tables)
    for table in tables:
        if len(table.csv_rows) > 1:
            yield "scores" if table.name == TASK_COMPARISON_NAME else table.name.removeprefix("study_"), table


def read_study_settings(folder: Path) -> StudySettings:
    """Return the current settings of the study file.

    Raises:
        ValueError: the runs do not belong to a study, or belong to several studies with different settings.
    """
    names = sorted({run.overrides.get("experiment", "none") for run in read_runs(folder)})
    first, *others = [
        parse_study_settings(compose_plain("train", f"experiment={name}")["report"], name) for name in names
    ]
    if first is None or any(settings != first for settings in others):
        raise ValueError(f"{folder} has runs of {', '.join(names)}; they must be one study with one section `report`")
    return first


def _join_task_tables(comparison: TaskComparison) -> Iterator[ReportTable]:
    """Yield a table of comparisons and a table of curves over all tasks, whose first column is the task."""
    for name in ("study_comparisons", "study_curves"):
        rows: list[list[object]] = []
        for title, study in zip(comparison.titles, comparison.studies, strict=True):
            for table in study.tables:
                if table.name == name:
                    rows = rows or [["task", *table.csv_rows[0]]]
                    rows += [[title, *row] for row in table.csv_rows[1:]]
        if rows:
            yield ReportTable(name, "", rows)


def _get_run_files(data: Path, study: str) -> tuple[Path, Path]:
    return data / f"{study}{RUNS_SUFFIX}", data / f"{study}_run_curves.csv"


def _iterate_differences(stored: str, computed: str) -> Iterator[str]:
    """Yield a message for each line of two CSV texts that differs by more than rounding in the last digits."""
    stored_rows, computed_rows = (list(csv.reader(io.StringIO(text))) for text in (stored, computed))
    if len(stored_rows) != len(computed_rows):
        yield f"{len(stored_rows)} lines stored, {len(computed_rows)} computed"
    for number, (stored_row, computed_row) in enumerate(zip(stored_rows, computed_rows, strict=False), start=1):
        if len(stored_row) != len(computed_row) or not all(map(_is_close, stored_row, computed_row)):
            yield f"line {number}: stored {','.join(stored_row)}, computed {','.join(computed_row)}"


def _is_close(stored: str, computed: str) -> bool:
    try:
        return stored == computed or math.isclose(float(stored), float(computed), rel_tol=1e-7, abs_tol=1e-9)
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
