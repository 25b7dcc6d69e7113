"""Words that readers of replies know, in the languages that models answer in: `words.json`."""

from __future__ import annotations

import functools
import json
from pathlib import Path


@functools.cache
def listed(name: str) -> tuple[str, ...]:
    """The words of a list, the likelier ones first.

    `same` has rows of phrases that mean the same. A row belongs to a name of a question if one of its phrases is that
    name, or what it is described as; its other phrases then mean that name, too, where no other name has the row.
    Phrases after a semicolon belong to no name themselves. The other lists are names of keys, as `letters` writes them,
    words that say nothing (`noise`) and tags of HTML.
    """
    found = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))[name]
    return tuple(found if isinstance(found, list) else found.split("|"))
