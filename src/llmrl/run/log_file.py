"""`run.log`: what is logged while a run goes on."""

from __future__ import annotations

import logging
from pathlib import Path

from llmrl.core.secrets import redact

FILE_NAME = "run.log"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile:
    """Writes what is logged into the folder of a run, from construction until `close`."""

    def __init__(self, folder: Path) -> None:
        self._handler = logging.FileHandler(folder / FILE_NAME, encoding="utf-8")
        self._handler.setFormatter(_Redacting(_FORMAT))
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
            self._handler.close()


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
