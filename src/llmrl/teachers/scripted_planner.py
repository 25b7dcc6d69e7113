"""Scripted planner, with rules that use only the state and the skills in the prompt, like a language model.

Rooms and particle worlds have separate rules, which are selected by the form of the state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import UnreadPromptError, first_question, needed
from llmrl.teachers.domain import ANNOUNCED
from llmrl.teachers.rooms.room_domains import Steps, rule_based_plan

_STATE = re.compile(r"^State: (.+)$", re.MULTILINE)
_SKILL = re.compile(r"^- ([a-z ]+?)( <object>)?: ", re.MULTILINE)
_NAME_PATTERN = re.compile(r"<([^<>]+)>")
_HOLDS = ", holds "
_PARTICLE = re.compile(r"The agent is (\w+)[.,](.+)$")
"""Beginning of the state of an agent of a particle world: its name, and its facts."""
_NEAREST_TO_LANDMARK = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)
_ANNOUNCED_GOAL = re.compile(r"(\w+): go to landmark (\d+)")
_NEAREST_TO_PREY = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_MUST = re.compile(r"(\w+) must go to <(\w+)>")
_SAYS = re.compile(r"says <(\w+)>")
_COMMUNICATION = ("cannot move", " must go to <", ", says ")
"""Phrases, one of which is in each state of agents that communicate goals."""


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a planner's reply, in JSON if the prompt asks for it.

    Args:
        messages: the conversation; only its first question is used.
        seed: unused.
        note: called with a remark if no rule applies.

    Raises:
        UnreadPromptError: the prompt has no state or no skills in the form of `teachers/prompts`.
    """
    prompt = first_question(messages)
    state = needed(_STATE.findall(prompt), "the state (`State: ...`)")[-1]
    skills = {name: bool(takes) for name, takes in _SKILL.findall(prompt)}
    needed(skills, "the skills (`- skill <object>: what it does`)")
    particle = _PARTICLE.match(state)
    if particle:
        facts, _, announcements = particle.group(2).partition(ANNOUNCED)
        reason, steps = _particle_answer(particle.group(1), facts, announcements)
    else:
        reason, steps = _room_answer(state, skills, note)
    if "Action: {" in prompt and '"plan"' not in prompt:
        actions = ", ".join(f"{skill} <{target}>" if target else skill for skill, target in steps)
        return f"By rule, not by thought: {reason}.\nAction: {{{actions}}}"
    plan = [{"skill": skill, "object": target} for skill, target in steps]
    return json.dumps({"reasoning": f"By rule, not by thought: {reason}.", "plan": plan})


def _room_answer(state: str, skills: Mapping[str, bool], note: Callable[[str], None]) -> tuple[str, Steps]:
    """Return reason and plan for a room.

    If no rule applies, this is the first skill without object, or else the first skill with the first object.
    """
    visible_text, holds, carried_text = state.partition(_HOLDS)
    visible = [name for name in _NAME_PATTERN.findall(visible_text) if name != "nothing"]
    carried = next((name for name in _NAME_PATTERN.findall(carried_text) if name != "nothing"), None)
    if not holds:
        note("the state does not say what a planner's agent holds (`, holds <...>`), and its hands are taken for empty")
    reason, steps = rule_based_plan(visible, carried)
    if all(skills.get(skill) is (target != "") for skill, target in steps):
        return reason, steps
    note("no rule of the planner fits the state and the skills of the prompt, and the first skill is taken")
    return "none of the rules applies", _first_skill(skills, visible)


def _first_skill(skills: Mapping[str, bool], visible: list[str]) -> Steps:
    without_object = [name for name, takes in skills.items() if not takes]
    if without_object or not visible:
        return [(name, "") for name in without_object[:1]]
    return [(next(iter(skills)), visible[0])]


def _particle_answer(name: str, facts: str, announcements: str) -> tuple[str, Steps]:
    """Return reason and plan of an agent of a particle world that knows `facts` and hears `announcements`.

    The rules show the purpose of a debate. An agent that is nearest to no landmark does not know which one is free
    before it hears the others' goals, and hunters all chase the same prey before they hear each other.
    """
    owners: dict[str, str] = dict(_NEAREST_TO_LANDMARK.findall(facts))
    if owners:
        return _choose_landmark(name, owners, announcements)
    hunters = _NEAREST_TO_PREY.findall(facts)
    if hunters:
        return _choose_prey(name, hunters, announcements)
    if "is hunted" in facts:
        return "run from everybody", [("keep away", "")]
    if not any(phrase in facts for phrase in _COMMUNICATION):
        raise UnreadPromptError("what an agent of a particle world knows (in its state)")
    spoken = _SAYS.findall(facts)
    move = ("go to", spoken[0]) if spoken else ("stay", "")
    assignments = _MUST.findall(facts)
    if "cannot move" in facts:
        return "tell them what is known", [(f"tell {name}", color) for name, color in assignments]
    return "say what is known, do what is said", [*(("say", color) for _, color in assignments), move]


def _choose_landmark(agent: str, owners: dict[str, str], announcements: str) -> tuple[str, Steps]:
    own_landmarks = [landmark for landmark, name in owners.items() if name == agent]
    if own_landmarks:
        return "nobody is nearer", [("go to", f"landmark {own_landmarks[0]}")]
    claimed = {
        landmark for name, landmark in _ANNOUNCED_GOAL.findall(announcements) if name in owners.values() or name < agent
    }
    free_landmarks = [landmark for landmark in owners if landmark not in claimed] or list(owners)
    return "nearest to none, so what seems to be left", [("go to", f"landmark {free_landmarks[0]}")]


def _choose_prey(agent: str, hunters: list[tuple[str, str]], announcements: str) -> tuple[str, Steps]:
    own_prey = [prey for prey, name in hunters if name == agent]
    if own_prey:
        return "nobody is nearer", [("chase", own_prey[0])]
    prey = hunters[0][0]
    if f"chase {prey}" in announcements:
        return "somebody else chases it", [("cut off", prey)]
    return "there is prey", [("chase", prey)]
