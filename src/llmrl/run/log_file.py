"""`run.log`: what is logged while a run goes on."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from llmrl.core.disk import why
from llmrl.core.errors import RunFolderError
from llmrl.core.printable import printable
from llmrl.core.secrets import redact

FILE_NAME = "run.log"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SafeFormatter(logging.Formatter):
    """Writes records printable and without secrets: tracebacks hold what servers and files say, too."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(printable(super().format(record)))


class _Handler(logging.FileHandler):
    """Says once that the file cannot be written, where the library would print a traceback for each line."""

    told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.told:
            self.told = True
            sys.stderr.write(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")


class LogFile:
    """Writes what is logged into the folder of a run, from construction until `close`.

    Raises:
        RunFolderError: the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._handler = _Handler(folder / FILE_NAME, encoding="utf-8")
        except OSError as error:
            raise RunFolderError(f"cannot write {folder / FILE_NAME}: {why(folder, error)}") from error
        self._handler.setFormatter(SafeFormatter(_FORMAT))
        logging.getLogger().addHandler(self._handler)
        package = logging.getLogger("llmrl")
        self._level = package.level
        if not package.isEnabledFor(logging.INFO):
            package.setLevel(logging.INFO)

    def error(self, log: logging.Logger, message: str) -> None:
        """Write an error into the file alone: what is shown on the terminal is the command line's business."""
        self._handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, message, (), None))

    def close(self) -> None:
        """Stop writing; asked again, it does nothing."""
        if self._handler in logging.getLogger().handlers:
            logging.getLogger().removeHandler(self._handler)
            logging.getLogger("llmrl").setLevel(self._level)
            try:
                self._handler.close()
            except OSError as error:  # what is left could not be written; the run has been told of that
                sys.stderr.write(f"{self._handler.baseFilename} cannot be written: {error}\n")
