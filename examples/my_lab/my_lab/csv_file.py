"""Sink that writes metrics to a CSV file, `loggers=[csv]`."""

import csv
from collections.abc import Sequence

from llmrl.run.sink import Ending, Opening, Row, Sink


class CsvFile(Sink):
    """Sink with a line for each metric in `loggers/csv/metrics.csv` of the run folder.

    A resumed run rewrites the file.
    """

    background = False  # local and fast, so that it is called in the thread of the run

    def __init__(self, separator: str = ",") -> None:
        self.separator = separator

    def open(self, opening: Opening) -> None:
        self.file = (opening.make_sink_folder("csv") / "metrics.csv").open(
            "w", newline=""
        )  # stored rows are passed again
        self.writer = csv.writer(self.file, delimiter=self.separator)
        self.writer.writerow(["row", "axis", "place", "metric", "value"])

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.writer.writerows([row.number, row.x, row.x_value, tag, value] for tag, value in row.metrics.items())
        self.file.flush()

    def close(self, ending: Ending) -> None:
        self.file.close()
