"""Scripted principal of mechanisms: a small random search that uses only the prompt, like a language model."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.llms.scripted import UnreadPromptError, first_prompt, require
from llmrl.principals.scripted_search import EMPTY_TABLE_TEXT, QUESTION_NUMBER_PATTERN, rng_of_text

_PARAMETER_PATTERN = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_CONTEXTS_HEADING = "## Context\n"
_CONTEXT_PATTERN = re.compile(r"^Context of this generation: (.+)$", re.MULTILINE)
_FIRST_PROPOSAL_TEXT = "this is your first proposal"
_COUNT_PATTERN = re.compile(r"^Proposals made so far: (\d+)$", re.MULTILINE)
_CONTEXT_COUNT_PATTERN = re.compile(r"^Proposals made so far in this context: (\d+)$", re.MULTILINE)
_PARALLEL_TEXT = "proposals are tried side by side"
_RECORD_PATTERN = re.compile(
    r"^Generation \d+(?:, proposal \d+)?(?: \[context: (.+?)\])?: (\S+=\S+(?:, \S+=\S+)*) -> payoff ([^\s;]+)"
    r"(?: \(mean of (\d+) measurements)?",
    re.MULTILINE,
)

MAX_CORNERS = 8
"""Maximum number of corners of the box that are all tried, for up to three numbers."""
N_INITIAL = 10
"""Number of initial points if there are more corners."""
INITIAL_STEP = 0.3
"""Initial standard deviation of changes, as a share of each range."""
STEP_DECAY = 0.93
"""Factor on the step for each further proposal."""
MIN_STEP = 0.03
N_PARENTS = 3
"""Number of proposals that are changed, in turn, beginning with the best."""
MIN_KERNEL_WIDTH = 0.05
"""Minimum width of the kernel that averages payoffs (otherwise half the present step), as a share of each range."""
MAX_DRAWS = 20
"""Maximum number of draws of a proposal that differs from others of its generation (bounds may leave no choice)."""


@dataclass(frozen=True)
class _Trials:
    """Proposals of the present context that the prompt shows.

    They are points of the unit cube [n, d], with their payoffs [n] and how often each was measured [n].
    """

    points: np.ndarray
    payoffs: np.ndarray
    counts: np.ndarray

    def rank_points(self, width: float) -> np.ndarray:
        """Return indices [n] in decreasing order of payoffs averaged by a Gaussian kernel of `width`.

        So a single high payoff among low ones does not rank high (Nadaraya-Watson regression).
        """
        distances = ((self.points[:, None] - self.points[None]) ** 2).mean(-1)
        weights = np.exp(-distances / (2 * width**2)) * self.counts
        return np.argsort(-(weights @ self.payoffs) / weights.sum(1), kind="stable")


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a principal's reply in JSON.

    The first proposals form an initial design. For up to three numbers these are all corners of the box, in random
    order, and the center (a two-level factorial design). For more numbers these are ten points: the center and a random
    Latin hypercube (McKay, Beckman & Conover 1979). Then follow random changes, of decreasing size, to some of the
    numbers of the best proposals of this context. Number 1 of a generation changes the best, number 2 the second best,
    number 3 the third, and so on in turn. Proposals are ranked by payoffs averaged over neighbors (`_Trials`).
    Proposals of one generation differ: number k is computed after numbers 1 to k - 1.

    All numbers and both ends of a range are treated alike, so renamed or mirrored numbers would be searched equally
    well, on average over seeds.

    Args:
        messages: the conversation; only its first question is used.
        seed: seed of the random draws, together with the prompt.
        note: unused, as these rules always apply.

    Raises:
        UnreadPromptError: a part of the prompt is not in the form of `principals/prompts`.
    """
    prompt = first_prompt(messages)
    parameters = require(_PARAMETER_PATTERN.findall(prompt), "the numbers to set (`- name: from 0 to 1 (unit)`)")
    names = [name for name, _, _ in parameters]
    low = np.array([float(bound) for _, bound, _ in parameters])
    high = np.array([float(bound) for _, _, bound in parameters])
    n_proposals, context = _read_proposal_count(prompt), ""
    if _CONTEXTS_HEADING in prompt:
        context = require(_CONTEXT_PATTERN.search(prompt), "the context of this generation")[1]
        n_proposals = _read_proposal_count(prompt, _CONTEXT_COUNT_PATTERN)
    trials = _read_trials(prompt, names, context, low, high)
    # The same points for all questions of a context.
    design = _initial_design(len(names), rng_of_text(f"{seed}\0{parameters}\0{context}"))
    step = _step_size(n_proposals - len(design))
    order = trials.rank_points(max(step / 2, MIN_KERNEL_WIDTH))[:N_PARENTS]
    # The same numbers for all questions of a generation.
    rng = rng_of_text(f"{seed}\0{QUESTION_NUMBER_PATTERN.sub('', prompt)}")
    proposals: list[list[float]] = []
    for i in range(n_proposals, n_proposals + _read_proposal_number(prompt)):
        step = _step_size(i - len(design))
        base = trials.points[order[(i - n_proposals) % len(order)]] if len(order) else np.full(len(names), 0.5)
        for _ in range(MAX_DRAWS):
            point = design[i] if i < len(design) else _perturb(rng, base, step)
            # Rounded before clipping, since bounds need not be round numbers.
            numbers = np.clip((low + point * (high - low)).round(4), low, high).tolist()
            if i < len(design) or numbers not in proposals:
                break
        proposals.append(numbers)
    reason = "a first spread of points over the ranges"
    if i >= len(design):
        base_label = "one of the best proposals so far" if len(order) else "the center of the ranges"
        reason = f"a change of about {100 * step:.0f} % of the ranges to {base_label}"
    return json.dumps({"reasoning": f"By rule, not by thought: {reason}.", **dict(zip(names, numbers, strict=True))})


def _read_proposal_count(prompt: str, pattern: re.Pattern[str] = _COUNT_PATTERN) -> int:
    """Return the number of proposals so far, from a line of the prompt."""
    return (
        0
        if _FIRST_PROPOSAL_TEXT in prompt
        else int(require(pattern.search(prompt), "how many proposals were made so far")[1])
    )


def _read_proposal_number(prompt: str) -> int:
    """Return which proposal of the generation is requested, from 1."""
    if _PARALLEL_TEXT not in prompt:
        return 1
    return int(require(QUESTION_NUMBER_PATTERN.search(prompt), "which proposal of the generation is asked for")[1])


def _read_trials(prompt: str, names: list[str], context: str, low: np.ndarray, high: np.ndarray) -> _Trials:
    measurements: dict[tuple[float, ...], list[tuple[float, float]]] = {}
    records = _RECORD_PATTERN.findall(prompt)
    if not records and _FIRST_PROPOSAL_TEXT not in prompt and EMPTY_TABLE_TEXT not in prompt:
        raise UnreadPromptError("the proposals made so far (`Generation 1: name=0.5 -> payoff 2`)")
    for record_context, values, payoff, count in records:
        numbers = dict(pair.split("=") for pair in values.split(", "))
        if record_context == context:
            vector = tuple(float(numbers[name]) for name in names)
            measurements.setdefault(vector, []).append((float(payoff), float(count or 1)))
    # Equal proposals with separate lines are averaged.
    n_measurements = [sum(n for _, n in payoffs_and_counts) for payoffs_and_counts in measurements.values()]
    payoffs = [
        sum(payoff * n for payoff, n in payoffs_and_counts) / total
        for payoffs_and_counts, total in zip(measurements.values(), n_measurements, strict=True)
    ]
    span = np.where(high > low, high - low, 1.0)
    points = (np.array(list(measurements)).reshape(-1, len(names)) - low) / span
    return _Trials(points, np.array(payoffs), np.array(n_measurements, dtype=np.float64))


def _initial_design(d: int, rng: np.random.Generator) -> np.ndarray:
    """Return the corners of the unit cube and its center.

    If there are many corners, return the center and a Latin hypercube of n points.
    """
    if 2**d <= MAX_CORNERS:
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=d)))
        return np.concatenate([rng.permutation(corners), np.full((1, d), 0.5)])
    n = N_INITIAL - 1
    strata = rng.permuted(np.tile(np.arange(n), (d, 1)), axis=1).T
    return np.concatenate([np.full((1, d), 0.5), (strata + rng.random((n, d))) / n])


def _step_size(n_proposals: int) -> float:
    """Return the size of changes for a proposal after `n_proposals` proposals since the initial design."""
    return float(max(INITIAL_STEP * STEP_DECAY ** max(n_proposals, 0), MIN_STEP))


def _perturb(rng: np.random.Generator, base: np.ndarray, step: float) -> np.ndarray:
    """Return `base` [d] with some of its numbers, at least one, changed, inside the unit cube."""
    is_changed = rng.random(len(base)) < 0.5
    is_changed[rng.integers(len(base))] = True
    return np.clip(np.where(is_changed, base + rng.normal(0.0, step, len(base)), base), 0.0, 1.0)
