"""Scripted replacement of a language model in policy search: a hill climber that reads only the prompt."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.llms.scripted import UnreadPromptError, first_prompt, require

_DIMENSION_PATTERN = re.compile(r"^(\d+) numbers, called params\[0\] to params\[\d+\]\.", re.MULTILINE)
_COMMON_RANGE_PATTERN = re.compile(
    r"Each is a (whole )?number from (\S+) to ([^\s,]+?)(?:, with (\d+) digits? after the point)?\.\s*$", re.MULTILINE
)
_RANGE_PATTERN = re.compile(
    r"^- params\[\d+\]: (whole, )?from (\S+) to ([^\s,]+)(?:, (\d+) digits after the point)?$", re.MULTILINE
)
_STEP_PATTERN = re.compile(r"change numbers by about (\S+) at a time")
_PARALLEL_TEXT = "proposals are made independently"
QUESTION_NUMBER_PATTERN = re.compile(r"this is number (\d+) of \d+")
_LIST_ROW_PATTERN = re.compile(r"^\[([^\]]*)\] -> (\S+)", re.MULTILINE)
_NAMED_ROW_PATTERN = re.compile(r"^(params\[0\]: .*); f\(params\): (\S+)", re.MULTILINE)
_REPEATS_PATTERN = re.compile(r"^- (\[[^\]]*\]|params\[0\]: .*?): (\d+) times, mean (\S+),", re.MULTILINE)
_TRIAL_COUNT_PATTERN = re.compile(r"^Tried so far: (\d+)\.", re.MULTILINE)
EMPTY_TABLE_TEXT = "There is room for 0 "
_JSON_FORMAT_TEXT, _LINES_FORMAT_TEXT = "Answer with one JSON object", "in exactly this form"

DEFAULT_STEP = 0.15
"""Standard deviation of changes, as a share of each range, unless the prompt states a step size."""
N_PARENTS = 3
"""Number of best rows whose weighted mean determines the direction of extrapolation."""
PATIENCE = 15
"""Number of rows without improvement after which the standard deviation of changes doubles."""
MAX_STEP_FACTOR = 4.0
"""Maximum factor on the initial standard deviation of changes."""


@dataclass(frozen=True)
class _Task:
    """Content of a prompt: bounds of the parameters, and the table of proposals, oldest first."""

    low: np.ndarray  # [d]
    high: np.ndarray  # [d]
    digits: np.ndarray  # digits after the decimal point, [d]; -1: not limited
    step: float | None  # suggested size of changes
    vectors: np.ndarray  # [n_rows, d]
    values: np.ndarray  # mean return of each row, [n_rows]


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a reply with parameters, in the format that the prompt requires.

    The first proposals are random. Later ones change some numbers of the best vector, or of an extrapolation of the
    best vectors in the direction of improvement, at random. If all parameters are integers, one or two of them are
    redrawn instead. Changes become larger while there is no improvement.

    Args:
        messages: the conversation. Its first prompt is parsed; all messages seed the random draws.
        seed: unused.
        note: unused, because these rules apply to every prompt.

    Raises:
        UnreadPromptError: a part of the prompt does not have the format of `principals/search_prompts`.
    """
    prompt = first_prompt(messages)
    dimension_match = require(
        _DIMENSION_PATTERN.search(prompt), "how many numbers there are (`3 numbers, called params[0] to params[2].`)"
    )
    n_trials = int(require(_TRIAL_COUNT_PATTERN.search(prompt), "how many lists of numbers were tried so far")[1])
    task = _parse_task(prompt, int(dimension_match.group(1)))
    if n_trials and not len(task.values) and EMPTY_TABLE_TEXT not in prompt:
        raise UnreadPromptError("the rows of the table of what was tried")
    question_number_match = QUESTION_NUMBER_PATTERN.search(prompt)
    # All prompts of an iteration get the same random numbers, and proposal k is computed after proposals 1 to k - 1.
    # A repair turn gets different random numbers.
    rng = make_rng_from_text("\0".join(QUESTION_NUMBER_PATTERN.sub("", message["content"]) for message in messages))
    if _PARALLEL_TEXT in prompt:
        require(question_number_match, "which proposal of the iteration is asked for")
    proposed_vectors = {tuple(row) for row in task.vectors.tolist()}
    for _ in range(int(question_number_match.group(1)) if question_number_match else 1):
        vector = _propose(task, rng, n_trials, proposed_vectors)
        proposed_vectors.add(tuple(vector))
    return _format_reply(prompt, vector, f"By rule, not by thought: a change after {n_trials} lists of numbers.")


def _parse_task(prompt: str, d: int) -> _Task:
    """Return the content of the prompt of a task with `d` parameters."""
    instructions, heading, table = prompt.partition("## What was tried, oldest first")
    require(heading, "the heading of the table (`## What was tried, oldest first`)")
    common_range = _COMMON_RANGE_PATTERN.search(instructions)
    ranges = [common_range.groups()] * d if common_range else _RANGE_PATTERN.findall(instructions)[:d]
    if len(ranges) != d:
        raise UnreadPromptError("the range of each number")
    step = _STEP_PATTERN.search(instructions)
    table, _, repeats_text = table.partition("## Measured several times")
    rows = [(_parse_list(numbers), value) for numbers, value in _LIST_ROW_PATTERN.findall(table)]
    rows += [(_parse_named_numbers(numbers), value) for numbers, value in _NAMED_ROW_PATTERN.findall(table)]
    # Vectors with several measurements get one row, with their mean, at the position of the newest measurement.
    means = {
        _parse_list(numbers[1:-1]) if numbers[0] == "[" else _parse_named_numbers(numbers): mean
        for numbers, _, mean in _REPEATS_PATTERN.findall(repeats_text)
    }
    unique_rows: list[tuple[tuple[str, ...], str]] = []
    for i, (row, value) in enumerate(rows):
        has_newer_duplicate = row in means and any(row == other for other, _ in rows[i + 1 :])
        if len(row) == d and not has_newer_duplicate:
            unique_rows.append((row, means.get(row, value)))
    return _Task(
        low=np.array([float(low) for _, low, _, _ in ranges]),
        high=np.array([float(high) for _, _, high, _ in ranges]),
        digits=np.array(
            [0 if integer_mark else int(digits) if digits else -1 for integer_mark, _, _, digits in ranges]
        ),
        step=float(step.group(1)) if step else None,
        vectors=np.array([[float(x) for x in row] for row, _ in unique_rows]).reshape(-1, d),
        values=np.array([float(value) for _, value in unique_rows]),
    )


def _parse_list(numbers: str) -> tuple[str, ...]:
    return tuple(number.strip() for number in numbers.split(","))


def _parse_named_numbers(numbers: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\]: ([^;]+)", numbers))


def _propose(
    task: _Task, rng: np.random.Generator, n_trials: int, proposed_vectors: set[tuple[float, ...]]
) -> list[float]:
    """Return a proposal that differs from `proposed_vectors`, or the last of 50 attempts if all are equal to one."""
    d, span = len(task.low), task.high - task.low
    all_integers = bool((task.digits == 0).all())
    vector = task.low
    for attempt in range(50):
        if len(task.values) == 0 or n_trials < min(d, 8):
            vector = task.low + rng.random(d) * span
        elif all_integers:
            vector = _redraw(task, rng, attempt)
        else:
            vector = _perturb(task, rng, attempt)
        vector = _round_to_digits(np.clip(vector, task.low, task.high), task.digits)
        if tuple(vector.tolist()) not in proposed_vectors:
            break
    return list(vector.tolist())


def _perturb(task: _Task, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """Return the best vector, or an extrapolation from the best ones, with some numbers changed at random."""
    d, span = len(task.low), task.high - task.low
    order = np.argsort(-task.values, kind="stable")
    best = task.vectors[order[0]]
    step = span * DEFAULT_STEP if task.step is None else np.full(d, task.step)
    n_rows_since_best = len(task.values) - 1 - order[0]
    step = step * min(2.0 ** (n_rows_since_best // PATIENCE) * (1 + attempt / 10), MAX_STEP_FACTOR)
    start = best
    if rng.random() < 0.5 and len(order) > N_PARENTS:
        weights = np.arange(N_PARENTS, 0, -1.0)
        mean = weights @ task.vectors[order[:N_PARENTS]] / weights.sum()
        start = best + 0.5 * (best - mean)
    is_changed = rng.random(d) < max(0.3, 2.0 / d)
    is_changed[rng.integers(d)] = True
    return np.where(is_changed, start + rng.normal(0.0, 1.0, d) * step, start)


def _redraw(task: _Task, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """Return the best vector with one or two integers redrawn; more after many attempts or rows without improvement."""
    d, best_rows = len(task.low), np.flatnonzero(task.values == task.values.max())
    vector: np.ndarray = task.vectors[rng.choice(best_rows)].copy()
    n_extra = attempt // 10 + (len(task.values) - 1 - best_rows[0]) // PATIENCE
    indices = rng.choice(d, min(d, 1 + int(rng.integers(2)) + n_extra), replace=False)
    vector[indices] = np.floor(task.low + rng.random(d) * (task.high - task.low + 1.0))[indices]
    return vector


def _round_to_digits(vector: np.ndarray, digits: np.ndarray) -> np.ndarray:
    scale = 10.0 ** np.where(digits < 0, 4, digits)
    return np.round(vector * scale) / scale + 0.0  # + 0.0 turns -0.0 into 0.0


def _format_reply(prompt: str, vector: list[float], reason: str) -> str:
    if _JSON_FORMAT_TEXT in prompt:
        return json.dumps({"reasoning": reason, "params": vector})
    require(_LINES_FORMAT_TEXT in prompt, f"the form of the reply (`{_JSON_FORMAT_TEXT}` or `{_LINES_FORMAT_TEXT}`)")
    return "; ".join(f"params[{i}]: {x:g}" for i, x in enumerate(vector)) + f"\n{reason}"


def make_rng_from_text(text: str) -> np.random.Generator:
    """Return a generator of random numbers whose seed is a hash of a text."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
