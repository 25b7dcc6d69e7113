"""The scripted planner: a few rules that read the state and the skills from the prompt, as a model would.

Rooms and particle worlds have rules of their own; which they are is seen from the form of the state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import UnreadPromptError, first_question, needed
from llmrl.teachers.debate import ANNOUNCED

_STATE = re.compile(r"^State: (.+)$", re.MULTILINE)
_SKILL = re.compile(r"^- ([a-z ]+?)( <object>)?: ", re.MULTILINE)
_NAMED = re.compile(r"<([^<>]+)>")
_HOLDS = ", holds "
_LAST = ("key", "door", "lava")
"""Last words of the names that rules of rooms know; any other object is something to fetch."""

_PARTICLE = re.compile(r"The agent is (\w+)[.,](.+)$")
"""How the state of an agent of a particle world begins: its name, and what it knows."""
_NEAREST_TO_LANDMARK = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)
_GOING = re.compile(r"(\w+): go to landmark (\d+)")
_NEAREST_TO_PREY = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_MUST = re.compile(r"(\w+) must go to <(\w+)>")
_SAYS = re.compile(r"says <(\w+)>")
_TALK = ("cannot move", " must go to <", ", says ")
"""One of these stands in a state of agents that tell each other where to go."""

Steps = list[tuple[str, str]]


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda said: None) -> str:
    """A planner's answer, in JSON if the prompt asks for that.

    Args:
        messages: the conversation, whose first question counts.
        seed: nothing is drawn.
        note: told where no rule applies.

    Raises:
        UnreadPromptError: the prompt has no state or no skills in the form of `teachers/prompts`.
    """
    prompt = first_question(messages)
    state = needed(_STATE.findall(prompt), "the state (`State: ...`)")[-1]
    skills = {name: bool(takes) for name, takes in _SKILL.findall(prompt)}
    needed(skills, "the skills (`- skill <object>: what it does`)")
    particle = _PARTICLE.match(state)
    if particle:
        own, debating, others = particle.group(2).partition(ANNOUNCED)
        why, steps = _of_particles(particle.group(1), own, others if debating else None)
    else:
        why, steps = _of_rooms(state, skills, note)
    if "Action: {" in prompt and '"plan"' not in prompt:
        actions = ", ".join(f"{skill} <{thing}>" if thing else skill for skill, thing in steps)
        return f"By rule, not by thought: {why}.\nAction: {{{actions}}}"
    plan = [{"skill": skill, "object": thing} for skill, thing in steps]
    return json.dumps({"reasoning": f"By rule, not by thought: {why}.", "plan": plan})


def _of_rooms(state: str, skills: Mapping[str, bool], note: Callable[[str], None]) -> tuple[str, Steps]:
    """What to do in a room.

    To open a door fetch a key, one of the door's colour if there are colours; drop a key that does not fit; behind an
    open door drop the key and fetch what else there is. With nothing better to do take the first skill that needs no
    object, or else the first skill with the first object. What the rules do not know: that two doors are one too many,
    how to look for anything, where lava is.
    """
    before, holds, after = state.partition(_HOLDS)
    seen = [name for name in _NAMED.findall(before) if name != "nothing"]
    held = next((name for name in _NAMED.findall(after) if name != "nothing"), None)
    if not holds:
        note("the state does not say what a planner's agent holds (`, holds <...>`), and its hands are taken for empty")
    why, steps = _room_rule(seen, held)
    if all(skills.get(skill) is (thing != "") for skill, thing in steps):
        return why, steps
    note("no rule of the planner fits the state and the skills of the prompt, and the first skill is taken")
    return "none of the rules applies", _anything(skills, seen)


def _room_rule(seen: list[str], held: str | None) -> tuple[str, Steps]:
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


def _anything(skills: Mapping[str, bool], seen: list[str]) -> Steps:
    free = [name for name, takes in skills.items() if not takes]
    if free or not seen:
        return [(name, "") for name in free[:1]]
    return [(next(iter(skills)), seen[0])]


def _of_particles(me: str, own: str, others: str | None) -> tuple[str, Steps]:
    """What agent `me` of a particle world does, who knows `own`; `others` is what the others announce.

    The rules show what a debate is for. An agent that is nearest to nothing does not know what is left for it before it
    hears where the others go, and hunters all chase the same prey before they hear of each other.
    """
    owners: dict[str, str] = dict(_NEAREST_TO_LANDMARK.findall(own))
    if owners:
        return _landmark(me, owners, others)
    hunters = _NEAREST_TO_PREY.findall(own)
    if hunters:
        return _prey(me, hunters, others)
    if "is hunted" in own:
        return "run from everybody", [("keep away", "")]
    if not any(phrase in own for phrase in _TALK):
        raise UnreadPromptError("what an agent of a particle world knows (in its state)")
    says = _SAYS.findall(own)
    move = ("go to", says[0]) if says else ("stay", "")
    musts = _MUST.findall(own)
    if "cannot move" in own:
        return "tell them what is known", [(f"tell {name}", colour) for name, colour in musts]
    return "say what is known, do what is said", [*(("say", colour) for _, colour in musts), move]


def _landmark(me: str, owners: dict[str, str], others: str | None) -> tuple[str, Steps]:
    mine = [landmark for landmark, name in owners.items() if name == me]
    if mine:
        return "nobody is nearer", [("go to", f"landmark {mine[0]}")]
    taken = {landmark for name, landmark in _GOING.findall(others or "") if name in owners.values() or name < me}
    left = [landmark for landmark in owners if landmark not in taken] or list(owners)
    return "nearest to none, so what seems to be left", [("go to", f"landmark {left[0]}")]


def _prey(me: str, hunters: list[tuple[str, str]], others: str | None) -> tuple[str, Steps]:
    mine = [prey for prey, name in hunters if name == me]
    if mine:
        return "nobody is nearer", [("chase", mine[0])]
    prey = hunters[0][0]
    if others is not None and f"chase {prey}" in others:
        return "somebody else chases it", [("cut off", prey)]
    return "there is prey", [("chase", prey)]
