"""Training examples made from trials: a history to show, and better parameters as the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import Estimate, PooledEstimates, key_of
from llmrl.core.seeding import Seeds
from llmrl.finetuning.trials import ParameterTrial, Series
from llmrl.statistics.estimators import standard_error_of_mean


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

    If there are several search runs, complete runs are held out. Otherwise, parameters with all their trials are held
    out. At least one is held out and one remains. Trials of held-out parameters are removed from all training series.

    Args:
        series: series of one task.
        share: share of trials or runs to hold out, in (0, 1).
        seeds: seed tree of the selection.
    """
    runs = [trial_series for trial_series in series if trial_series.ordered]
    train: list[Series] = []
    holdout: list[Series] = []
    if len(runs) > 1:
        holdout_indices = _sample_indices(len(runs), share, seeds.numpy("runs"))
        for i, run in enumerate(runs):
            (holdout if i in holdout_indices else train).append(run)
    for i, trial_series in enumerate(series):
        if trial_series.ordered and len(runs) > 1:
            continue
        vectors = list(dict.fromkeys(key_of(trial.vector) for trial in trial_series.trials))
        holdout_keys = {vectors[j] for j in _sample_indices(len(vectors), share, seeds.numpy(f"trials {i}"))}
        holdout.append(
            replace(trial_series, trials=tuple(t for t in trial_series.trials if key_of(t.vector) in holdout_keys))
        )
        train.append(trial_series)
    excluded = {key_of(trial.vector) for trial_series in holdout for trial in trial_series.trials}
    return [
        replace(trial_series, trials=tuple(t for t in trial_series.trials if key_of(t.vector) not in excluded))
        for trial_series in train
    ], holdout


def make_examples(
    series: Sequence[Series],
    n: int,
    min_trials: int,
    max_trials: int,
    seeds: Seeds,
    which: str,
    proposable: Callable[[np.ndarray], bool] = lambda vector: True,
) -> list[ProposalExample]:
    """Return `n` examples, of which number i is a function of (series, seeds, i).

    A history consists of random trials of one series. Trials of a search run are drawn from those before a random
    moment, and are shown in chronological order. The target is a random one of all trials whose parameters have a
    higher mean value than the history's best trial.

    Args:
        series: series of trials, drawn with probability proportional to their length.
        n: number of examples.
        min_trials: lower bound of the uniformly drawn number of trials in a history.
        max_trials: upper bound of this number.
        seeds: node of the seed tree.
        which: name of the trials in error messages.
        proposable: function that says whether parameters could be proposed unchanged; others are shown, but never a
            target.

    Raises:
        ConfigError: no series has `max_trials` trials.
    """
    usable = [source for source in series if len(source.trials) >= max_trials]
    if not usable:
        max_length = max((len(source.trials) for source in series), default=0)
        raise ConfigError(
            f"dataset.examples={max_trials} trials per prompt are needed, but there are at most {max_length} "
            f"{which}; increase dataset.trials, add dataset.runs, or decrease dataset.examples"
        )
    sizes = np.array([len(source.trials) for source in usable], dtype=np.float64)
    candidates = [trial for source in series for trial in source.trials]
    values = np.array([estimate.value for estimate in _pool(candidates)])
    is_proposable = np.array([proposable(trial.vector) for trial in candidates])
    examples = []
    for i in range(n):
        rng = seeds.numpy(i)
        source = usable[int(rng.choice(len(usable), p=sizes / sizes.sum()))]
        size = int(rng.integers(min_trials, max_trials + 1))
        end = int(rng.integers(size, len(source.trials) + 1)) if source.ordered else len(source.trials)
        indices = rng.choice(end, size=size, replace=False)
        history = tuple(source.trials[j] for j in (np.sort(indices) if source.ordered else indices))
        draw = int(rng.integers(2**31))
        examples.append(ProposalExample(i, history, _target(history, candidates, values, is_proposable, draw)))
    return examples


def _target(
    history: Sequence[ParameterTrial],
    candidates: Sequence[ParameterTrial],
    values: np.ndarray,
    is_proposable: np.ndarray,
    draw: int,
) -> ParameterTrial | None:
    """Return a candidate that is better than all of `history`, selected by `draw`; None if there is none.

    `values` [n] are the candidates' values, `is_proposable` [n] tells whether they may be targets.
    """
    best = max(trial.value for trial in history)
    history_keys = {key_of(trial.vector) for trial in history}
    better = [
        j
        for j in np.flatnonzero(is_proposable & (values > best)).tolist()
        if key_of(candidates[j].vector) not in history_keys
    ]
    return candidates[better[draw % len(better)]] if better else None


def _pool(trials: Sequence[ParameterTrial]) -> list[Estimate]:
    """Return for each trial the pooled estimate of all trials of its parameters."""
    pool = PooledEstimates()
    for trial in trials:
        n = len(trial.returns)
        pool.add(trial.vector, trial.value, standard_error_of_mean(trial.returns), n, n)
    return [pool.of(trial.vector) for trial in trials]


def held_out_of(n: int, share: float) -> int:
    """Return about `share` of `n`, at least 1 and, for n > 1, at most n - 1."""
    return int(np.clip(round(share * n), 1, max(n - 1, 1)))


def _sample_indices(n: int, share: float, rng: np.random.Generator) -> set[int]:
    """Draw the indices to hold out of `n`, about `share` of them."""
    return set(rng.permutation(n)[: held_out_of(n, share)].tolist())
