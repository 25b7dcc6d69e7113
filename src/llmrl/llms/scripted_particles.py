"""The scripted planner of particle worlds: rules that read the state from the prompt, and what the others announce."""

from __future__ import annotations

import json
import re

_STATE = re.compile(r"^State: The agent is (\w+)[.,](.+)$", re.MULTILINE)
_OTHERS = "The others mean to do this: "
_NEAREST_TO_LANDMARK = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)
_GOING = re.compile(r"(\w+): go to landmark (\d+)")
_NEAREST_TO_PREY = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_MUST = re.compile(r"(\w+) must go to <(\w+)>")
_SAYS = re.compile(r"says <(\w+)>")

Steps = list[tuple[str, str]]


def reply(prompt: str) -> str | None:
    """A planner's answer in JSON; None if `prompt` does not ask for the plan of an agent of a particle world.

    It shows what a debate is for: an agent that is nearest to nothing does not know what is left for it before it hears
    where the others go, and hunters all chase the same prey before they hear of each other.
    """
    states = _STATE.findall(prompt)
    if "You are the planner" not in prompt or not states:
        return None
    me, state = states[-1]
    own, debating, others = state.partition(_OTHERS)
    why, steps = _rule(me, own, others if debating else None)
    plan = [{"skill": skill, "object": thing} for skill, thing in steps]
    return json.dumps({"reasoning": f"By rule, not by thought: {why}.", "plan": plan})


def _rule(me: str, own: str, others: str | None) -> tuple[str, Steps]:
    owners: dict[str, str] = dict(_NEAREST_TO_LANDMARK.findall(own))
    if owners:
        return _landmark(me, owners, others)
    hunters = _NEAREST_TO_PREY.findall(own)
    if hunters:
        return _prey(me, hunters, others)
    if "is hunted" in own:
        return "run from everybody", [("keep away", "")]
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
