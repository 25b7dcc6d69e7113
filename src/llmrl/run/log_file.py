"""`run.log`: the log messages of a run.

A process may compute several runs, each in a thread of its own. Messages in a thread of a run (and in threads that it
starts by `llmrl.core.threads.make_daemon_thread`) go to the file of that run, and to the files of runs that wait for it
as their prerequisite. Messages of other threads, such as those of libraries, go to the files of all runs.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from llmrl.core.folder_files import open_file
from llmrl.core.printable import printable
from llmrl.core.secrets import redact
from llmrl.run.files import report_write_errors

FILE_NAME = "run.log"
_MESSAGE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_active_log_files: ContextVar[tuple[LogFile, ...]] = ContextVar("llmrl_log_files", default=())
"""Log files of this thread: those of runs that wait for the thread's run, then the file of this run."""


class SafeFormatter(logging.Formatter):
    """A formatter that removes control characters and secrets, which tracebacks may hold from servers and files."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(printable(super().format(record)))


class _RunLogHandler(logging.FileHandler):
    """A file handler that reports only the first failed write; `logging` would print a traceback for each message."""

    has_reported_failure = False

    def _open(self) -> Any:
        return open_file(Path(self.baseFilename), self.mode)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.has_reported_failure:
            self.has_reported_failure = True
            sys.stderr.write(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")


class LogFile:
    """A log file in a run folder, which receives log messages from construction until `close`.

    Raises:
        RunFolderError: the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        with report_write_errors(folder / FILE_NAME):
            self._handler = _RunLogHandler(folder / FILE_NAME)
        self._handler.setFormatter(SafeFormatter(_MESSAGE_FORMAT))
        self._handler.addFilter(self._accepts_present_thread)
        self._files_of_waiting_runs = _active_log_files.get()
        _active_log_files.set((*self._files_of_waiting_runs, self))
        _change_n_open_files(1)
        logging.getLogger().addHandler(self._handler)

    def _accepts_present_thread(self, _: logging.LogRecord) -> bool:
        files = _active_log_files.get()
        return not files or self in files

    @contextmanager
    def receive_messages(self) -> Iterator[None]:
        """Return a context in which messages of this thread go to this file and to those of runs that wait for it."""
        previous_files = _active_log_files.get()
        _active_log_files.set((*self._files_of_waiting_runs, self))
        try:
            yield
        finally:
            _active_log_files.set(previous_files)

    def write(self, log: logging.Logger, level: int, message: str) -> None:
        """Write a message to the file only, not to the terminal."""
        with self.receive_messages():
            self._handler.handle(log.makeRecord(log.name, level, __file__, lno=0, msg=message, args=(), exc_info=None))

    def close(self) -> None:
        """Stop writing and close the file; a second call does nothing."""
        if self._handler in logging.getLogger().handlers:
            logging.getLogger().removeHandler(self._handler)
            _change_n_open_files(-1)
            _active_log_files.set(tuple(file for file in _active_log_files.get() if file is not self))
            try:
                self._handler.close()
            except OSError as error:  # buffered messages could not be written
                sys.stderr.write(f"{self._handler.baseFilename} cannot be written: {error}\n")


def get_active_log_files() -> tuple[LogFile, ...]:
    """Return the open log files of this thread, that of its own run last; empty in a thread without a run."""
    return _active_log_files.get()


_level_lock, _n_open_files, _previous_level = threading.Lock(), 0, logging.NOTSET


def _change_n_open_files(change: int) -> None:
    """Change the number of open log files; while there are any, the package's log level is INFO or lower."""
    global _n_open_files, _previous_level
    package_logger = logging.getLogger("llmrl")
    with _level_lock:
        if not _n_open_files:
            _previous_level = package_logger.level
        _n_open_files += change
        if not _n_open_files:
            package_logger.setLevel(_previous_level)
        elif not package_logger.isEnabledFor(logging.INFO):
            package_logger.setLevel(logging.INFO)
