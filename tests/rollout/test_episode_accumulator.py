"""The sums of episodes, against sums made step by step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llmrl.core.spaces import EnvSpec
from llmrl.core.summaries import Entropy, MeanStep, Ratio, Within, quarters
from llmrl.rollout import episode_accumulator
from llmrl.rollout.episode_accumulator import EpisodeAccumulator

T, GAMES, AGENTS = 12, 3, 2
METRICS = {"dirt": "last", "apples": "sum", "zaps": "mean"}
# Quarters, whose sums are exact; a metric may know nothing of a step.
rewards = arrays.arrays(np.float32, (2, T, GAMES, AGENTS), elements=st.integers(-8, 8).map(lambda x: x / 4))
infos = arrays.arrays(np.float32, (3, T, GAMES), elements=st.sampled_from([0.0, 0.25, 3.0, np.nan]))
ends = arrays.arrays(bool, (T, GAMES), elements=st.integers(0, 4).map(lambda x: x == 0))
cuts = st.sets(st.integers(1, T - 1)).map(sorted)


def make_spec(device=None):
    return EnvSpec("toy", GAMES, AGENTS, {}, 2, ("a", "b"), 5, metrics=METRICS, device=device)


def by_steps(reward, base, info, over):
    """(game, returns, base returns, length, summaries, gains, gain times) of each episode, in the order of the ends."""
    found, begun = [], np.zeros(GAMES, dtype=int)
    for t, game in np.argwhere(over):
        own = slice(begun[game], t + 1), game
        gained = base[own] > 0
        last, total, mean = info[0][own][-1], info[1][own].sum(), info[2][own].sum() / len(info[2][own])
        times = (gained * np.arange(len(gained))[:, None]).sum(0)
        found.append(
            (game, reward[own].sum(0), base[own].sum(0), len(gained), (last, total, mean), gained.sum(0), times)
        )
        begun[game] = t + 1
    return found


def check(got, expected):
    assert len(got) == len(expected)
    for e, (game, returns, base, length, summaries, gains, times) in zip(got, expected, strict=True):
        assert (e.game, e.length) == (game, length) and list(e.summaries) == list(METRICS)
        pairs = [(e.returns, returns), (e.base_returns, base), (e.gains, gains), (e.gain_times, times)]
        for x, y in [*pairs, (list(e.summaries.values()), summaries)]:
            np.testing.assert_array_equal(np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.float32))


@pytest.mark.slow
@given(rewards, infos, ends, cuts, st.sampled_from([1, 40, 2**22]), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_sums_are_those_of_the_steps(reward, info, over, pieces, block, on_tensors, resumed):
    """However the steps are cut into rollouts and blocks, and also after a resume."""
    spec = make_spec("cpu" if on_tensors else None)
    running, got = EpisodeAccumulator(spec), []
    as_given = torch.from_numpy if on_tensors else np.asarray
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episode_accumulator, "BLOCK", block)
        for a, b in zip([0, *pieces], [*pieces, T], strict=True):
            if resumed:
                running = EpisodeAccumulator(spec, running.state_dict())
            waiting = np.zeros(GAMES, dtype=bool)
            told = (as_given(x) for x in (reward[0, a:b], reward[1, a:b], info[:, a:b]))
            got += running.add(*told, over[a:b], waiting)
    check(got, by_steps(*reward, info, over))


DERIVED = {
    "yield": Ratio("apples", "shots"),
    "apples": "sum",
    "when": MeanStep("apples"),
    "shots": "mean",
    "late": Within("dirt", 2, 5),
    "dirt": "last",
    "entropy": Entropy(),
}
amounts = arrays.arrays(np.float32, (5, T, GAMES), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0]))


@pytest.mark.slow
@given(amounts, ends, cuts, st.sampled_from([1, 40, 2**22]), st.booleans())
@settings(max_examples=60)
def test_what_follows_from_several_metrics(rows, over, pieces, block, resumed):
    """Of the steps of each episode, by their definitions; NaN where they say nothing."""
    spec = EnvSpec("toy", GAMES, AGENTS, {}, 2, ("a", "b"), 5, metrics=DERIVED)
    assert spec.rows == ("apples", "shots", "dirt", *Entropy().rows) and list(spec.per_step) == list(spec.rows[:3])
    running, got, nothing = EpisodeAccumulator(spec), [], np.zeros((T, GAMES, AGENTS), dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episode_accumulator, "BLOCK", block)
        for a, b in zip([0, *pieces], [*pieces, T], strict=True):
            if resumed:
                running = EpisodeAccumulator(spec, running.state_dict())
            told = (nothing[a:b], nothing[a:b], rows[:, a:b], over[a:b])
            got += running.add(*told, np.zeros(GAMES, dtype=bool))
    begun = np.zeros(GAMES, dtype=int)
    assert len(got) == over.sum()
    for episode, (t, game) in zip(got, np.argwhere(over), strict=True):
        apples, shots, dirt, entropy, agents = rows[:, begun[game] : t + 1, game].tolist()
        begun[game] = t + 1
        eaten = [i for i, n in enumerate(apples, 1) for _ in range(int(n))]
        expected = {
            "yield": sum(apples) / sum(shots) if sum(shots) else np.nan,
            "apples": sum(apples),
            "when": sum(eaten) / len(eaten) if eaten else np.nan,
            "shots": sum(shots) / len(shots),
            "late": sum(dirt[2:5]) / len(dirt[2:5]) if dirt[2:5] else np.nan,
            "dirt": dirt[-1],
            "entropy": sum(entropy) / sum(agents) if sum(agents) else np.nan,
        }
        assert list(episode.summaries) == list(expected)
        assert episode.summaries == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("horizon", [1, 3, 4, 10, 1000])
def test_quarters_part_the_horizon(horizon):
    parts = list(quarters("level", horizon).items())
    assert [name for name, _ in parts] == [f"level_quarter_{k}" for k in (1, 2, 3, 4)]
    assert [t for _, part in parts for t in range(part.start, part.stop)] == list(range(horizon))
    assert horizon < 4 or max(p.stop - p.start for _, p in parts) - min(p.stop - p.start for _, p in parts) <= 1


def test_what_a_game_shows_while_it_waits_counts_nothing():
    running, ones = EpisodeAccumulator(make_spec()), np.ones((4, GAMES, AGENTS), dtype=np.float32)
    info = np.ones((len(METRICS), 4, GAMES), dtype=np.float32)
    over = np.zeros((4, GAMES), dtype=bool)
    over[1, 0] = True
    assert [e.length for e in running.add(ones, ones, info, over, np.array([True, False, True]))] == [2]
    over[:] = False
    over[2] = True
    found = running.add(ones, ones, info, over, np.zeros(GAMES, dtype=bool))
    assert [e.length for e in found] == [3, 7, 3]
    assert [e.returns.tolist() for e in found] == [[3, 3], [7, 7], [3, 3]]
    assert [e.gain_times.tolist() for e in found] == [[3, 3], [21, 21], [3, 3]]
    assert [e.summaries["apples"] for e in found] == [3, 7, 3]


def test_sums_are_of_double_precision():
    """A million steps of 0.1 in float32 are off by far more than this."""
    spec = EnvSpec("toy", 1, 1, {}, 2, ("a", "b"), 5)
    running, reward = EpisodeAccumulator(spec), np.full((1000, 1, 1), 0.1, dtype=np.float32)
    info = np.zeros((0, 1000, 1), dtype=np.float32)
    over = np.zeros((1000, 1), dtype=bool)
    for _ in range(99):
        running.add(reward, reward, info, over, np.zeros(1, dtype=bool))
    over[-1] = True
    [episode] = running.add(reward, reward, info, over, np.zeros(1, dtype=bool))
    assert episode.returns[0] == pytest.approx(100_000 * float(np.float32(0.1)), rel=1e-12)
    assert episode.gain_times[0] == 100_000 * 99_999 // 2
