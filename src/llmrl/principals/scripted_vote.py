"""Scripted replacement of a language-model citizen: random nominations and exploration, then greedy votes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from llmrl.llms.scripted import require

N_EXPLORATION_GENERATIONS = 4
"""Number of first generations in which all citizens vote for the same random option."""
_PARAMETER_PATTERN = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_GENERATION_PATTERN = re.compile(
    r"^Generation (\d+)(?: \[context: .+?\])?: (\S+=\S+(?:, \S+=\S+)*) -> all agents", re.MULTILINE
)
_CITIZEN_RETURN_PATTERN = re.compile(r"(-?[\d.]+\S*) in generation (\d+)[,.]")
_OPTION_PATTERN = re.compile(
    r"^- (option_\d+)(?: \(as in the last generation\))?: (\S+=\S+(?:, \S+=\S+)*)\. ", re.MULTILINE
)
_VOTER_PATTERN = re.compile(r"^You are agent (\d+) of ", re.MULTILINE)


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a vote, or a nomination if the prompt has no options, in JSON.

    A nomination is random. After the exploration, a vote is for the option with the smallest Euclidean distance, in
    units of the ranges, to the vector under which the citizen had its highest return.

    Args:
        messages: the conversation; only its first prompt is used.
        seed: seed of nominations.
        note: unused, because these rules apply to every prompt.

    Raises:
        UnreadPromptError: a part of the prompt does not have the format of `prompts/_ballot.j2`.
    """
    prompt = messages[0]["content"]
    bounds = {
        name: (float(low), float(high))
        for name, low, high in require(_PARAMETER_PATTERN.findall(prompt), "the numbers (`- name: from 0 to 1 (`)")
    }
    voter = require(_VOTER_PATTERN.search(prompt), "who votes (`You are agent 1 of `)")[1]
    returns = {generation: float(value) for value, generation in _CITIZEN_RETURN_PATTERN.findall(prompt)}
    outcomes = [  # vector and return of each generation
        (_parse_numbers(values), returns[generation]) for generation, values in _GENERATION_PATTERN.findall(prompt)
    ]
    options = _OPTION_PATTERN.findall(prompt)
    reasoning = {"reasoning": "By rule, not by thought."}
    if not options:
        return json.dumps({**reasoning, **_nominate(bounds, f"{seed} {voter} {len(outcomes)}")})
    if len(outcomes) < N_EXPLORATION_GENERATIONS:
        choice = options[_hash_to_int(f"{len(outcomes)}") * len(options) // 2**32][0]
        return json.dumps({**reasoning, "choice": choice})
    best_vector = max(outcomes, key=lambda pair: pair[1])[0]
    choice = min(options, key=lambda option: _squared_distance(_parse_numbers(option[1]), best_vector, bounds))[0]
    return json.dumps({**reasoning, "choice": choice})


def _hash_to_int(text: str) -> int:
    """Return a hash of a text, an integer from 0 to 2**32 - 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _parse_numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (pair.partition("=") for pair in text.split(", "))}


def _nominate(bounds: Mapping[str, tuple[float, float]], text: str) -> dict[str, float]:
    vector = {}
    for name, (low, high) in bounds.items():
        fraction = _hash_to_int(f"{text} {name}") / 2**32
        vector[name] = round(low + fraction * (high - low), 2)
    return vector


def _squared_distance(
    point: Mapping[str, float], other: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]
) -> float:
    return sum(((point[name] - other[name]) / max(high - low, 1e-9)) ** 2 for name, (low, high) in bounds.items())
