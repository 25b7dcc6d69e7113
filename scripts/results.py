"""Results in the documentation: values of studies, and the pages whose numbers are computed from them.

    python scripts/results.py outputs/harvest_figure outputs/landscape_harvest   # store studies in docs/results
    python scripts/results.py --add outputs/harvest_figure   # further runs of a study that is stored
    python scripts/results.py --write   # write all tables, the pages and the tables of the README
    python scripts/results.py --check   # compute all numbers again, and compare; the exit code is 1 for a difference

The first command writes the report of each folder again, with the settings that the study's file has now. It stores the
figure, the per-run values (`results_runs`) and the tables of the report in `docs/results`, and prints the tables and
sentences. `--check` computes the tables again from the per-run values, and the pages from the tables (`results_pages`).
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
from llmrl.analysis.report_tables import STUDY_TASKS, TaskComparison, build_slugs, compare_tasks
from llmrl.display.sweeps import create_report
from llmrl.experiment.composition import compose_plain
from llmrl.results.run_records import read_runs
from llmrl.results.study_settings import StudySettings, parse_study_settings
from llmrl.results.table_format import ReportTable
from llmrl.run import metrics, status
from llmrl.run.artifacts import CONFIG_NAME

ROOT = Path(__file__).parents[1]
RUNS = "_runs.csv"
"""End of the names of files with per-run values."""


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Store studies, or write or check the pages; return the exit code.

    Args:
        arguments: command line; None: that of the process.
        root: root of the repository.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="output folders of studies to store")
    parser.add_argument("--add", action="store_true", help="keep the stored runs that the folders do not have")
    parser.add_argument("--write", action="store_true", help="write all pages from their templates")
    parser.add_argument("--check", action="store_true", help="compare all tables and pages with their sources")
    options = parser.parse_args(arguments)
    if not (options.folders or options.write or options.check):
        parser.error("give folders of studies, --write or --check")
    results = root / "docs" / "results"
    for folder in options.folders:
        if options.add:
            with tempfile.TemporaryDirectory() as scratch:
                sys.stdout.write(store_study(with_stored_runs(folder, results, Path(scratch)), results) + "\n")
        else:
            sys.stdout.write(store_study(folder, results) + "\n")
    pages = ResultPages(root)
    if options.write:
        for path, table in computed_tables(results / "data"):
            path.write_text(table)
        pages.write()
    problems = [*table_problems(results / "data"), *pages.problems()] if options.check else []
    for problem in problems:
        sys.stdout.write(problem.rstrip("\n") + "\n")
    return 1 if problems else 0


def store_study(folder: Path, results: Path) -> str:
    """Store the figure, the per-run values and the tables of a study; return its tables and sentences as Markdown.

    Args:
        folder: output folder of the study.
        results: folder of the result pages.
    """
    settings = study_settings(folder)
    report, page = create_report(folder, ReportSettings(study=settings))
    for part in ("figures", "data"):
        (results / part).mkdir(parents=True, exist_ok=True)
    comparison = compare_tasks(report)
    figure = STUDY_TASKS if comparison is not None else f"{build_slugs(report)[0]}_study"
    for suffix in ("", "_online"):
        source = page.parent / "figures" / f"{figure}{suffix}.png"
        if not suffix or source.exists():
            shutil.copy(source, results / "figures" / f"{folder.name}{suffix}.png")
    data = results / "data"
    write_runs(folder, settings, *_run_files(data, folder.name))
    shown = comparison or report.sections[0].study
    assert shown is not None
    texts = [f"## {settings.question}", f"![](figures/{folder.name}.png)", shown.caption]
    for name, table in study_tables(report):
        (data / f"{folder.name}_{name}.csv").write_text(table.to_csv())
        texts += [table.caption, table.to_markdown()] if table.columns else []
    return "\n\n".join([*texts, *shown.sentences]) + "\n"


def with_stored_runs(folder: Path, results: Path, scratch: Path) -> Path:
    """Return a folder with the runs of a study in `folder`, and the stored ones that it does not have.

    Args:
        folder: output folder of the study.
        results: folder of the result pages.
        scratch: empty folder in which the returned one is created.
    """
    combined = scratch / folder.name
    restore_runs(*_run_files(results / "data", folder.name), combined)
    for run in read_runs(folder):
        place = combined / run.folder.relative_to(folder)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in (CONFIG_NAME, status.FILE_NAME, status.SUMMARY_NAME, metrics.FILE_NAME):
            shutil.copy(run.folder / name, place)
    return combined


def computed_tables(data: Path) -> Iterator[tuple[Path, str]]:
    """Compute the tables of all studies with per-run values; yield the path and the content of each CSV file."""
    for runs in sorted(data.glob(f"*{RUNS}")):
        study = runs.name.removesuffix(RUNS)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / study
            restore_runs(*_run_files(data, study), folder)
            report = compute_report(folder, ReportSettings(study=study_settings(folder)))
        for name, table in study_tables(report):
            yield data / f"{study}_{name}.csv", table.to_csv()


def table_problems(data: Path) -> list[str]:
    """Compute the tables of all studies with per-run values; return a message for each difference from the files."""
    problems = []
    for path, table in computed_tables(data):
        if path.exists():
            problems += [f"{path}, {text}" for text in _differences(path.read_text(), table)]
        else:
            problems.append(f"{path} is missing")
    return problems


def study_tables(report: Report) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables of a study with the names of their files; those of several tasks have a column `task`."""
    comparison = compare_tasks(report)
    if comparison is not None:
        tables = [*comparison.tables, *_joined(comparison)]
    else:
        [section] = report.sections
        assert section.study is not None
        tables = list(section.study.tables)
    for table in tables:
        if len(table.csv_rows) > 1:
            yield "scores" if table.name == STUDY_TASKS else table.name.removeprefix("study_"), table


def study_settings(folder: Path) -> StudySettings:
    """Return the settings that the file of a study has now.

    Raises:
        ValueError: the runs belong to several studies with different settings, or to none.
    """
    names = sorted({run.overrides.get("experiment", "none") for run in read_runs(folder)})
    first, *others = [
        parse_study_settings(compose_plain("train", f"experiment={name}")["report"], name) for name in names
    ]
    if first is None or any(other != first for other in others):
        raise ValueError(f"{folder} has runs of {', '.join(names)}; they must be one study with one section `report`")
    return first


def _joined(comparison: TaskComparison) -> Iterator[ReportTable]:
    """Yield the comparisons and the curves of all tasks, each as one table whose first column is the task."""
    for name in ("study_comparisons", "study_curves"):
        data: list[list[object]] = []
        for title, study in zip(comparison.titles, comparison.studies, strict=True):
            for table in study.tables:
                if table.name == name:
                    data = data or [["task", *table.csv_rows[0]]]
                    data += [[title, *line] for line in table.csv_rows[1:]]
        if data:
            yield ReportTable(name, "", data)


def _run_files(data: Path, study: str) -> tuple[Path, Path]:
    return data / f"{study}{RUNS}", data / f"{study}_run_curves.csv"


def _differences(stored: str, computed: str) -> Iterator[str]:
    """Yield the lines of two CSV texts that differ by more than rounding in the last digits."""
    old, new = (list(csv.reader(io.StringIO(text))) for text in (stored, computed))
    if len(old) != len(new):
        yield f"{len(old)} lines stored, {len(new)} computed"
    for number, (one, other) in enumerate(zip(old, new, strict=False), start=1):
        if len(one) != len(other) or not all(map(_equal, one, other)):
            yield f"line {number}: stored {','.join(one)}, computed {','.join(other)}"


def _equal(one: str, other: str) -> bool:
    try:
        return one == other or math.isclose(float(one), float(other), rel_tol=1e-7, abs_tol=1e-9)
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main())
