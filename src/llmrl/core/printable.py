"""Text from outside, made fit for a terminal: what a server, a file or another process says must not move the cursor,
colour or hide lines, or turn the reading direction, and so pass for what this program says."""

from __future__ import annotations

import logging
import unicodedata

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


def print_records() -> None:
    """Let everything that is logged in this process be `printable`."""
    logging.setLogRecordFactory(PrintableRecord)


def is_number(text: str) -> bool:
    """Return whether a text reads as a number.

    >>> is_number("-1e3"), is_number("one")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
