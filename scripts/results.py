"""Copies what a study shows into the documentation: `docs/results/figures/<name>.png`, and its tables as
`docs/results/data/<name>_*.csv`.

    python scripts/results.py outputs/harvest_figure outputs/landscape_harvest

Writes the report of each folder anew, as the study's file now says. Prints the sentences, and each table as
the Markdown of its page.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from llmrl.analysis.report import Settings
from llmrl.analysis.runs import read_runs
from llmrl.analysis.study import StudySettings, settings_from
from llmrl.analysis.study_tasks import NAME, tasks_compared
from llmrl.analysis.tables import slugs
from llmrl.display.reports import reported
from llmrl.experiment.composition import plain

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    """Copy the studies that are named on the command line."""
    for folder in map(Path, sys.argv[1:]):
        numbers, page = reported(folder, Settings(study=_asked(folder)))
        for part in ("figures", "data"):
            (RESULTS / part).mkdir(parents=True, exist_ok=True)
        over = tasks_compared(numbers)
        if over is not None:
            shutil.copy(page.parent / "figures" / f"{NAME}.png", RESULTS / "figures" / f"{folder.name}.png")
            (RESULTS / "data" / f"{folder.name}_scores.csv").write_text(over.table.csv())
            texts = [f"![](figures/{folder.name}.png)", over.caption, over.table.markdown(), *over.sentences]
            sys.stdout.write("\n\n".join(texts) + "\n\n")
        for slug, section in zip(slugs(numbers), numbers.sections, strict=True):
            if section.study is None:
                continue
            name = folder.name if len(numbers.sections) == 1 else f"{folder.name}_{section.title.rpartition('=')[2]}"
            if over is None:
                shutil.copy(page.parent / "figures" / f"{slug}_study.png", RESULTS / "figures" / f"{name}.png")
            said = [
                f"## {name}",
                section.study.settings.question or "",
                f"![](figures/{name}.png)",
                section.study.caption,
            ]
            for table in section.study.tables:
                if len(table.data) < 2 or (over is not None and table.name == "study_scores"):
                    continue  # its header alone, or in the table of all tasks
                (RESULTS / "data" / f"{name}_{table.name.removeprefix('study_')}.csv").write_text(table.csv())
                if table.columns:
                    said += [table.caption, table.markdown()]
            sys.stdout.write("\n\n".join([*said, *section.study.sentences]) + "\n\n")


def _asked(folder: Path) -> StudySettings | None:
    """How the study is shown whose runs these are."""
    names = {run.overrides.get("experiment", "none") for run in read_runs(folder)}
    [name] = names
    return settings_from(plain("train", f"experiment={name}")["report"], name)


if __name__ == "__main__":
    main()
