"""The scripted principal: a small deterministic search that reads what it knows from the prompt, as a model would."""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np

_PARAMETER = re.compile(r"^- (\S+): from (\S+) to (\S+) \(", re.MULTILINE)
_CONTEXT = re.compile(r"^Context of this generation: (.+)$", re.MULTILINE)
_MADE = re.compile(r"^Proposals made so far: (\d+)$", re.MULTILINE)
_MADE_HERE = re.compile(r"^Proposals made so far in this context: (\d+)$", re.MULTILINE)
_NUMBER = re.compile(r"this is number (\d+) of \d+")
_GENERATION = re.compile(
    r"^Generation \d+(?:, proposal \d+)?(?: \[context: (.+?)\])?: (.+?) -> payoff ([^\s;]+)", re.MULTILINE
)

STEP = 0.3
"""Standard deviation of the first perturbation, as a share of each range."""
SHRINK = 0.93
"""Factor on the step for each further proposal."""
SMALLEST_STEP = 0.03
TRIES = 20
"""Changes drawn for a proposal before it may repeat another one of its generation (bounds may leave no choice)."""


def reply(prompt: str) -> str | None:
    """A principal's answer in JSON; None if `prompt` is not a principal's.

    First a spread of points (the centre, all numbers lowest, each number highest with the others lowest), then
    random changes, of ever smaller size, to the best proposal of this context that the prompt still shows (to the
    centre if it shows none). Proposals of one generation differ: number k is worked out after numbers 1 to k - 1.
    """
    parameters = _PARAMETER.findall(prompt)
    if not parameters or "You are the principal" not in prompt:
        return None
    names = [name for name, _, _ in parameters]
    low = np.array([float(bound) for _, bound, _ in parameters])
    high = np.array([float(bound) for _, _, bound in parameters])
    spread = [(low + high) / 2, low, *(np.where(np.arange(len(low)) == i, high, low) for i in range(len(low)))]
    made = _made(prompt)
    best, payoff = max(_seen(prompt, names), key=lambda pair: pair[1], default=(spread[0], None))
    rng = _generator(prompt)
    taken: list[list[float]] = []
    for i in range(made, made + _number(prompt)):
        step = max(STEP * SHRINK ** (i - len(spread)), SMALLEST_STEP)
        for _ in range(TRIES):
            vector = spread[i] if i < len(spread) else _perturb(rng, best, low, high, step)
            # Rounded before it is clipped: a bound need not be a round number.
            numbers = np.clip(vector.round(4), low, high).tolist()
            if i < len(spread) or numbers not in taken:
                break
        taken.append(numbers)
    why = "a first spread of points over the ranges"
    if i >= len(spread):
        base = "the centre of the ranges" if payoff is None else f"the best numbers so far, which gave {payoff:g}"
        why = f"a change of about {100 * step:.0f} % of the ranges to {base}"
    return json.dumps({"reasoning": f"By rule, not by thought: {why}.", **dict(zip(names, numbers, strict=True))})


def _made(prompt: str) -> int:
    """Proposals so far, in this context where there are contexts."""
    match = _MADE_HERE.search(prompt) or _MADE.search(prompt)
    return int(match.group(1)) if match else 0


def _number(prompt: str) -> int:
    """Which of the generation's proposals is asked for, from 1."""
    match = _NUMBER.search(prompt)
    return int(match.group(1)) if match else 1


def _seen(prompt: str, names: list[str]) -> list[tuple[np.ndarray, float]]:
    """The proposals of this context that the prompt shows, with their payoffs."""
    match = _CONTEXT.search(prompt)
    here = match.group(1) if match else ""
    seen = []
    for context, values, payoff in _GENERATION.findall(prompt):
        numbers = dict(pair.split("=") for pair in values.split(", "))
        if context == here:
            seen.append((np.array([float(numbers[name]) for name in names]), float(payoff)))
    return seen


def _generator(prompt: str) -> np.random.Generator:
    """The same for all questions of a generation."""
    digest = hashlib.sha256(_NUMBER.sub("", prompt).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))


def _perturb(rng: np.random.Generator, best: np.ndarray, low: np.ndarray, high: np.ndarray, step: float) -> np.ndarray:
    """`best` with some of its numbers, at least one, changed."""
    changed = rng.random(len(best)) < 0.5
    changed[rng.integers(len(best))] = True
    return np.where(changed, best + rng.normal(0.0, step, len(best)) * (high - low), best)
