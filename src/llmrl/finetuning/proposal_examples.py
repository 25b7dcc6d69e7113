"""Training examples from trials: a history to show, and known better parameters as the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.errors import ConfigError
from llmrl.core.pooling import Estimate, PooledEstimates, key_of
from llmrl.core.seeding import Seeds
from llmrl.finetuning.trials import ParameterTrial, Series

Target = Literal["better", "nearest", "best"]


@dataclass(frozen=True, eq=False)
class ProposalExample:
    """Example of a proposer's task.

    Attributes:
        index: number of the example, which names its random streams.
        history: trials to show, in order, at least one.
        target: trial of other parameters that is better than all of the history; None if none is known.
    """

    index: int
    history: tuple[ParameterTrial, ...]
    target: ParameterTrial | None

    @property
    def best(self) -> float:
        """Highest value of the history."""
        return max(trial.value for trial in self.history)


def split(series: Sequence[Series], share: float, seeds: Seeds) -> tuple[list[Series], list[Series]]:
    """Split `series` into (training, held out) without common parameters.

    Of several search runs, whole runs are held out; of a single run, and of random trials, parameters with all their
    trials. At least one is held out and one kept. Trials of held-out parameters are removed from all training series.

    Args:
        series: series of one task.
        share: share of trials or runs to hold out, in (0, 1).
        seeds: seed tree of the selection.
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
) -> list[ProposalExample]:
    """Return `n` examples, of which number i is a function of (series, seeds, i).

    A history consists of random trials of one series. Trials of a search run are drawn from those before a random
    moment, and are shown in chronological order.

    Args:
        series: series of trials, drawn with probability proportional to their length.
        n: number of examples.
        fewest, most: bounds of the uniformly drawn number of trials in a history.
        target: choice among all trials whose parameters have a higher mean value than the history's best trial:
            `better`: a random one; `nearest`: the nearest to that best trial, in units of each parameter's standard
            deviation; `best`: the best.
        seeds: node of the seed tree.
        which: name of the trials in error messages.
        proposable: function that says whether parameters could be proposed unchanged; others are shown, but never a
            target.

    Raises:
        ConfigError: no series has `most` trials.
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
        draw = int(rng.integers(2**31))  # always drawn, so that `target` changes nothing else
        examples.append(ProposalExample(i, history, known.target_of(history, draw)))
    return examples


class _Known:
    """All trials of a task, as candidates for targets.

    Args:
        trials: trials of all series.
        target, proposable: see `make_examples`.
    """

    def __init__(
        self, trials: Sequence[ParameterTrial], target: Target, proposable: Callable[[np.ndarray], bool]
    ) -> None:
        self.trials, self.target = trials, target
        self._values = np.array([each.value for each in _pooled(trials)])
        self._keys = [key_of(trial.vector) for trial in trials]
        self._fit = np.array([proposable(trial.vector) for trial in trials])
        vectors = np.stack([trial.vector for trial in trials])
        spread = vectors.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        self._scaled = vectors / self._scale

    def target_of(self, history: Sequence[ParameterTrial], draw: int) -> ParameterTrial | None:
        """Return a trial that is better than all of `history`; None if there is none. `draw` selects a `better` one."""
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


def _pooled(trials: Sequence[ParameterTrial]) -> list[Estimate]:
    """Return for each trial the pooled estimate of all trials of its parameters."""
    pool = PooledEstimates()
    for trial in trials:
        n = len(trial.returns)
        pool.add(trial.vector, trial.value, standard_error_of_mean(trial.returns), n, n)
    return [pool.of(trial.vector) for trial in trials]


def held_out_of(n: int, share: float) -> int:
    """Return about `share` of `n`, at least 1 and, for n > 1, at most n - 1."""
    return int(np.clip(round(share * n), 1, max(n - 1, 1)))


def _chosen(n: int, share: float, rng: np.random.Generator) -> set[int]:
    return set(rng.permutation(n)[: held_out_of(n, share)].tolist())
