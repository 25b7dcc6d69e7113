"""The scripted principal of mechanisms: a small random search that reads all it knows from the prompt, as models do."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.llms.scripted import UnreadPromptError, first_question, needed

_PARAMETER = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_CONTEXTS = "## Context\n"
_CONTEXT = re.compile(r"^Context of this generation: (.+)$", re.MULTILINE)
_FIRST = "this is your first proposal"
_MADE = re.compile(r"^Proposals made so far: (\d+)$", re.MULTILINE)
_MADE_HERE = re.compile(r"^Proposals made so far in this context: (\d+)$", re.MULTILINE)
_SIDE_BY_SIDE = "proposals are tried side by side"
_NUMBER = re.compile(r"this is number (\d+) of \d+")
_NONE_SHOWN = ("None of them was made in this context", "There is room for 0 ")
_GENERATION = re.compile(
    r"^Generation \d+(?:, proposal \d+)?(?: \[context: (.+?)\])?: (\S+=\S+(?:, \S+=\S+)*) -> payoff ([^\s;]+)"
    r"(?: \(mean of (\d+) measurements)?",
    re.MULTILINE,
)

MOST_CORNERS = 8
"""Corners of the box that are all tried, of up to three numbers."""
SPREAD = 10
"""Points of the first spread where there are more corners."""
STEP = 0.3
"""Standard deviation of the first changes, as a share of each range."""
SHRINK = 0.93
"""Factor on the step for each further proposal."""
SMALLEST_STEP = 0.03
PARENTS = 3
"""Proposals that are changed, in turn, beginning with the best."""
SMALLEST_WIDTH = 0.05
"""Of the kernel that averages payoffs, whose width is half the present step, as a share of each range."""
TRIES = 20
"""Changes drawn for a proposal before it may repeat another one of its generation (bounds may leave no choice)."""


@dataclass(frozen=True)
class _Tried:
    """Proposals of the present context that the prompt shows.

    They are points of the unit cube [n, d], with their payoffs [n] and how often each was measured [n].
    """

    points: np.ndarray
    payoffs: np.ndarray
    times: np.ndarray

    def best_first(self, width: float) -> np.ndarray:
        """Their indices [n], in falling order of payoffs averaged over neighbours under a Gaussian kernel of `width`.

        So a lucky payoff among bad ones is not taken for a good place (Nadaraya-Watson regression).
        """
        apart = ((self.points[:, None] - self.points[None]) ** 2).mean(-1)
        weights = np.exp(-apart / (2 * width**2)) * self.times
        return np.argsort(-(weights @ self.payoffs) / weights.sum(1), kind="stable")


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda said: None) -> str:
    """A principal's answer in JSON.

    First a spread. Of up to three numbers it is every corner of the box, in a random order, and the centre (a two-level
    factorial design). Of more it is ten points: the centre and a random Latin hypercube (McKay, Beckman & Conover
    1979). Then random changes, of ever smaller size, to some of the numbers of the best proposals of this
    context. Number 1 of a generation changes the best, number 2 the second best, number 3 the third, and so on in turn.
    What is best is judged by payoffs averaged over neighbours (`_Tried`). Proposals of one generation differ: number k
    is worked out after numbers 1 to k - 1.

    No number and no end of a range is treated unlike another, so that renamed or mirrored numbers would be searched as
    well, on average over seeds.

    Args:
        messages: the conversation, whose first question counts.
        seed: of the random draws, together with the prompt.
        note: told nothing, as these rules always apply.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `principals/prompts`.
    """
    prompt = first_question(messages)
    parameters = needed(_PARAMETER.findall(prompt), "the numbers to set (`- name: from 0 to 1 (unit)`)")
    names = [name for name, _, _ in parameters]
    low = np.array([float(bound) for _, bound, _ in parameters])
    high = np.array([float(bound) for _, _, bound in parameters])
    made, context = _made(prompt), ""
    if _CONTEXTS in prompt:
        context = needed(_CONTEXT.search(prompt), "the context of this generation")[1]
        made = _made(prompt, _MADE_HERE)
    tried = _tried(prompt, names, context, low, high)
    # The same points for all questions of a context.
    spread = _spread(len(names), _generator(seed, f"{parameters}\0{context}"))
    step = _step(made - len(spread))
    order = tried.best_first(max(step / 2, SMALLEST_WIDTH))[:PARENTS]
    # The same numbers for all questions of a generation.
    rng = _generator(seed, _NUMBER.sub("", prompt))
    taken: list[list[float]] = []
    for i in range(made, made + _number(prompt)):
        step = _step(i - len(spread))
        base = tried.points[order[(i - made) % len(order)]] if len(order) else np.full(len(names), 0.5)
        for _ in range(TRIES):
            point = spread[i] if i < len(spread) else _changed(rng, base, step)
            # Rounded before it is clipped: a bound need not be a round number.
            numbers = np.clip((low + point * (high - low)).round(4), low, high).tolist()
            if i < len(spread) or numbers not in taken:
                break
        taken.append(numbers)
    why = "a first spread of points over the ranges"
    if i >= len(spread):
        which = "one of the best proposals so far" if len(order) else "the centre of the ranges"
        why = f"a change of about {100 * step:.0f} % of the ranges to {which}"
    return json.dumps({"reasoning": f"By rule, not by thought: {why}.", **dict(zip(names, numbers, strict=True))})


def _made(prompt: str, line: re.Pattern[str] = _MADE) -> int:
    """Proposals so far, as a line of the prompt tells."""
    return 0 if _FIRST in prompt else int(needed(line.search(prompt), "how many proposals were made so far")[1])


def _number(prompt: str) -> int:
    """Which of the generation's proposals is asked for, from 1."""
    if _SIDE_BY_SIDE not in prompt:
        return 1
    return int(needed(_NUMBER.search(prompt), "which proposal of the generation is asked for")[1])


def _tried(prompt: str, names: list[str], context: str, low: np.ndarray, high: np.ndarray) -> _Tried:
    found: dict[tuple[float, ...], list[tuple[float, float]]] = {}
    rows = _GENERATION.findall(prompt)
    if not rows and _FIRST not in prompt and not any(phrase in prompt for phrase in _NONE_SHOWN):
        raise UnreadPromptError("the proposals made so far (`Generation 1: name=0.5 -> payoff 2`)")
    for where, values, payoff, measured in rows:
        numbers = dict(pair.split("=") for pair in values.split(", "))
        if where == context:
            vector = tuple(float(numbers[name]) for name in names)
            found.setdefault(vector, []).append((float(payoff), float(measured or 1)))
    # Of equal proposals that have rows of their own the mean counts.
    times = [sum(n for _, n in own) for own in found.values()]
    payoffs = [sum(payoff * n for payoff, n in own) / of for own, of in zip(found.values(), times, strict=True)]
    span = np.where(high > low, high - low, 1.0)
    points = (np.array(list(found)).reshape(-1, len(names)) - low) / span
    return _Tried(points, np.array(payoffs), np.array(times, dtype=np.float64))


def _generator(seed: int, text: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\0{text}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))


def _spread(d: int, rng: np.random.Generator) -> np.ndarray:
    """The corners of the unit cube and its centre; if there are many corners, its centre and n points whose coordinates
    fall each into a part of its own of n equal parts of an edge."""
    if 2**d <= MOST_CORNERS:
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=d)))
        return np.concatenate([rng.permutation(corners), np.full((1, d), 0.5)])
    n = SPREAD - 1
    parts = rng.permuted(np.tile(np.arange(n), (d, 1)), axis=1).T
    return np.concatenate([np.full((1, d), 0.5), (parts + rng.random((n, d))) / n])


def _step(after: int) -> float:
    """Size of the changes of a proposal that has `after` before it since the spread."""
    return float(max(STEP * SHRINK ** max(after, 0), SMALLEST_STEP))


def _changed(rng: np.random.Generator, base: np.ndarray, step: float) -> np.ndarray:
    """`base` [d] with some of its numbers, at least one, changed; inside the unit cube."""
    changed = rng.random(len(base)) < 0.5
    changed[rng.integers(len(base))] = True
    return np.clip(np.where(changed, base + rng.normal(0.0, step, len(base)), base), 0.0, 1.0)
