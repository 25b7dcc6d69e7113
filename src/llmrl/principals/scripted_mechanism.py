"""Scripted replacement of a language model in mechanism design: a random search that reads only the prompt."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.llms.scripted import UnreadPromptError, first_prompt, require
from llmrl.principals.scripted_search import EMPTY_TABLE_TEXT, QUESTION_NUMBER_PATTERN, make_rng_from_text

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
"""Maximum number of corners of the box for which the initial design contains all corners (up to three numbers)."""
N_DESIGN_POINTS = 10
"""Number of points of the initial design for more than three numbers."""
INITIAL_STEP, MIN_STEP = 0.3, 0.03
"""Initial and minimum standard deviation of changes, as a share of each range."""
STEP_DECAY = 0.93
"""Factor on the standard deviation of changes after each proposal."""
N_PARENTS = 3
"""Number of best proposals that are changed, in turn, beginning with the best."""
MIN_KERNEL_WIDTH = 0.05
"""Minimum width of the kernel that averages payoffs, as a share of each range; the usual width is half the step."""
MAX_DRAWS = 20
"""Maximum number of draws of a proposal, which should differ from the other proposals of its generation."""


@dataclass(frozen=True)
class _Trials:
    """Proposals of the context of the prompt, from its history.

    Attributes:
        points: proposals as points of the unit cube, [n, d].
        payoffs: mean payoff of each, [n].
        counts: number of measurements of each, [n].
    """

    points: np.ndarray
    payoffs: np.ndarray
    counts: np.ndarray

    def rank_points(self, width: float) -> np.ndarray:
        """Return the indices [n] of the points in descending order of smoothed payoffs.

        The smoothing is Nadaraya-Watson regression with a Gaussian kernel of `width`, a share of each range. It
        keeps a single high payoff among low ones from ranking high.
        """
        distances = ((self.points[:, None] - self.points[None]) ** 2).mean(-1)
        weights = np.exp(-distances / (2 * width**2)) * self.counts
        return np.argsort(-(weights @ self.payoffs) / weights.sum(1), kind="stable")


def reply(messages: Sequence[Mapping[str, str]], seed: int = 0, note: Callable[[str], None] = lambda text: None) -> str:
    """Return a principal's reply in JSON.

    The first proposals are an initial design. For up to three numbers it has all corners of the box, in random
    order, and the center (a two-level factorial design). For more numbers it has ten points: the center and a Latin
    hypercube (McKay, Beckman & Conover 1979). Later proposals are random changes, of decreasing size, to some numbers
    of the best proposals of this context: proposal 1 of a generation changes the best, proposal 2 the second best,
    proposal 3 the third, proposal 4 the best again, and so on. Earlier proposals are ranked by smoothed payoffs
    (`_Trials`). Proposal k of a generation is computed after proposals 1 to k - 1, so that they differ.

    The rules are symmetric in the numbers and in the two ends of each range, so that no mechanism has an advantage.

    Args:
        messages: the conversation; only its first prompt is used.
        seed: seed of the random draws, together with the prompt.
        note: unused, because these rules apply to every prompt.

    Raises:
        UnreadPromptError: a part of the prompt does not have the format of `principals/prompts`.
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
    # Seeded by what is constant in a context, so that all prompts of the context give the same design.
    design = _make_initial_design(len(names), make_rng_from_text(f"{seed}\0{parameters}\0{context}"))
    step = _compute_step_size(n_proposals - len(design))
    parent_indices = trials.rank_points(max(step / 2, MIN_KERNEL_WIDTH))[:N_PARENTS]
    parents = trials.points[parent_indices] if len(parent_indices) else np.full((1, len(names)), 0.5)
    # All prompts of a generation get the same random numbers.
    rng = make_rng_from_text(f"{seed}\0{QUESTION_NUMBER_PATTERN.sub('', prompt)}")
    proposals: list[list[float]] = []
    for i in range(n_proposals, n_proposals + _read_proposal_number(prompt)):
        step = _compute_step_size(i - len(design))
        parent = parents[(i - n_proposals) % len(parents)]
        for _ in range(MAX_DRAWS):
            point = design[i] if i < len(design) else _perturb(rng, parent, step)
            # Rounded before clipping, because bounds may have more than four decimals.
            numbers = np.clip((low + point * (high - low)).round(4), low, high).tolist()
            if i < len(design) or numbers not in proposals:
                break
        proposals.append(numbers)
    reason = "a first spread of points over the ranges"
    if i >= len(design):
        base_label = "one of the best proposals so far" if len(parent_indices) else "the center of the ranges"
        reason = f"a change of about {100 * step:.0f} % of the ranges to {base_label}"
    return json.dumps({"reasoning": f"By rule, not by thought: {reason}.", **dict(zip(names, numbers, strict=True))})


def _read_proposal_count(prompt: str, pattern: re.Pattern[str] = _COUNT_PATTERN) -> int:
    """Return the number of proposals so far, from the line of the prompt that matches `pattern`."""
    return (
        0
        if _FIRST_PROPOSAL_TEXT in prompt
        else int(require(pattern.search(prompt), "how many proposals were made so far")[1])
    )


def _read_proposal_number(prompt: str) -> int:
    """Return the number of the requested proposal within its generation, from 1."""
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
    # Measurements of equal proposals on separate lines are averaged.
    n_measurements = [sum(n for _, n in payoffs_and_counts) for payoffs_and_counts in measurements.values()]
    payoffs = [
        sum(payoff * n for payoff, n in payoffs_and_counts) / total
        for payoffs_and_counts, total in zip(measurements.values(), n_measurements, strict=True)
    ]
    points = (np.array(list(measurements)).reshape(-1, len(names)) - low) / np.where(high > low, high - low, 1.0)
    return _Trials(points, np.array(payoffs), np.array(n_measurements, dtype=np.float64))


def _make_initial_design(d: int, rng: np.random.Generator) -> np.ndarray:
    """Return the initial design in the unit cube, [n, d]: corners and center, or center and Latin hypercube."""
    if 2**d <= MAX_CORNERS:
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=d)))
        return np.concatenate([rng.permutation(corners), np.full((1, d), 0.5)])
    n = N_DESIGN_POINTS - 1
    strata = rng.permuted(np.tile(np.arange(n), (d, 1)), axis=1).T
    return np.concatenate([np.full((1, d), 0.5), (strata + rng.random((n, d))) / n])


def _compute_step_size(n_proposals: int) -> float:
    """Return the standard deviation of changes in the unit cube after `n_proposals` proposals beyond the design."""
    return float(max(INITIAL_STEP * STEP_DECAY ** max(n_proposals, 0), MIN_STEP))


def _perturb(rng: np.random.Generator, parent: np.ndarray, step: float) -> np.ndarray:
    """Return `parent` [d] with each number changed with probability 1/2, and at least one, clipped to the unit cube."""
    is_changed = rng.random(len(parent)) < 0.5
    is_changed[rng.integers(len(parent))] = True
    return np.clip(np.where(is_changed, parent + rng.normal(0.0, step, len(parent)), parent), 0.0, 1.0)
