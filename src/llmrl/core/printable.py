"""Text from outside, made fit for a terminal: what a server, a file or another process says must not move the cursor,
colour or hide lines, or turn the reading direction, and so pass for what this program says."""

from __future__ import annotations

import logging
import sys
import unicodedata
from typing import Any, TextIO, cast

_JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji are written with; they show nothing by themselves."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: controls, formats (of the reading direction, too), halves of pairs, separators."""


def printable(text: object, lines: bool = True) -> str:
    r"""`text` with everything spelled out that a terminal would obey instead of show.

    Args:
        text: anything; its `str`.
        lines: keep line breaks and tabs; else they are spelled out, too.

    >>> printable("\x1b[2J\x9b1A done\rfaked")
    '\\x1b[2J\\x9b1A done\\x0dfaked'
    """
    said = str(text)
    if said.isascii() and said.isprintable():
        return said
    return "".join(_shown(letter, lines) for letter in said)


def _shown(letter: str, lines: bool) -> str:
    if letter.isprintable() or letter in _JOINERS or (lines and letter in "\n\t"):
        return letter
    if unicodedata.category(letter) not in _UNSEEN:
        return letter
    number = ord(letter)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class PrintableRecord(logging.LogRecord):
    """What is logged, with messages that are `printable`, whichever handler writes them."""

    def getMessage(self) -> str:  # noqa: N802  (its name in the standard library)
        return printable(super().getMessage())


class PrintableStream:
    """A stream whose texts are `printable`; else as `stream`, which who means to move the cursor writes to.

    Args:
        stream: of text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def print_records() -> None:
    """Let everything that is logged in this process be `printable`."""
    logging.setLogRecordFactory(PrintableRecord)


def guard_terminal() -> None:
    """Let what a command logs, and what goes to standard error, libraries' complaints and tracebacks too, be
    `printable`."""
    print_records()
    if not isinstance(sys.stderr, PrintableStream):
        sys.stderr = cast(TextIO, PrintableStream(sys.stderr))


def unguarded(stream: TextIO) -> TextIO:
    """The stream behind a guarded one, for a bar that moves the cursor."""
    return stream.stream if isinstance(stream, PrintableStream) else stream
