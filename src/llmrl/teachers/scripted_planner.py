"""Scripted planner: replies by rules, which read only the state and the skills in the prompt, like a language model.

Rooms and particle environments have separate rules, which are selected by the form of the state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import UnreadPromptError, first_prompt, require
from llmrl.teachers.domain import ANNOUNCEMENT_PREFIX
from llmrl.teachers.rooms.room_domains import StepPairs, rule_based_plan

_STATE_PATTERN = re.compile(r"^State: (.+)$", re.MULTILINE)
_SKILL_PATTERN = re.compile(r"^- ([a-z ]+?)( <object>)?: ", re.MULTILINE)
_NAME_PATTERN = re.compile(r"<([^<>]+)>")
_HOLDS_SEPARATOR = ", holds "
_PARTICLE_STATE_PATTERN = re.compile(r"The agent is (\w+)[.,](.+)$")
"""Pattern of the state of an agent in a particle environment; groups: name of the agent, and facts that it knows."""
_NEAREST_TO_LANDMARK_PATTERN = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)
_ANNOUNCED_GOAL_PATTERN = re.compile(r"(\w+): go to landmark (\d+)")
_NEAREST_TO_PREY_PATTERN = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_ASSIGNMENT_PATTERN = re.compile(r"(\w+) must go to <(\w+)>")
_SPOKEN_COLOR_PATTERN = re.compile(r"says <(\w+)>")
_COMMUNICATION_PHRASES = ("cannot move", " must go to <", ", says ")
"""Phrases, of which each state of agents that communicate goals contains at least one."""


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return the reply of a planner, in JSON unless the prompt requests the published format (`Action: {...}`).

    Args:
        messages: the conversation; only the first request is used.
        seed: not used.
        note: function that is called with a remark if no rule applies.

    Raises:
        UnreadPromptError: the prompt has no state or no skills in the form of `teachers/prompts`.
    """
    prompt = first_prompt(messages)
    state = require(_STATE_PATTERN.findall(prompt), "the state (`State: ...`)")[-1]
    skills = {name: bool(takes_object) for name, takes_object in _SKILL_PATTERN.findall(prompt)}
    require(skills, "the skills (`- skill <object>: what it does`)")
    particle_match = _PARTICLE_STATE_PATTERN.match(state)
    if particle_match:
        facts, _, announcements = particle_match.group(2).partition(ANNOUNCEMENT_PREFIX)
        reason, steps = _plan_in_particle_world(particle_match.group(1), facts, announcements)
    else:
        reason, steps = _plan_in_room(state, skills, note)
    if "Action: {" in prompt and '"plan"' not in prompt:
        actions = ", ".join(f"{skill} <{target}>" if target else skill for skill, target in steps)
        return f"By rule, not by thought: {reason}.\nAction: {{{actions}}}"
    plan = [{"skill": skill, "object": target} for skill, target in steps]
    return json.dumps({"reasoning": f"By rule, not by thought: {reason}.", "plan": plan})


def _plan_in_room(state: str, skills: Mapping[str, bool], note: Callable[[str], None]) -> tuple[str, StepPairs]:
    """Return reason and plan for a room.

    If no rule applies, the plan is the first skill without object, or else the first skill with the first object.
    """
    visible_text, holds_separator, carried_text = state.partition(_HOLDS_SEPARATOR)
    visible_names = [name for name in _NAME_PATTERN.findall(visible_text) if name != "nothing"]
    carried_name = next((name for name in _NAME_PATTERN.findall(carried_text) if name != "nothing"), None)
    if not holds_separator:
        note("the state does not say what a planner's agent holds (`, holds <...>`), and it is assumed to hold nothing")
    reason, steps = rule_based_plan(visible_names, carried_name)
    if all(skills.get(skill) is (target != "") for skill, target in steps):
        return reason, steps
    note("no rule of the planner fits the state and the skills of the prompt, and the first skill is taken")
    return "none of the rules applies", _use_first_skill(skills, visible_names)


def _use_first_skill(skills: Mapping[str, bool], visible_names: list[str]) -> StepPairs:
    names_without_object = [name for name, takes_object in skills.items() if not takes_object]
    if names_without_object or not visible_names:
        return [(name, "") for name in names_without_object[:1]]
    return [(next(iter(skills)), visible_names[0])]


def _plan_in_particle_world(name: str, facts: str, announcements: str) -> tuple[str, StepPairs]:
    """Return reason and plan of an agent in a particle environment that knows `facts` and hears `announcements`.

    The rules are such that a debate helps. Without announcements, an agent that is nearest to no landmark does not know
    which one is free, and several hunters chase the same prey.
    """
    nearest_agents: dict[str, str] = dict(_NEAREST_TO_LANDMARK_PATTERN.findall(facts))
    if nearest_agents:
        return _choose_landmark(name, nearest_agents, announcements)
    nearest_hunters = _NEAREST_TO_PREY_PATTERN.findall(facts)
    if nearest_hunters:
        return _choose_prey(name, nearest_hunters, announcements)
    if "is hunted" in facts:
        return "run from everybody", [("keep away", "")]
    if not any(phrase in facts for phrase in _COMMUNICATION_PHRASES):
        raise UnreadPromptError("what an agent of a particle world knows (in its state)")
    spoken_colors = _SPOKEN_COLOR_PATTERN.findall(facts)
    move = ("go to", spoken_colors[0]) if spoken_colors else ("stay", "")
    assignments = _ASSIGNMENT_PATTERN.findall(facts)
    if "cannot move" in facts:
        return "tell them what is known", [(f"tell {name}", color) for name, color in assignments]
    return "say what is known, do what is said", [*(("say", color) for _, color in assignments), move]


def _choose_landmark(agent: str, nearest_agents: dict[str, str], announcements: str) -> tuple[str, StepPairs]:
    nearby_landmarks = [landmark for landmark, name in nearest_agents.items() if name == agent]
    if nearby_landmarks:
        return "nobody is nearer", [("go to", f"landmark {nearby_landmarks[0]}")]
    claimed_landmarks = {
        landmark
        for name, landmark in _ANNOUNCED_GOAL_PATTERN.findall(announcements)
        if name in nearest_agents.values() or name < agent
    }
    free_landmarks = [x for x in nearest_agents if x not in claimed_landmarks] or list(nearest_agents)
    return "nearest to none, so what seems to be left", [("go to", f"landmark {free_landmarks[0]}")]


def _choose_prey(agent: str, nearest_hunters: list[tuple[str, str]], announcements: str) -> tuple[str, StepPairs]:
    nearby_prey = [prey for prey, name in nearest_hunters if name == agent]
    if nearby_prey:
        return "nobody is nearer", [("chase", nearby_prey[0])]
    prey = nearest_hunters[0][0]
    if f"chase {prey}" in announcements:
        return "somebody else chases it", [("cut off", prey)]
    return "there is prey", [("chase", prey)]
