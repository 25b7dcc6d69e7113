"""What reaches a terminal: no secret, and on standard error nothing that a terminal would obey instead of show."""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast

from llmrl.core.printable import print_records, printable
from llmrl.core.secrets import redact


class GuardedStream:
    """A text stream that redacts what is written to it; anything else is that of `stream`.

    Args:
        stream: of text.
        plain: also spell out what moves the cursor or colours; not for streams that tables are drawn on.
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


def guard_terminal() -> None:
    """Let what this process prints from now on hold no secret, and what it logs or writes to standard error, libraries'
    complaints and tracebacks too, be `printable`."""
    print_records()
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = cast(TextIO, GuardedStream(sys.stdout, plain=False))
    if not isinstance(sys.stderr, GuardedStream):
        sys.stderr = cast(TextIO, GuardedStream(sys.stderr, plain=True))


def drawing(stream: TextIO) -> TextIO:
    """The stream for a bar, which moves the cursor; secrets stay out of it."""
    return cast(TextIO, GuardedStream(stream.stream, plain=False)) if isinstance(stream, GuardedStream) else stream
