"""Copies what a study shows into the documentation: `docs/results/figures/<name>.png`, and its tables as
`docs/results/data/<name>_*.csv`, those of a study of several tasks in one file.

    python scripts/results.py outputs/harvest_figure outputs/landscape_harvest

Writes the report of each folder anew, as the study's file now says. Prints the sentences, and each table as
the Markdown of its page.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.report_tables import slugs
from llmrl.analysis.runs import read_runs
from llmrl.analysis.study_settings import StudySettings, settings_from
from llmrl.analysis.study_tasks import NAME, TasksCompared, tasks_compared
from llmrl.analysis.table_format import ReportTable
from llmrl.display.reports import reported
from llmrl.experiment.composition import plain

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    """Copy the studies that are named on the command line."""
    for part in ("figures", "data"):
        (RESULTS / part).mkdir(parents=True, exist_ok=True)
    for folder in map(Path, sys.argv[1:]):
        numbers, page = reported(folder, ReportSettings(study=_asked(folder)))
        over = tasks_compared(numbers)
        if over is None:
            [slug], [section] = slugs(numbers), numbers.sections
            assert section.study is not None
            shown, tables = section.study, section.study.tables
            figure = f"{slug}_study"
        else:
            shown, tables, figure = over, (over.table, *_joined(over)), NAME
        shutil.copy(page.parent / "figures" / f"{figure}.png", RESULTS / "figures" / f"{folder.name}.png")
        texts = [f"## {shown.settings.question}", f"![](figures/{folder.name}.png)", shown.caption]
        for table in tables:
            if len(table.data) < 2:
                continue  # its header alone
            what = "scores" if table.name == NAME else table.name.removeprefix("study_")
            (RESULTS / "data" / f"{folder.name}_{what}.csv").write_text(table.csv())
            texts += [table.caption, table.markdown()] if table.columns else []
        sys.stdout.write("\n\n".join([*texts, *shown.sentences]) + "\n\n")


def _joined(over: TasksCompared) -> Iterator[ReportTable]:
    """The comparisons and the curves of all tasks, each as one table whose first column is the task."""
    for name in ("study_comparisons", "study_curves"):
        data: list[list[object]] = []
        for title, study in zip(over.titles, over.studies, strict=True):
            for table in study.tables:
                if table.name == name:
                    data = data or [["task", *table.data[0]]]
                    data += [[title, *line] for line in table.data[1:]]
        if data:
            yield ReportTable(name, "", data)


def _asked(folder: Path) -> StudySettings | None:
    """How the study is shown whose runs these are; of several studies of one folder, as all of them say."""
    names = sorted({run.overrides.get("experiment", "none") for run in read_runs(folder)})
    first, *others = [settings_from(plain("train", f"experiment={name}")["report"], name) for name in names]
    if any(other != first for other in others):
        raise ValueError(f"{folder} has runs of {', '.join(names)}, which are not shown alike")
    return first


if __name__ == "__main__":
    main()
