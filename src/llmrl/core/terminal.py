"""Guarded terminal output: secrets are redacted, and standard error has no characters that control the terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast

from llmrl.core.printable import print_records, printable
from llmrl.core.secrets import redact


class GuardedStream:
    """A text stream that redacts secrets in what is written to it. Other attributes are those of `stream`.

    Args:
        stream: text stream to write to.
        plain: whether to escape control characters (`printable`), too; not for streams with tables or colors.
    """

    def __init__(self, stream: TextIO, plain: bool) -> None:
        self.stream, self.plain = stream, plain

    def write(self, text: str) -> int:
        self.stream.write(redact(printable(text) if self.plain else text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def redact_output() -> None:
    """Redact secrets in all output of this process from now on, and make its log and standard error `printable`.

    This includes tracebacks and messages of libraries. Further calls do nothing.
    """
    print_records()
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = cast(TextIO, GuardedStream(sys.stdout, plain=False))
    if not isinstance(sys.stderr, GuardedStream):
        sys.stderr = cast(TextIO, GuardedStream(sys.stderr, plain=True))


def drawing(stream: TextIO) -> TextIO:
    """Return the stream for a progress bar, which may move the cursor. Secrets are still redacted."""
    return cast(TextIO, GuardedStream(stream.stream, plain=False)) if isinstance(stream, GuardedStream) else stream
