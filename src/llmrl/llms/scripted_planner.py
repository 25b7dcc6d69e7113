"""The scripted planner: a few rules that read the state and the skills from the prompt, as a model would."""

from __future__ import annotations

import json
import re

_STATE = re.compile(r"^State: (.+)$", re.MULTILINE)
_SKILL = re.compile(r"^- ([a-z ]+?)( <object>)?: ", re.MULTILINE)
_NAMED = re.compile(r"<([^<>]+)>")
_LAST = ("key", "door", "lava")
"""Last words of the names that rules know; any other object is something to fetch."""


def reply(prompt: str) -> str | None:
    """A planner's answer in JSON; None if `prompt` is not a planner's.

    To open a door it fetches a key, one of the door's colour if there are colours; it drops a key that does not fit;
    behind an open door it drops the key and fetches what else there is. With nothing better to do it takes the first
    skill that needs no object, or else the first skill with the first object. What it does not know: that two doors
    are one too many, how to look for anything, where lava is.
    """
    states = _STATE.findall(prompt)
    if "You are the planner" not in prompt or not states:
        return None
    skills = {name: bool(takes) for name, takes in _SKILL.findall(prompt)}
    before, _, after = states[-1].partition(", holds ")
    seen = [name for name in _NAMED.findall(before) if name != "nothing"]
    held = next((name for name in _NAMED.findall(after) if name != "nothing"), None)
    why, steps = _rule(seen, held)
    if not all(skills.get(skill) is (thing != "") for skill, thing in steps):
        why, steps = "none of the rules applies", _anything(skills, seen)
    plan = [{"skill": skill, "object": thing} for skill, thing in steps]
    return json.dumps({"reasoning": f"By rule, not by thought: {why}.", "plan": plan})


def _rule(seen: list[str], held: str | None) -> tuple[str, list[tuple[str, str]]]:
    keys = [name for name in seen if name.endswith("key")]
    doors = [name for name in seen if name.endswith("door") or name.rstrip("0123456789").endswith("door")]
    locked = [name for name in doors if not name.startswith("open ")]
    goods = [name for name in seen if name not in doors and name.split()[-1] not in _LAST]
    if goods and len(locked) == 0:
        if held is not None:
            return "hands must be free", [("drop", held)]
        return "fetch what there is", [("go to", goods[0]), ("pick up", goods[0])]
    if held is not None and locked:
        fitting = [door for door in locked if _fit(held, door)]
        if fitting:
            return "a door and its key", [("go to", fitting[0]), ("open", fitting[0])]
        return "the key does not fit", [("drop", held)]
    fitting = [key for key in keys if not locked or any(_fit(key, door) for door in locked)]
    if held is None and fitting and len(locked) == len(doors):
        return "a key is needed", [("go to", fitting[0]), ("pick up", fitting[0])]
    return "nothing else can be done", [("explore", "")]


def _fit(key: str, door: str) -> bool:
    """By their colours, which come before a space; without any, all fit."""
    return key.rpartition(" ")[0] == door.rpartition(" ")[0]


def _anything(skills: dict[str, bool], seen: list[str]) -> list[tuple[str, str]]:
    free = [name for name, takes in skills.items() if not takes]
    if free or not seen:
        return [(name, "") for name in free[:1]]
    return [(next(iter(skills)), seen[0])]
