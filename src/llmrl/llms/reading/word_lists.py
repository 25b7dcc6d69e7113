"""Word lists of the reply parsers (`words.json`), in several languages."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

_SPACELESS_ROW = re.compile("\\[?[\u0e00-\u0e7f\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]|\\\\[^A-Za-z]")


@functools.cache
def load_word_list(name: str) -> tuple[str, ...]:
    """Return the words of a list in `words.json`, more frequent words first.

    Each row of `same` contains synonyms. If one of them is a name in a question, or the description of a name, the
    other phrases of the row are synonyms of this name, unless several names match the row. Phrases after a semicolon
    are synonyms, but are not compared with names. Some lists are regular expressions of phrases for `load_pattern`.
    Others are field names in the form of `normalize_name`, words that do not distinguish names (`noise`), or HTML tags.
    """
    phrases = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))[name]
    return tuple(phrases if isinstance(phrases, list) else phrases.split("|"))


@functools.cache
def load_pattern(*names: str) -> re.Pattern[str]:
    """Return a pattern that matches any phrase of the lists `names`, whose rows are regular expressions.

    A phrase matches only at the beginning of a word, except in rows for scripts without spaces and rows that begin with
    an escaped sign.
    """
    rows = [row for name in names for row in load_word_list(name)]
    spaced = [row for row in rows if not _SPACELESS_ROW.match(row)]
    spaceless = [f"|{row}" for row in rows if row not in spaced]
    return re.compile(rf"(?<!\w)(?:{'|'.join(spaced)}){''.join(spaceless)}", re.IGNORECASE)
