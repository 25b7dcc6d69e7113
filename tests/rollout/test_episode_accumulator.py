"""Sums over episodes, compared with sums computed step by step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llmrl.core.metrics import MeanWithinSteps, RatioOfTotals, WeightedMeanStep, derive_quarter_means
from llmrl.core.spaces import EnvSpec
from llmrl.rollout import rollout_buffer
from llmrl.rollout.rollout_buffer import EpisodeAccumulator

T, GAMES, AGENTS = 12, 3, 2
METRICS = {"dirt": "last", "apples": "sum", "zaps": "mean"}
# Quarters, whose sums are exact; a metric may know nothing of a step.
rewards = arrays.arrays(np.float32, (2, T, GAMES, AGENTS), elements=st.integers(-8, 8).map(lambda x: x / 4))
infos = arrays.arrays(np.float32, (3, T, GAMES), elements=st.sampled_from([0.0, 0.25, 3.0, np.nan]))
ends = arrays.arrays(bool, (T, GAMES), elements=st.integers(0, 4).map(lambda x: x == 0))
cuts = st.sets(st.integers(1, T - 1)).map(sorted)


def make_spec(device=None):
    return EnvSpec("toy", GAMES, AGENTS, {}, 2, ("a", "b"), 5, metrics=METRICS, device=device)


def sum_by_steps(reward, base, info, ends):
    """Return (game, returns, base returns, length, summaries, gains, gain times) of episodes, ordered by their ends."""
    summaries, starts = [], np.zeros(GAMES, dtype=int)
    for t, game in np.argwhere(ends):
        steps = slice(starts[game], t + 1), game
        positive = base[steps] > 0
        last, total, mean = info[0][steps][-1], info[1][steps].sum(), info[2][steps].sum() / len(info[2][steps])
        times = (positive * np.arange(len(positive))[:, None]).sum(0)
        summaries.append(
            (game, reward[steps].sum(0), base[steps].sum(0), len(positive), (last, total, mean), positive.sum(0), times)
        )
        starts[game] = t + 1
    return summaries


def check(actual, reference):
    assert len(actual) == len(reference)
    for e, (game, returns, base, length, summaries, gains, times) in zip(actual, reference, strict=True):
        assert (e.game, e.length) == (game, length) and list(e.summaries) == list(METRICS)
        pairs = [(e.returns, returns), (e.base_returns, base), (e.n_gain_steps, gains), (e.gain_step_sums, times)]
        for x, y in [*pairs, (list(e.summaries.values()), summaries)]:
            np.testing.assert_array_equal(np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.float32))


@pytest.mark.slow
@given(rewards, infos, ends, cuts, st.sampled_from([1, 40, 2**22]), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_sums_match_steps(reward, info, over, pieces, block, on_tensors, is_restart):
    """For any division of the steps into rollouts and blocks, and after a resume."""
    spec = make_spec("cpu" if on_tensors else None)
    running, actual = EpisodeAccumulator(spec), []
    convert = torch.from_numpy if on_tensors else np.asarray
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_buffer, "MAX_SUMMED_ELEMENTS", block)
        for a, b in zip([0, *pieces], [*pieces, T], strict=True):
            if is_restart:
                running = EpisodeAccumulator(spec, running.state_dict())
            waiting = np.zeros(GAMES, dtype=bool)
            chunks = (convert(x) for x in (reward[0, a:b], reward[1, a:b], info[:, a:b]))
            actual += running.add(*chunks, over[a:b], waiting)
    check(actual, sum_by_steps(*reward, info, over))


DERIVATIONS = {
    "yield": RatioOfTotals("apples", "shots"),
    "apples": "sum",
    "when": WeightedMeanStep("apples"),
    "shots": "mean",
    "late": MeanWithinSteps("dirt", 2, 5),
    "dirt": "last",
}
amounts = arrays.arrays(np.float32, (3, T, GAMES), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0]))


@pytest.mark.slow
@given(amounts, ends, cuts, st.sampled_from([1, 40, 2**22]), st.booleans())
@settings(max_examples=60)
def test_derived_metrics(rows, over, pieces, block, is_restart):
    """The metrics of each episode match their definitions, and are NaN where these are undefined."""
    spec = EnvSpec("toy", GAMES, AGENTS, {}, 2, ("a", "b"), 5, metrics=DERIVATIONS)
    assert list(spec.per_step) == ["apples", "shots", "dirt"]
    running, actual, zeros = EpisodeAccumulator(spec), [], np.zeros((T, GAMES, AGENTS), dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_buffer, "MAX_SUMMED_ELEMENTS", block)
        for a, b in zip([0, *pieces], [*pieces, T], strict=True):
            if is_restart:
                running = EpisodeAccumulator(spec, running.state_dict())
            chunks = (zeros[a:b], zeros[a:b], rows[:, a:b], over[a:b])
            actual += running.add(*chunks, np.zeros(GAMES, dtype=bool))
    starts = np.zeros(GAMES, dtype=int)
    assert len(actual) == over.sum()
    for episode, (t, game) in zip(actual, np.argwhere(over), strict=True):
        apples, shots, dirt = rows[:, starts[game] : t + 1, game].tolist()
        starts[game] = t + 1
        apple_steps = [i for i, n in enumerate(apples, 1) for _ in range(int(n))]
        reference = {
            "yield": sum(apples) / sum(shots) if sum(shots) else np.nan,
            "apples": sum(apples),
            "when": sum(apple_steps) / len(apple_steps) if apple_steps else np.nan,
            "shots": sum(shots) / len(shots),
            "late": sum(dirt[2:5]) / len(dirt[2:5]) if dirt[2:5] else np.nan,
            "dirt": dirt[-1],
        }
        assert list(episode.summaries) == list(reference)
        assert episode.summaries == pytest.approx(reference, nan_ok=True)


@pytest.mark.parametrize("horizon", [1, 3, 4, 10, 1000])
def test_quarters_part_the_horizon(horizon):
    parts = list(derive_quarter_means("level", horizon).items())
    assert [name for name, _ in parts] == [f"level_quarter_{k}" for k in (1, 2, 3, 4)]
    assert [t for _, part in parts for t in range(part.start, part.stop)] == list(range(horizon))
    assert horizon < 4 or max(p.stop - p.start for _, p in parts) - min(p.stop - p.start for _, p in parts) <= 1


def test_idle_steps_are_ignored():
    running, ones = EpisodeAccumulator(make_spec()), np.ones((4, GAMES, AGENTS), dtype=np.float32)
    info = np.ones((len(METRICS), 4, GAMES), dtype=np.float32)
    ends = np.zeros((4, GAMES), dtype=bool)
    ends[1, 0] = True
    assert [e.length for e in running.add(ones, ones, info, ends, np.array([True, False, True]))] == [2]
    ends[:] = False
    ends[2] = True
    summaries = running.add(ones, ones, info, ends, np.zeros(GAMES, dtype=bool))
    assert [e.length for e in summaries] == [3, 7, 3]
    assert [e.returns.tolist() for e in summaries] == [[3, 3], [7, 7], [3, 3]]
    assert [e.gain_step_sums.tolist() for e in summaries] == [[3, 3], [21, 21], [3, 3]]
    assert [e.summaries["apples"] for e in summaries] == [3, 7, 3]


def test_sums_use_double_precision():
    """A sum of a million steps of 0.1 in float32 has a larger error."""
    spec = EnvSpec("toy", 1, 1, {}, 2, ("a", "b"), 5)
    running, reward = EpisodeAccumulator(spec), np.full((1000, 1, 1), 0.1, dtype=np.float32)
    info = np.zeros((0, 1000, 1), dtype=np.float32)
    ends = np.zeros((1000, 1), dtype=bool)
    for _ in range(99):
        running.add(reward, reward, info, ends, np.zeros(1, dtype=bool))
    ends[-1] = True
    [episode] = running.add(reward, reward, info, ends, np.zeros(1, dtype=bool))
    assert episode.returns[0] == pytest.approx(100_000 * float(np.float32(0.1)), rel=1e-12)
    assert episode.gain_step_sums[0] == 100_000 * 99_999 // 2
