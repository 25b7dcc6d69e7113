"""The scripted citizen: nominates at random, tries some options with the others, then votes for what served it best."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import needed

TRIED = 4
"""Generations in which something is tried."""
_PARAMETER = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_EARLIER = re.compile(r"^Generation (\d+)(?: \[context: .+?\])?: (\S+=\S+(?:, \S+=\S+)*) -> all agents", re.MULTILINE)
_OWN = re.compile(r"(-?[\d.]+\S*) in generation (\d+)[,.]")
_OPTION = re.compile(r"^- (option_\d+)(?: \(as in the last generation\))?: (\S+=\S+(?:, \S+=\S+)*)\. ", re.MULTILINE)
_WHO = re.compile(r"^You are agent (\d+) of ", re.MULTILINE)


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda said: None) -> str:
    """Return a vote or a nomination in JSON.

    Args:
        messages: the conversation.
        seed: changes what is nominated.
        note: unused: there is always a rule.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `prompts/_ballot.j2`.
    """
    text = messages[0]["content"]
    bounds = {
        name: (float(low), float(high))
        for name, low, high in needed(_PARAMETER.findall(text), "the numbers (`- name: from 0 to 1 (`)")
    }
    who = needed(_WHO.search(text), "who votes (`You are agent 1 of `)")[1]
    own = {generation: float(value) for value, generation in _OWN.findall(text)}
    earlier = [(_numbers(values), own[generation]) for generation, values in _EARLIER.findall(text)]
    options = _OPTION.findall(text)
    reasoning = {"reasoning": "By rule, not by thought."}
    if not options:
        return json.dumps({**reasoning, **_nomination(bounds, f"{seed} {who} {len(earlier)}")})
    if len(earlier) < TRIED:  # all vote for the same, so that something is tried
        near = options[_share(f"{len(earlier)}") * len(options) // 2**32][0]
        return json.dumps({**reasoning, **_vote(text, near)})
    best = max(earlier, key=lambda pair: pair[1])[0]
    near = min(options, key=lambda option: _distance(_numbers(option[1]), best, bounds))[0]
    return json.dumps({**reasoning, **_vote(text, near)})


def _vote(text: str, option: str) -> dict[str, object]:
    return {"choices": [option]} if '"choices"' in text else {"choice": option}


def _share(draw: str) -> int:
    """Return a number below 2**32 that a text draws."""
    return int.from_bytes(hashlib.sha256(draw.encode()).digest()[:4], "big")


def _numbers(written: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (pair.partition("=") for pair in written.split(", "))}


def _nomination(bounds: Mapping[str, tuple[float, float]], draw: str) -> dict[str, float]:
    found = {}
    for name, (low, high) in bounds.items():
        share = _share(f"{draw} {name}") / 2**32
        found[name] = round(low + share * (high - low), 2)
    return found


def _distance(one: Mapping[str, float], other: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> float:
    return sum(((one[name] - other[name]) / max(high - low, 1e-9)) ** 2 for name, (low, high) in bounds.items())
