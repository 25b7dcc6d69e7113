"""Scripted citizen, who nominates at random, first explores some options, then votes for what served it best."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import needed

N_EXPLORATION = 4
"""Number of generations in which options are explored."""
_PARAMETER = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_GENERATION = re.compile(
    r"^Generation (\d+)(?: \[context: .+?\])?: (\S+=\S+(?:, \S+=\S+)*) -> all agents", re.MULTILINE
)
_CITIZEN_RETURN = re.compile(r"(-?[\d.]+\S*) in generation (\d+)[,.]")
_OPTION = re.compile(r"^- (option_\d+)(?: \(as in the last generation\))?: (\S+=\S+(?:, \S+=\S+)*)\. ", re.MULTILINE)
_VOTER = re.compile(r"^You are agent (\d+) of ", re.MULTILINE)


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a vote or a nomination in JSON.

    Args:
        messages: the conversation.
        seed: seed of nominations.
        note: unused, as these rules always apply.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `prompts/_ballot.j2`.
    """
    text = messages[0]["content"]
    bounds = {
        name: (float(low), float(high))
        for name, low, high in needed(_PARAMETER.findall(text), "the numbers (`- name: from 0 to 1 (`)")
    }
    voter = needed(_VOTER.search(text), "who votes (`You are agent 1 of `)")[1]
    outcomes = {generation: float(value) for value, generation in _CITIZEN_RETURN.findall(text)}
    generations = [(_numbers(values), outcomes[generation]) for generation, values in _GENERATION.findall(text)]
    options = _OPTION.findall(text)
    reasoning = {"reasoning": "By rule, not by thought."}
    if not options:
        return json.dumps({**reasoning, **_nomination(bounds, f"{seed} {voter} {len(generations)}")})
    if len(generations) < N_EXPLORATION:  # all vote for the same option, to explore it
        choice = options[_hash_to_int(f"{len(generations)}") * len(options) // 2**32][0]
        return json.dumps({**reasoning, **_vote(text, choice)})
    best = max(generations, key=lambda pair: pair[1])[0]
    choice = min(options, key=lambda option: _distance(_numbers(option[1]), best, bounds))[0]
    return json.dumps({**reasoning, **_vote(text, choice)})


def _vote(text: str, option: str) -> dict[str, object]:
    return {"choices": [option]} if '"choices"' in text else {"choice": option}


def _hash_to_int(draw: str) -> int:
    """Return a pseudorandom number below 2**32 determined by a text."""
    return int.from_bytes(hashlib.sha256(draw.encode()).digest()[:4], "big")


def _numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (pair.partition("=") for pair in text.split(", "))}


def _nomination(bounds: Mapping[str, tuple[float, float]], draw: str) -> dict[str, float]:
    nomination = {}
    for name, (low, high) in bounds.items():
        share = _hash_to_int(f"{draw} {name}") / 2**32
        nomination[name] = round(low + share * (high - low), 2)
    return nomination


def _distance(
    point: Mapping[str, float], other: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]
) -> float:
    return sum(((point[name] - other[name]) / max(high - low, 1e-9)) ** 2 for name, (low, high) in bounds.items())
