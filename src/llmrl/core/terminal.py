"""Guarded terminal output: secrets are redacted, and standard error has no characters that control the terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast

from llmrl.core.printable import make_logs_printable, printable
from llmrl.core.secrets import redact


class GuardedStream:
    """A text stream that redacts secrets in what is written to it. Other attributes are those of `stream`.

    Args:
        stream: text stream to write to.
        escapes_controls: whether to escape control characters (`printable`); not for streams with tables or colors.
    """

    def __init__(self, stream: TextIO, escapes_controls: bool) -> None:
        self.stream, self.escapes_controls = stream, escapes_controls

    def write(self, text: str) -> int:
        self.stream.write(redact(printable(text) if self.escapes_controls else text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guard_output() -> None:
    """Redact secrets in all output of this process from now on, and make its log and standard error `printable`.

    This includes tracebacks and messages of libraries. Further calls do nothing.
    """
    make_logs_printable()
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = cast(TextIO, GuardedStream(sys.stdout, escapes_controls=False))
    if not isinstance(sys.stderr, GuardedStream):
        sys.stderr = cast(TextIO, GuardedStream(sys.stderr, escapes_controls=True))


def to_drawing_stream(stream: TextIO) -> TextIO:
    """Return a stream that redacts secrets but keeps control characters, with which a progress bar moves the cursor."""
    if not isinstance(stream, GuardedStream):
        return stream
    return cast(TextIO, GuardedStream(stream.stream, escapes_controls=False))
