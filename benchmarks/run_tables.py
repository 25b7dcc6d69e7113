"""Tables with a row for each run folder, as text and CSV.

Used by `benchmarks/citizens_adaptation.py`, `benchmarks/learning_chat_training.py`, `benchmarks/learning_citizens.py`,
`benchmarks/learning_proposers.py` and `benchmarks/messages.py`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from pathlib import Path


def tabulate_runs(description: str | None, summarize: Callable[[Path], Mapping[str, object]]) -> None:
    """Print a table of the runs in the command line, and write it to the file of `--data`.

    Args:
        description: help text of the command.
        summarize: function that returns the row of a run folder, by column. All rows must have the same columns. Rows
            are sorted by the columns up to `seed`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--data", type=Path, help="CSV file for the table")
    options = parser.parse_args()
    summaries = [summarize(folder) for folder in options.runs]
    columns = list(summaries[0])
    summaries.sort(key=lambda summary: [summary[column] for column in columns[: columns.index("seed") + 1]])
    for summary in summaries:
        print("  ".join(f"{column} {value}" for column, value in summary.items()))
    if options.data is not None:
        with options.data.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(summaries)
