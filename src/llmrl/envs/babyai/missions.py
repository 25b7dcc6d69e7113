"""BabyAI's missions in French."""

from __future__ import annotations

import functools
import re

from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.language import ENGLISH, FRENCH

_COLOURS = ENGLISH.colours[""]
_THING = re.compile(
    rf"(?P<article>a|the) (?:(?P<colour>{'|'.join(_COLOURS)}) )?(?P<noun>object|door|key|ball|box)"
    r"(?: (?P<where>in front of you|behind you|on your left|on your right))?"
)
_WHERE = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
# What is done -> to do it, and having done it.
_VERBS = {
    "go to": ("aller", "être allé"),
    "pick up": ("attraper", "avoir attrapé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}


@functools.lru_cache(maxsize=65536)
def in_french(mission: str) -> str:
    """A mission of BabyAI in French: `go to the red ball` is `aller à la balle rouge`.

    Raises:
        ConfigError: it is not made as BabyAI's missions are.
    """
    try:
        return _sequence(mission)
    except _UnknownWordsError as fault:
        raise ConfigError(
            f"the mission {mission!r} cannot be told in French ({fault} is not known there); levels of BabyAI can be "
            "played with env.language=fr, others with env.language=en"
        ) from None


class _UnknownWordsError(Exception):
    """Carries the words that are none of a mission's."""


def _sequence(mission: str) -> str:
    first, then, second = mission.partition(", then ")
    if then:
        return f"{_several(first)}, puis {_several(second)}"
    last, after, before = mission.partition(" after you ")
    if after:
        return f"{_several(last)} après {_several(before, done=True)}"
    return _several(mission)


def _several(clauses: str, done: bool = False) -> str:
    return " et ".join(_clause(clause, done) for clause in clauses.split(" and "))


def _clause(clause: str, done: bool) -> str:
    verb = next((verb for verb in _VERBS if clause.startswith(f"{verb} ")), None)
    if verb is None:
        raise _UnknownWordsError(repr(clause))
    said, about = _VERBS[verb][done], clause[len(verb) + 1 :]
    if verb == "go to":
        return f"{said} {_thing(about, 'à')}"
    if verb == "put":
        moved, _, beside = about.partition(" next to ")
        return f"{said} {_thing(moved)} à côté {_thing(beside, 'de')}"
    return f"{said} {_thing(about)}"


def _thing(text: str, preposition: str = "") -> str:
    """`la balle rouge`, `à une clef`, `de l'objet bleu à ta gauche`."""
    found = _THING.fullmatch(text)
    if found is None:
        raise _UnknownWordsError(repr(text))
    noun, gender = ("objet", "m") if found["noun"] == "object" else FRENCH.nouns[found["noun"]]
    colour = f" {FRENCH.colours[gender][_COLOURS.index(found['colour'])]}" if found["colour"] else ""
    where = f" {_WHERE[found['where']]}" if found["where"] else ""
    if found["article"] == "a":
        article = f"{FRENCH.articles[gender]} "
        before = {"": "", "à": "à ", "de": "d'"}[preposition]
    else:
        article = "l'" if noun == "objet" else "la " if gender == "f" else "le "
        before = f"{preposition} " if preposition else ""
        if article == "le " and preposition:
            article, before = {"à": "au ", "de": "du "}[preposition], ""
    return f"{before}{article}{noun}{colour}{where}"
