"""Word lists of the readers of replies (`words.json`), in the languages in which models reply."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

_SPACELESS = re.compile("\\[?[\u0e00-\u0e7f\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]|\\\\[^A-Za-z]")


@functools.cache
def load_word_list(name: str) -> tuple[str, ...]:
    """Return the words of a list in `words.json`, the more frequent ones first.

    `same` has rows of synonymous phrases. A row belongs to a name of a question if one of its phrases is that name or
    its description. Its other phrases then mean that name, too, unless several names share the row. Phrases after a
    semicolon cannot themselves link a row to a name. Lists of phrases are for `load_pattern`. The other lists are names
    of keys in the form of `normalize_name`, words without information (`noise`) and HTML tags.
    """
    phrases = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))[name]
    return tuple(phrases if isinstance(phrases, list) else phrases.split("|"))


@functools.cache
def load_pattern(*names: str) -> re.Pattern[str]:
    """Return a pattern of the phrases of some lists, regular expressions with one row for each group of languages.

    A phrase begins at the beginning of a word, except in rows that begin with a sign or in a script without spaces.
    """
    rows = [row for name in names for row in load_word_list(name)]
    spaced = [row for row in rows if not _SPACELESS.match(row)]
    spaceless = [f"|{row}" for row in rows if row not in spaced]
    return re.compile(rf"(?<!\w)(?:{'|'.join(spaced)}){''.join(spaceless)}", re.IGNORECASE)
