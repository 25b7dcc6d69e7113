"""BabyAI's missions in French."""

from __future__ import annotations

import functools
import re

from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.language import ENGLISH, FRENCH

_COLORS = ENGLISH.colors[""]
_OBJECT = re.compile(
    rf"(?P<article>a|the) (?:(?P<color>{'|'.join(_COLORS)}) )?(?P<noun>object|door|key|ball|box)"
    r"(?: (?P<where>in front of you|behind you|on your left|on your right))?"
)
_POSITIONS = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
# Verb -> infinitive, and perfect infinitive.
_VERBS = {
    "go to": ("aller", "être allé"),
    "pick up": ("attraper", "avoir attrapé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}


@functools.lru_cache(maxsize=65536)
def in_french(mission: str) -> str:
    """Return a mission of BabyAI in French: `go to the red ball` becomes `aller à la balle rouge`.

    Raises:
        ConfigError: it is not made as BabyAI's missions are.
    """
    start, separator, end = mission.partition(", then ")
    if separator:
        return f"{_translate_clauses(start)}, puis {_translate_clauses(end)}"
    last, after, prior = mission.partition(" after you ")
    if after:
        return f"{_translate_clauses(last)} après {_translate_clauses(prior, done=True)}"
    return _translate_clauses(mission)


def _translate_clauses(clauses: str, done: bool = False) -> str:
    return " et ".join(_clause(clause, done) for clause in clauses.split(" and "))


def _clause(clause: str, done: bool) -> str:
    verb = next((verb for verb in _VERBS if clause.startswith(f"{verb} ")), None)
    if verb is None:
        raise _untranslatable(clause)
    verb_phrase, rest = _VERBS[verb][done], clause[len(verb) + 1 :]
    if verb == "go to":
        return f"{verb_phrase} {_translate_object(rest, 'à')}"
    if verb == "put":
        subject, _, landmark = rest.partition(" next to ")
        return f"{verb_phrase} {_translate_object(subject)} à côté {_translate_object(landmark, 'de')}"
    return f"{verb_phrase} {_translate_object(rest)}"


def _translate_object(text: str, preposition: str = "") -> str:
    """Return a translated object: `la balle rouge`, `à une clef`, `de l'objet bleu à ta gauche`."""
    match = _OBJECT.fullmatch(text)
    if match is None:
        raise _untranslatable(text)
    noun, gender = ("objet", "m") if match["noun"] == "object" else FRENCH.nouns[match["noun"]]
    color = f" {FRENCH.colors[gender][_COLORS.index(match['color'])]}" if match["color"] else ""
    position = f" {_POSITIONS[match['where']]}" if match["where"] else ""
    if match["article"] == "a":
        article = f"{FRENCH.articles[gender]} "
        prefix = {"": "", "à": "à ", "de": "d'"}[preposition]
    else:
        article = "l'" if noun == "objet" else "la " if gender == "f" else "le "
        prefix = f"{preposition} " if preposition else ""
        if article == "le " and preposition:
            article, prefix = {"à": "au ", "de": "du "}[preposition], ""
    return f"{prefix}{article}{noun}{color}{position}"


def _untranslatable(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} in a mission cannot be translated into French, because it is not made as BabyAI's missions are; use "
        "env.language=en, or a level of BabyAI"
    )
