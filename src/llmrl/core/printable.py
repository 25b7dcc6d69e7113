"""Escaping of text from servers, files and other processes, so that it is safe to print in a terminal.

Without escapes, such a text could move the cursor, color or hide lines, or change the reading direction, and so imitate
output of this program.
"""

from __future__ import annotations

import logging
import unicodedata

_UNESCAPED_JOINERS = "\u200c\u200d"
"""Invisible format characters that are not escaped, because some scripts and emoji need them."""
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Escaped Unicode categories: control and format characters, surrogates, line and paragraph separators."""


def printable(text: object, multiline: bool = True) -> str:
    r"""Return `text` with escapes (`\x1b`) in place of characters that would control a terminal.

    Args:
        text: any object; its `str` is used.
        multiline: whether to keep line breaks and tabs instead of escaping them.

    >>> printable("\x1b[2J\x9b1A done\rfaked")
    '\\x1b[2J\\x9b1A done\\x0dfaked'
    """
    string = str(text)
    if string.isascii() and string.isprintable():
        return string
    return "".join(_escape(character, multiline) for character in string)


def _escape(character: str, keep_line_breaks: bool) -> str:
    if character.isprintable() or character in _UNESCAPED_JOINERS or (keep_line_breaks and character in "\n\t"):
        return character
    if unicodedata.category(character) not in _ESCAPED_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PrintableRecord(logging.LogRecord):
    """A log record whose message is `printable` for every handler."""

    def getMessage(self) -> str:  # noqa: N802  (its name in the standard library)
        return printable(super().getMessage())


def make_logs_printable() -> None:
    """Make all log messages of this process `printable`."""
    logging.setLogRecordFactory(PrintableRecord)


def is_number(text: str) -> bool:
    """Return whether Python's `float` accepts a text.

    >>> is_number("-1e3"), is_number("one")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
