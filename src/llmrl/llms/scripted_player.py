"""The scripted player: a few rules that read the game from the prompt and the last message, as a model would.

Where no rule applies it takes one of the actions it was told are legal, or that there are, decided by what it sees.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ACTIONS = re.compile(r"^# What you can do\n(.+?)^# ", re.MULTILINE | re.DOTALL)
_ACTION = re.compile(r"^- ([^:\n]+): (.+)$", re.MULTILINE)
_BOUNDS = re.compile(r"\(from (\S+) to (\S+)\)$")
_NUMBERS = "An action consists of these numbers"
_CHANGE = 3
"""Messages are told apart roughly, so that what looks alike is answered alike; digits that count."""

Rule = Callable[[Mapping[str, Any]], str | None]


def reply(messages: Sequence[Mapping[str, str]]) -> str | None:
    """A player's answer in JSON; None if `messages` are not a player's."""
    system = messages[0]["content"]
    if messages[0]["role"] != "system" or not system.startswith("You play a game, one action at a time."):
        return None
    if messages[1]["content"].startswith("An episode is over."):
        return json.dumps({"lesson": _lesson(messages[1]["content"])})
    section = _ACTIONS.search(system)
    actions = _ACTION.findall(section.group(1) if section else "")
    now = _last_told(messages)
    if section is not None and _NUMBERS in section.group(1):
        why, answer = _numbers(actions, now)
    else:
        why, answer = _choice([name for name, _ in actions], system, now)
    thought = {"reflection": f"By rule, not by thought: {why}."} if '"reflection"' in system else {}
    return json.dumps({**thought, "action": answer})


def _last_told(messages: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    """The newest observation; what follows a reply that could not be used is no observation."""
    for message in reversed(messages):
        if message["role"] == "user" and message["content"].startswith("{"):
            told = json.loads(message["content"])
            if isinstance(told, dict) and "observation" in told:
                return told
    return {"observation": {}}


def _choice(names: Sequence[str], system: str, now: Mapping[str, Any]) -> tuple[str, Any]:
    legal = [str(name) for name in now.get("legal_actions", names)]
    seen = now["observation"]
    for rule in _RULES:
        wanted = rule(seen) if isinstance(seen, Mapping) else None
        # Answers may be numbers, whose names stand in the descriptions.
        named = wanted if wanted in names else _number_of(wanted, system)
        if wanted is not None and named in legal:
            return "a rule for this game", _written(named)
    digits = int.from_bytes(hashlib.sha256(_rough(now).encode()).digest()[:8], "big")
    return "any action that is legal", _written(legal[digits % len(legal)])


def _written(name: str) -> Any:
    return int(name) if name.isdigit() else name


def _number_of(name: str | None, system: str) -> str:
    found = None if name is None else re.search(rf"^- (\d+): {re.escape(name)}: ", system, re.MULTILINE)
    return found.group(1) if found else ""


def _numbers(actions: Sequence[tuple[str, str]], now: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    values = {}
    for name, said in actions:
        bounds = _BOUNDS.search(said)
        low, high = (float(bounds.group(1)), float(bounds.group(2))) if bounds else (0.0, 1.0)
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
    end = re.search(r"^How it ended: (.+)$", record, re.MULTILINE)
    return f"By rule, not by thought: the episode ended like this: {end.group(1) if end else 'unknown'}"


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


_RULES: tuple[Rule, ...] = (_blackjack, _cartpole, _mountain_car, _cliff)
