"""The scripted player: a few rules that read the game from the prompt and the last message, as a model would.

Where no rule applies it takes one of the actions it was told are legal, or that there are, decided by what it sees.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmrl.llms.scripted import UnreadPromptError, first_question, needed

_ACTIONS = re.compile(r"^# What you can do\n(.+?)^# ", re.MULTILINE | re.DOTALL)
_ACTION = re.compile(r"^- ([^:\n]+): (.+)$", re.MULTILINE)
_BOUNDS = re.compile(r"\((?:a whole number )?from (\S+) to (\S+)\)$")
_PICTURES = "What there is to see is in the pictures."
_AMOUNT = "An action is one number:"
_NUMBERS = "An action consists of these numbers"
_NO_RULE = "there is no rule for this game, and the player takes any legal action"
_CHANGE = 3
"""Messages are told apart roughly, so that what looks alike is answered alike; digits that count."""

Rule = Callable[[Mapping[str, Any]], str | None]


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda said: None) -> str:
    """A player's answer in JSON, an action or a lesson.

    Args:
        messages: the conversation.
        seed: changes nothing: what looks alike is answered alike in all runs.
        note: told of a game that there is no rule for.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `agents/llm_player/prompts`.
    """
    if messages[0]["role"] != "system":
        raise UnreadPromptError("the rules of the game (a system message)")
    asked = first_question(messages)
    if asked.startswith("An episode is over."):
        return json.dumps({"lesson": _lesson(asked)})
    system = messages[0]["content"]
    section = needed(_ACTIONS.search(system), "the actions (a section `# What you can do`)")[1]
    actions = needed(_ACTION.findall(section), "the actions (`- name: what it does`)")
    now = _last_told(messages)
    if _AMOUNT in section:
        actions = _amounts(actions[0][1])
    if now.get("talk") is True:
        return json.dumps(_message([name for name, _ in actions], system, now))
    if _NUMBERS in section:
        note(_NO_RULE)
        why, answer = _numbers(actions, now)
    else:
        why, answer = _choice([name for name, _ in actions], system, now, note)
    thought = {"reflection": f"By rule, not by thought: {why}."} if '"reflection"' in system else {}
    plan = {"plan": "Go on by rule."} if '"plan"' in system else {}
    return json.dumps({**thought, **plan, "action": answer})


def _last_told(messages: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    """The newest observation; what follows a reply that could not be used is no observation."""
    pictures = _PICTURES in messages[0]["content"]
    for message in reversed(messages):
        if message["role"] == "user" and message["content"].startswith("{"):
            told = json.loads(message["content"])
            if isinstance(told, dict) and ("observation" in told or pictures):
                return told
    raise UnreadPromptError("the observation (a message that is a JSON object)")


def _choice(names: Sequence[str], system: str, now: Mapping[str, Any], note: Callable[[str], None]) -> tuple[str, Any]:
    possible = now.get("legal_actions", names)
    legal = _listed(possible) if isinstance(possible, str) else [str(name) for name in possible]
    seen = now.get("observation")  # none where players are only shown frames
    known = False
    for rule in _RULES:
        wanted = rule(seen) if isinstance(seen, Mapping) else None
        known |= wanted is not None
        # Answers may be numbers, whose names stand in the descriptions.
        named = wanted if wanted in names else _number_of(wanted, system)
        if wanted is not None and _AMOUNT in system:
            named = wanted.removeprefix("take_")
        if wanted is not None and named in legal:
            return "a rule for this game", _written(named)
    if not known:
        note(_NO_RULE)
    digits = int.from_bytes(hashlib.sha256(_rough(now).encode()).digest()[:8], "big")
    return "any action that is legal", _written(legal[digits % len(legal)])


def _message(names: Sequence[str], system: str, now: Mapping[str, Any]) -> dict[str, str]:
    """Say what will be done; to the next player, where a message is to one."""
    _, answer = _choice(names, system, now, lambda said: None)
    message = {"message": f"By rule, not by thought: I mean to {answer}."}
    own = needed(re.search(r"^You are player (\d+)\.", system, re.MULTILINE), "who the player is (`You are player 1.`)")
    if '"to"' not in system.partition("# Talking")[2]:
        return message
    n = int(needed(re.search(r"There are (\d+) players", system), "how many players there are")[1])
    return {"to": f"player {int(own[1]) % n + 1}", **message}


def _amounts(said: str) -> list[tuple[str, str]]:
    """The amounts of an action that is one number, as actions."""
    bounds = needed(_BOUNDS.search(said), "the bounds of the number (`(a whole number from 0 to 20)`)")
    return [(name, said) for name in _listed(f"{bounds[1]} to {bounds[2]}")]


def _listed(span: str) -> list[str]:
    """The whole numbers of a span such as `0 to 20`."""
    low, _, high = span.partition(" to ")
    return [str(amount) for amount in range(int(low), int(high) + 1)]


def _written(name: str) -> Any:
    return int(name) if name.isdigit() else name


def _number_of(name: str | None, system: str) -> str:
    found = None if name is None else re.search(rf"^- (\d+): {re.escape(name)}: ", system, re.MULTILINE)
    return found.group(1) if found else ""


def _numbers(actions: Sequence[tuple[str, str]], now: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    values = {}
    for name, said in actions:
        bounds = needed(_BOUNDS.search(said), "the bounds of each number (`(from 0 to 1)`)")
        low, high = float(bounds.group(1)), float(bounds.group(2))
        digest = hashlib.sha256(f"{name} {_rough(now)}".encode()).digest()
        # Quarters of the range, so that whole numbers stay whole where the range is one of them.
        share = (digest[0] % 5) / 4
        value = low + share * (high - low)
        values[name] = round(value) if low.is_integer() and high.is_integer() and "whole" in said else round(value, 2)
    return "numbers inside their bounds", values


def _rough(told: Any) -> str:
    """The same text for messages that hardly differ."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number.group()):.{_CHANGE}g}", json.dumps(told))


def _lesson(record: str) -> str:
    end = needed(re.search(r"^How it ended: (.+)$", record, re.MULTILINE), "how the episode ended")
    return f"By rule, not by thought: the episode ended like this: {end.group(1)}"


def _blackjack(seen: Mapping[str, Any]) -> str | None:
    if "player_sum" not in seen:
        return None
    return "hit" if seen["player_sum"] < (18 if seen.get("usable_ace") == "yes" else 17) else "stick"


def _cartpole(seen: Mapping[str, Any]) -> str | None:
    if "pole_angle" not in seen:
        return None
    return "right" if seen["pole_angle"] + 0.3 * seen["pole_speed"] > 0 else "left"


def _mountain_car(seen: Mapping[str, Any]) -> str | None:
    if set(seen) != {"position", "speed"}:
        return None
    return "right" if seen["speed"] >= 0 else "left"


def _cliff(seen: Mapping[str, Any]) -> str | None:
    if set(seen) != {"row", "column"}:
        return None
    if seen["column"] == 11:
        return "down"
    return "up" if seen["row"] == 3 else "right"


def _commons(seen: Mapping[str, Any]) -> str | None:
    """Take an equal part of the whole stock; where told that more than an amount is too much, that amount."""
    if not {"players", "stock", "months_played"} <= set(seen):
        return None
    warned = re.search(r"more than (\d+)", str(seen.get("if_everybody", "")))
    return f"take_{warned[1] if warned else int(seen['stock']) // int(seen['players'])}"


def _village(seen: Mapping[str, Any]) -> str | None:
    """Clean Up and Harvest: clean dirt ahead, else go to the nearest apple, else to dirt, else look around."""
    if not {"map", "apples", "players"} <= set(seen):
        return None
    dirt = seen.get("nearest_dirt")
    if dirt is not None and dirt["right"] == 0 and 1 <= dirt["ahead"] <= 3:
        return "clean"
    target = seen.get("nearest_apple") or dirt
    if target is None:
        return "turn_left" if "#" in str(seen["map"][8])[5:6] else "forward"
    if abs(target["ahead"]) >= abs(target["right"]):
        return "forward" if target["ahead"] > 0 else "backward"
    return "step_right" if target["right"] > 0 else "step_left"


def _room(seen: Mapping[str, Any]) -> str | None:
    """The escape room: go to the lever that works while fewer than two others are there, else to the door."""
    if "working_lever" not in seen:
        return None
    there = int(seen.get("others_at", {}).get(seen["working_lever"], 0))
    return "go_to_door" if there >= 2 else f"go_to_{seen['working_lever']}"


def _tax_economy(seen: Mapping[str, Any]) -> str | None:
    """Full-time work, less the share of last year's income that was taken, to the next ten hours."""
    if "hourly_wage" not in seen:
        return None
    last = seen["last_year"] or {"income": 0, "tax_paid": 0}
    taken = last["tax_paid"] / last["income"] if last["income"] else 0.0
    return f"{10 * round(4 * (1 - taken))}_hours"


_RULES: tuple[Rule, ...] = (_blackjack, _cartpole, _mountain_car, _cliff, _commons, _village, _room, _tax_economy)
