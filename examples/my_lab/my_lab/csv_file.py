"""A sink, `loggers=[csv]`."""

import csv
from collections.abc import Sequence

from llmrl.run.sink import Ending, Opening, Row, Sink


class CsvFile(Sink):
    """Writes a line for each metric into `loggers/csv/metrics.csv` of the run folder; a resumed run writes it anew."""

    background = False  # local and fast: called by the run itself, and not in a thread

    def __init__(self, separator: str = ",") -> None:
        self.separator = separator

    def open(self, opening: Opening) -> None:
        self.file = (opening.sink_folder("csv") / "metrics.csv").open("w", newline="")  # the rows kept are told again
        self.lines = csv.writer(self.file, delimiter=self.separator)
        self.lines.writerow(["row", "axis", "place", "metric", "value"])

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.lines.writerows([row.number, row.x, row.place, tag, value] for tag, value in row.metrics.items())
        self.file.flush()

    def close(self, ending: Ending) -> None:
        self.file.close()
