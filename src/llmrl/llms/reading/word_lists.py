"""Word lists of the readers of replies (`words.json`), in the languages in which models reply."""

from __future__ import annotations

import functools
import json
from pathlib import Path


@functools.cache
def load_word_list(name: str) -> tuple[str, ...]:
    """Return the words of a list in `words.json`, the more frequent ones first.

    `same` has rows of synonymous phrases. A row belongs to a name of a question if one of its phrases is that name or
    its description. Its other phrases then mean that name, too, unless several names share the row. Phrases after a
    semicolon cannot themselves link a row to a name. The other lists are names of keys in the form of
    `normalize_name`, words without information (`noise`) and HTML tags.
    """
    phrases = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))[name]
    return tuple(phrases if isinstance(phrases, list) else phrases.split("|"))
