"""Scripted player: simple rules that read the game from the prompt and the newest observation, as a model would.

If no rule applies, it takes an action that the prompt or the observation names, selected by a hash of the observation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmrl.llms.scripted import UnreadPromptError, first_prompt, require

_ACTIONS_SECTION_PATTERN = re.compile(r"^# What you can do\n(.+?)^# ", re.MULTILINE | re.DOTALL)
_ACTION_LINE_PATTERN = re.compile(r"^- ([^:\n]+): (.+)$", re.MULTILINE)
_BOUNDS_PATTERN = re.compile(r"\((?:a whole number )?from (\S+) to (\S+)\)$")
_FRAMES_ONLY_TEXT = "What there is to see is in the pictures."
_AMOUNT_ACTION_TEXT = "An action is one number:"
_NUMERIC_ACTION_TEXT = "An action consists of these numbers"
_NO_RULE_NOTE = "there is no rule for this game, and the player takes any legal action"
_SIGNIFICANT_DIGITS = 3
"""Significant digits of numbers in observations, so that similar observations get the same answer."""

Rule = Callable[[Mapping[str, Any]], str]
"""Function from an observation to the name of an action."""


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a player's answer in JSON: an action, a message, or a lesson.

    Args:
        messages: the conversation.
        seed: ignored, so that similar observations get the same answer in all runs.
        note: function that is called with a remark if there is no rule for the game.

    Raises:
        UnreadPromptError: a part of the prompt does not have the form of `agents/llm_player/prompts`.
    """
    if messages[0]["role"] != "system":
        raise UnreadPromptError("the rules of the game (a system message)")
    question = first_prompt(messages)
    if question.startswith("An episode is over."):
        ending = require(re.search(r"^How it ended: (.+)$", question, re.MULTILINE), "how the episode ended")[1]
        return json.dumps({"lesson": f"By rule, not by thought: the episode ended like this: {ending}"})
    system = messages[0]["content"]
    section = require(_ACTIONS_SECTION_PATTERN.search(system), "the actions (a section `# What you can do`)")[1]
    actions = require(_ACTION_LINE_PATTERN.findall(section), "the actions (`- name: what it does`)")
    user_turn = _find_last_user_turn(messages)
    if _AMOUNT_ACTION_TEXT in section:
        [(_, description), *_] = actions
        bounds_match = require(_BOUNDS_PATTERN.search(description), "the bounds (`(a whole number from 0 to 20)`)")
        actions = [(name, description) for name in _expand_range(f"{bounds_match[1]} to {bounds_match[2]}")]
    if user_turn.get("talk") is True:
        return json.dumps(_write_message([name for name, _ in actions], system, user_turn))
    if _NUMERIC_ACTION_TEXT in section:
        note(_NO_RULE_NOTE)
        reason, answer = _choose_numbers(actions, user_turn)
    else:
        reason, answer = _choose_action([name for name, _ in actions], system, user_turn, note)
    reflection = {"reflection": f"By rule, not by thought: {reason}."} if '"reflection"' in system else {}
    return json.dumps({**reflection, "action": answer})


def _find_last_user_turn(messages: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    """Return the newest observation; messages after an invalid reply are not observations."""
    has_frames_only = _FRAMES_ONLY_TEXT in messages[0]["content"]
    for message in reversed(messages):
        if message["role"] == "user" and message["content"].startswith("{"):
            user_turn = json.loads(message["content"])
            if isinstance(user_turn, dict) and ("observation" in user_turn or has_frames_only):
                return user_turn
    raise UnreadPromptError("the observation (a message that is a JSON object)")


def _choose_action(
    action_names: Sequence[str], system: str, user_turn: Mapping[str, Any], note: Callable[[str], None]
) -> tuple[str, Any]:
    """Return a reason and an answer for a choice between actions."""
    legal_actions = user_turn.get("legal_actions", action_names)
    legal_answers = _expand_range(legal_actions) if isinstance(legal_actions, str) else list(map(str, legal_actions))
    # Missing if players are only shown frames.
    observation: Mapping[str, Any] = x if isinstance(x := user_turn.get("observation"), Mapping) else {}
    rule_actions = [
        rule(observation)
        for rule, fields, requires_exact_fields in _RULES
        if (observation.keys() == fields if requires_exact_fields else observation.keys() >= fields)
    ]
    for rule_action in rule_actions:
        # With numbered answers, the names of actions are in the descriptions.
        numbered_match = re.search(rf"^- (\d+): {re.escape(rule_action)}: ", system, re.MULTILINE)
        action = rule_action if rule_action in action_names or numbered_match is None else numbered_match[1]
        if _AMOUNT_ACTION_TEXT in system:
            action = rule_action.removeprefix("take_")
        if action in legal_answers:
            return "a rule for this game", _to_json_value(action)
    if not rule_actions:
        note(_NO_RULE_NOTE)
    hash_value = int.from_bytes(hashlib.sha256(_format_with_rounded_numbers(user_turn).encode()).digest()[:8], "big")
    return "any action that is legal", _to_json_value(legal_answers[hash_value % len(legal_answers)])


def _write_message(action_names: Sequence[str], system: str, user_turn: Mapping[str, Any]) -> dict[str, str]:
    """Return a message that announces the next action, to the next player if messages have one recipient."""
    _, answer = _choose_action(action_names, system, user_turn, lambda text: None)
    message = {"message": f"By rule, not by thought: I mean to {answer}."}
    player_match = require(
        re.search(r"^You are player (\d+)\.", system, re.MULTILINE), "who the player is (`You are player 1.`)"
    )
    if '"to"' not in system.partition("# Talking")[2]:
        return message
    n_players = int(require(re.search(r"There are (\d+) players", system), "how many players there are")[1])
    return {"to": f"player {int(player_match[1]) % n_players + 1}", **message}


def _expand_range(range_text: str) -> list[str]:
    """Return the integers of a range such as `0 to 20`."""
    low, _, high = range_text.partition(" to ")
    return [str(amount) for amount in range(int(low), int(high) + 1)]


def _to_json_value(name: str) -> Any:
    return int(name) if name.isdigit() else name


def _choose_numbers(actions: Sequence[tuple[str, str]], user_turn: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Return a reason and numbers within their bounds, selected by a hash of the observation."""
    number_by_name = {}
    for name, description in actions:
        bounds_match = require(_BOUNDS_PATTERN.search(description), "the bounds of each number (`(from 0 to 1)`)")
        low, high = float(bounds_match.group(1)), float(bounds_match.group(2))
        digest = hashlib.sha256(f"{name} {_format_with_rounded_numbers(user_turn)}".encode()).digest()
        # Quarters of the range, so that numbers of an integer range stay integers.
        fraction = (digest[0] % 5) / 4
        value = low + fraction * (high - low)
        number_by_name[name] = (
            round(value) if low.is_integer() and high.is_integer() and "whole" in description else round(value, 2)
        )
    return "numbers inside their bounds", number_by_name


def _format_with_rounded_numbers(user_turn: Any) -> str:
    """Return an observation as text with rounded numbers, equal for similar observations."""
    return re.sub(
        r"-?\d+\.\d+", lambda number: f"{float(number.group()):.{_SIGNIFICANT_DIGITS}g}", json.dumps(user_turn)
    )


def _play_blackjack(observation: Mapping[str, Any]) -> str:
    """Play blackjack: hit below 17, or below 18 with a usable ace."""
    return "hit" if observation["player_sum"] < (18 if observation.get("usable_ace") == "yes" else 17) else "stick"


def _play_cartpole(observation: Mapping[str, Any]) -> str:
    """Push to the side to which the pole falls."""
    return "right" if observation["pole_angle"] + 0.3 * observation["pole_speed"] > 0 else "left"


def _play_mountain_car(observation: Mapping[str, Any]) -> str:
    """Accelerate in the direction of the speed."""
    return "right" if observation["speed"] >= 0 else "left"


def _play_cliff_walking(observation: Mapping[str, Any]) -> str:
    """Walk along the cliff to the goal."""
    if observation["column"] == 11:
        return "down"
    return "up" if observation["row"] == 3 else "right"


def _play_commons(observation: Mapping[str, Any]) -> str:
    """Take an equal share of the whole stock, or the amount that the observation warns not to exceed."""
    warning_match = re.search(r"more than (\d+)", str(observation.get("if_everybody", "")))
    return f"take_{warning_match[1] if warning_match else int(observation['stock']) // int(observation['players'])}"


def _play_clean_up_or_harvest(observation: Mapping[str, Any]) -> str:
    """Play Clean Up or Harvest: clean dirt ahead, else go to the nearest apple, else to dirt, else look around."""
    dirt = observation.get("nearest_dirt")
    if dirt is not None and dirt["right"] == 0 and 1 <= dirt["ahead"] <= 3:
        return "clean"
    target = observation.get("nearest_apple") or dirt
    if target is None:
        return "turn_left" if "#" in str(observation["map"][8])[5:6] else "forward"
    if abs(target["ahead"]) >= abs(target["right"]):
        return "forward" if target["ahead"] > 0 else "backward"
    return "step_right" if target["right"] > 0 else "step_left"


def _play_escape_room(observation: Mapping[str, Any]) -> str:
    """Play the escape room: go to the working lever while fewer than two others are there, else to the door."""
    n_others_at_lever = int(observation.get("others_at", {}).get(observation["working_lever"], 0))
    return "go_to_door" if n_others_at_lever >= 2 else f"go_to_{observation['working_lever']}"


def _play_tax_economy(observation: Mapping[str, Any]) -> str:
    """Work 40 hours times the share of last year's income that was not paid as tax, rounded to ten hours."""
    last_year = observation["last_year"] or {"income": 0, "tax_paid": 0}
    tax_rate = last_year["tax_paid"] / last_year["income"] if last_year["income"] else 0.0
    return f"{10 * round(4 * (1 - tax_rate))}_hours"


_RULES: tuple[tuple[Rule, set[str], bool], ...] = (
    (_play_blackjack, {"player_sum"}, False),
    (_play_cartpole, {"pole_angle"}, False),
    (_play_mountain_car, {"position", "speed"}, True),
    (_play_cliff_walking, {"row", "column"}, True),
    (_play_commons, {"players", "stock", "months_played"}, False),
    (_play_clean_up_or_harvest, {"map", "apples", "players"}, False),
    (_play_escape_room, {"working_lever"}, False),
    (_play_tax_economy, {"hourly_wage"}, False),
)
"""Rules, the fields that identify an observation of the rule's game, and whether it has no other fields."""
