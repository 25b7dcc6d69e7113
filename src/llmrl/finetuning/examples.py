"""From trials to examples: a history to be shown, and better parameters that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.errors import ConfigError
from llmrl.core.pooling import Estimate, Pool, key_of
from llmrl.core.seeding import Seeds
from llmrl.finetuning.trials import Series, Trial

Target = Literal["better", "nearest", "best"]


@dataclass(frozen=True, eq=False)
class Example:
    """A question to a proposer.

    Attributes:
        index: its number, which its random streams are addressed by.
        history: trials to be shown, in the order in which they are shown, at least one.
        target: a trial of other parameters that was better than all of the history; None where none is known.
    """

    index: int
    history: tuple[Trial, ...]
    target: Trial | None

    @property
    def best(self) -> float:
        """The highest value of the history."""
        return max(trial.value for trial in self.history)


def split(series: Sequence[Series], share: float, seeds: Seeds) -> tuple[list[Series], list[Series]]:
    """`series` in two, (to train on, held out): no parameters of the one are shown, or are a target, in the other.

    Of several search runs whole ones are held out; of a single one, and of random trials, parameters with all their
    trials. At least one of either is. Trials of held-out parameters that are elsewhere, too, are left out there.

    Args:
        series: of one task.
        share: of trials or runs to hold out, in (0, 1).
        seeds: which.
    """
    runs = [one for one in series if one.ordered]
    train: list[Series] = []
    held_out: list[Series] = []
    if len(runs) > 1:
        chosen = _chosen(len(runs), share, seeds.numpy("runs"))
        for i, run in enumerate(runs):
            (held_out if i in chosen else train).append(run)
    for i, one in enumerate(series):
        if one.ordered and len(runs) > 1:
            continue
        vectors = list(dict.fromkeys(key_of(trial.vector) for trial in one.trials))
        kept = {vectors[j] for j in _chosen(len(vectors), share, seeds.numpy(f"trials {i}"))}
        held_out.append(replace(one, trials=tuple(t for t in one.trials if key_of(t.vector) in kept)))
        train.append(one)
    out = {key_of(trial.vector) for one in held_out for trial in one.trials}
    return [replace(one, trials=tuple(t for t in one.trials if key_of(t.vector) not in out)) for one in train], held_out


def make_examples(
    series: Sequence[Series],
    n: int,
    fewest: int,
    most: int,
    target: Target,
    seeds: Seeds,
    which: str,
    proposable: Callable[[np.ndarray], bool] = lambda vector: True,
) -> list[Example]:
    """`n` examples, number i of which is a function of (series, seeds, i).

    A history is some trials of one series. Of a search run they are all made before some moment of it, and stand in the
    order in which they were made.

    Args:
        series: to take trials from; longer ones are taken from more often.
        n: examples.
        fewest, most: trials a history, any number between being as likely.
        target: of the trials of all series that are better than all of the history, by the mean over all trials of the
            same parameters, `better` takes any, `nearest` the one that lies nearest to the history's best (in units of
            each parameter's spread), `best` the best.
        seeds: node of the seed tree.
        which: what these are, for messages.
        proposable: whether parameters could be proposed as they are; others are shown, and are no target.

    Raises:
        ConfigError: no series has as many trials.
    """
    usable = [one for one in series if len(one.trials) >= most]
    if not usable:
        longest = max((len(one.trials) for one in series), default=0)
        raise ConfigError(
            f"dataset.examples={most} trials are to be shown in a prompt, and there are at most {longest} {which}; "
            "raise dataset.trials, give more dataset.runs, or lower dataset.examples"
        )
    sizes = np.array([len(one.trials) for one in usable], dtype=np.float64)
    known = _Known([trial for one in series for trial in one.trials], target, proposable)
    examples = []
    for i in range(n):
        rng = seeds.numpy(i)
        one = usable[int(rng.choice(len(usable), p=sizes / sizes.sum()))]
        shown = int(rng.integers(fewest, most + 1))
        until = int(rng.integers(shown, len(one.trials) + 1)) if one.ordered else len(one.trials)
        picked = rng.choice(until, size=shown, replace=False)
        history = tuple(one.trials[j] for j in (np.sort(picked) if one.ordered else picked))
        draw = int(rng.integers(2**31))  # drawn whether it is used or not, so that `target` changes nothing else
        examples.append(Example(i, history, known.target_of(history, draw)))
    return examples


class _Known:
    """All trials of a task, among which targets are looked for.

    Args:
        trials: of all series.
        target: see `make_examples`.
        proposable: see there.
    """

    def __init__(self, trials: Sequence[Trial], target: Target, proposable: Callable[[np.ndarray], bool]) -> None:
        self.trials, self.target = trials, target
        self._values = np.array([each.value for each in _pooled(trials)])
        self._keys = [key_of(trial.vector) for trial in trials]
        self._fit = np.array([proposable(trial.vector) for trial in trials])
        vectors = np.stack([trial.vector for trial in trials])
        spread = vectors.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        self._scaled = vectors / self._scale

    def target_of(self, history: Sequence[Trial], draw: int) -> Trial | None:
        """A trial that is better than all of `history`; None where there is none. `draw` says which, where any will
        do."""
        best = max(history, key=lambda trial: trial.value)
        shown = {key_of(trial.vector) for trial in history}
        better = np.flatnonzero(self._fit & (self._values > best.value))
        better = better[[self._keys[j] not in shown for j in better]]
        if not len(better):
            return None
        if self.target == "best":
            chosen = better[np.argmax(self._values[better])]
        elif self.target == "nearest":
            own = best.vector / self._scale
            chosen = better[np.argmin(((self._scaled[better] - own) ** 2).sum(axis=1))]
        else:
            chosen = better[draw % len(better)]
        return self.trials[int(chosen)]


def _pooled(trials: Sequence[Trial]) -> list[Estimate]:
    """For each trial what all trials of its parameters say."""
    pool = Pool()
    for trial in trials:
        n = len(trial.returns)
        pool.add(trial.vector, trial.value, standard_error_of_mean(trial.returns), n, n)
    return [pool.of(trial.vector) for trial in trials]


def held_out_of(n: int, share: float) -> int:
    """About `share` of `n`, but at least one and not all."""
    return int(np.clip(round(share * n), 1, max(n - 1, 1)))


def _chosen(n: int, share: float, rng: np.random.Generator) -> set[int]:
    return set(rng.permutation(n)[: held_out_of(n, share)].tolist())
