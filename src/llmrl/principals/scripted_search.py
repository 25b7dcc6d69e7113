"""The scripted searcher: a hill climber for policy parameters that reads all it knows from the prompt, as models do."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.llms.scripted import UnreadPromptError, first_question, needed

_COUNT = re.compile(r"^(\d+) numbers, called params\[0\] to params\[\d+\]\.", re.MULTILINE)
_SAME = re.compile(
    r"Each is a (whole )?number from (\S+) to ([^\s,]+?)(?:, with (\d+) digits? after the point)?\.\s*$", re.MULTILINE
)
_OWN = re.compile(
    r"^- params\[\d+\]: (whole, )?from (\S+) to ([^\s,]+)(?:, (\d+) digits after the point)?$", re.MULTILINE
)
_STEP = re.compile(r"change numbers by about (\S+) at a time")
_SIDE_BY_SIDE = "proposals are made independently"
_TOGETHER = re.compile(r"answer with (\d+) new lists of numbers")
_NUMBER = re.compile(r"this is number (\d+) of \d+")
_COMPACT = re.compile(r"^\[([^\]]*)\] -> (\S+)", re.MULTILINE)
_NAMED = re.compile(r"^(params\[0\]: .*); f\(params\): (\S+)", re.MULTILINE)
_SEVERAL = re.compile(r"^- (\[[^\]]*\]|params\[0\]: .*?): (\d+) times, mean (\S+),", re.MULTILINE)
_MADE = re.compile(r"^Tried so far: (\d+)\.", re.MULTILINE)
_NONE_SHOWN = "There is room for 0 "
_JSON, _LINES = "Answer with one JSON object", "in exactly this form"

FIRST_STEP = 0.15
"""Standard deviation of a change, as a share of each range, where the prompt hints at none."""
MOST_PARENTS = 3
"""Rows of the table whose weighted mean the changes start from."""
PATIENCE = 15
"""Rows without a better one after which changes are twice as large."""
BOLDEST = 4.0
"""Largest factor on the changes."""


@dataclass(frozen=True)
class _Task:
    """What a prompt asks for: bounds [d], digits after the point [d] (-1: any), and the table, oldest row first."""

    low: np.ndarray
    high: np.ndarray
    digits: np.ndarray
    step: float | None
    vectors: np.ndarray  # [rows, d]
    values: np.ndarray  # [rows]


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda said: None) -> str:
    """Parameters in the form that a conversation asks for.

    Random numbers while there is little to go by; then random changes to some of the numbers of the best row, or to a
    mean of the best rows carried on in the direction in which they got better. Of whole numbers one or two are drawn
    anew. Changes grow while nothing better is found.

    Args:
        messages: the conversation. Its first question counts, with what later ones add to its table, and all of it
            decides the random draws.
        seed: changes nothing.
        note: told nothing, as these rules always apply.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `principals/search_prompts`.
    """
    prompt = first_question(messages)
    later = "\n".join(message["content"] for message in messages[1:] if message["role"] == "user")
    count = needed(_COUNT.search(prompt), "how many numbers there are (`3 numbers, called params[0] to params[2].`)")
    made = int(needed(_MADE.findall(f"{prompt}\n{later}"), "how many lists of numbers were tried so far")[-1])
    task = _task(prompt, int(count.group(1)), later)
    if made and not len(task.values) and _NONE_SHOWN not in prompt:
        raise UnreadPromptError("the rows of the table of what was tried")
    together = _TOGETHER.search(prompt)
    number = _NUMBER.search(prompt)
    n = int(together.group(1)) if together else 1
    # The same random numbers for all questions of an iteration, of which number k uses the k-th.
    # A repair turn gets others.
    rng = _generator("\0".join(_NUMBER.sub("", message["content"]) for message in messages))
    if _SIDE_BY_SIDE in prompt:
        needed(number, "which proposal of the iteration is asked for")
    first = int(number.group(1)) if number else 1
    taken = {tuple(row) for row in task.vectors.tolist()}
    proposals: list[list[float]] = []
    for _ in range(first - 1 + n):
        vector = _propose(task, rng, made, taken)
        taken.add(tuple(vector))
        proposals.append(vector)
    return _written(prompt, proposals[-n:], f"By rule, not by thought: a change after {made} lists of numbers.")


def _task(prompt: str, d: int, later: str) -> _Task:
    """What the first question asks for, and its table with the rows that `later` ones have added to it."""
    instructions, heading, table = prompt.partition("## What was tried, oldest first")
    needed(heading, "the heading of the table (`## What was tried, oldest first`)")
    same = _SAME.search(instructions)
    ranges = [same.groups()] * d if same else _OWN.findall(instructions)[:d]
    if len(ranges) != d:
        raise UnreadPromptError("the range of each number")
    step = _STEP.search(instructions)
    table, _, several = table.partition("## Measured several times")
    rows = [(_compact(numbers), value) for numbers, value in _COMPACT.findall(table)]
    rows += [(_named(numbers), value) for numbers, value in _NAMED.findall(table)]
    rows += [(_compact(numbers), value) for numbers, value in _COMPACT.findall(later)]
    rows += [(_named(numbers), value) for numbers, value in _NAMED.findall(later)]
    # Of what was measured several times the mean counts, once, in the place of the newest measurement.
    listed = _SEVERAL.findall(several)
    means = {_compact(numbers[1:-1]) if numbers[0] == "[" else _named(numbers): mean for numbers, _, mean in listed}
    kept: list[tuple[tuple[str, ...], str]] = []
    for i, (row, value) in enumerate(rows):
        again = row in means and any(row == later for later, _ in rows[i + 1 :])
        if len(row) == d and not again:
            kept.append((row, means.get(row, value)))
    return _Task(
        low=np.array([float(low) for _, low, _, _ in ranges]),
        high=np.array([float(high) for _, _, high, _ in ranges]),
        digits=np.array([0 if is_whole else int(digits) if digits else -1 for is_whole, _, _, digits in ranges]),
        step=float(step.group(1)) if step else None,
        vectors=np.array([[float(x) for x in row] for row, _ in kept]).reshape(-1, d),
        values=np.array([float(value) for _, value in kept]),
    )


def _compact(numbers: str) -> tuple[str, ...]:
    return tuple(number.strip() for number in numbers.split(","))


def _named(numbers: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\]: ([^;]+)", numbers))


def _propose(task: _Task, rng: np.random.Generator, made: int, taken: set[tuple[float, ...]]) -> list[float]:
    """A vector that was not tried, if some tries find one."""
    d, span = len(task.low), task.high - task.low
    whole = bool((task.digits == 0).all())
    vector = task.low
    for attempt in range(50):
        if len(task.values) == 0 or made < min(d, 8):
            vector = task.low + rng.random(d) * span
        elif whole:
            vector = _redrawn(task, rng, attempt)
        else:
            vector = _moved(task, rng, attempt)
        vector = _rounded(np.clip(vector, task.low, task.high), task.digits)
        if tuple(vector.tolist()) not in taken:
            break
    return list(vector.tolist())


def _moved(task: _Task, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """Some numbers of the best row, or of what the best rows lead to, changed."""
    d, span = len(task.low), task.high - task.low
    order = np.argsort(-task.values, kind="stable")
    best = task.vectors[order[0]]
    size = span * FIRST_STEP if task.step is None else np.full(d, task.step)
    waited = len(task.values) - 1 - order[0]
    size = size * min(2.0 ** (waited // PATIENCE) * (1 + attempt / 10), BOLDEST)
    start = best
    if rng.random() < 0.5 and len(order) > MOST_PARENTS:
        parents = task.vectors[order[:MOST_PARENTS]]
        weights = np.arange(MOST_PARENTS, 0, -1.0)
        mean = weights @ parents / weights.sum()
        start = best + 0.5 * (best - mean)
    changed = rng.random(d) < max(0.3, 2.0 / d)
    changed[rng.integers(d)] = True
    moved: np.ndarray = np.where(changed, start + rng.normal(0.0, 1.0, d) * size, start)
    return moved


def _redrawn(task: _Task, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """One or two numbers of the best row, of equally good ones any, drawn anew; more where that has often been in
    vain."""
    d, highest = len(task.low), np.flatnonzero(task.values == task.values.max())
    best: np.ndarray = task.vectors[rng.choice(highest)].copy()
    waited = (len(task.values) - 1 - highest[0]) // PATIENCE
    chosen = rng.choice(d, min(d, 1 + int(rng.integers(2)) + attempt // 10 + waited), replace=False)
    best[chosen] = np.floor(task.low + rng.random(d) * (task.high - task.low + 1.0))[chosen]
    return best


def _rounded(vector: np.ndarray, digits: np.ndarray) -> np.ndarray:
    scale = 10.0 ** np.where(digits < 0, 4, digits)
    rounded: np.ndarray = np.round(vector * scale) / scale + 0.0
    return rounded


def _written(prompt: str, proposals: list[list[float]], why: str) -> str:
    if _JSON in prompt:
        numbers = {"params": proposals[0]} if '"params":' in prompt else {"proposals": proposals}
        return json.dumps({"reasoning": why, **numbers})
    needed(_LINES in prompt, f"the form of the reply (`{_JSON}` or `{_LINES}`)")
    lines = ["; ".join(f"params[{i}]: {x:g}" for i, x in enumerate(vector)) for vector in proposals]
    return "\n".join([*lines, why])


def _generator(said: str) -> np.random.Generator:
    digest = hashlib.sha256(said.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))
