"""Curves and sample efficiency of training: fair to agents whose episodes are short, the same frames for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, only_run_folder, run_experiment
from llmrl.analysis.aggregate import summarize
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.report_tables import efficiency
from llmrl.analysis.runs import read_runs
from llmrl.analysis.scores import ScoreRule, metric_names, series
from llmrl.analysis.training_curves import FrameBudget, TrainingCurves, common_frames, curve, read_training
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.metrics import MetricLog
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.training_episodes import FILE_NAME, TrainingEpisodes, TrainingEpisodeTable, read_training_episodes

pytestmark = pytest.mark.slow

Row = tuple[int, int, int, float]
"""Game, start, length and success of an episode."""

SHORT, HORIZON = 4, 20
PLACES = ("game", "start", "length")


def record(rows: list[Row], games: int, horizon: int | None, begun: Sequence[int] = (0,)) -> TrainingEpisodeTable:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    places = {name: table[:, i].astype(np.int64) for i, name in enumerate(PLACES)}
    return TrainingEpisodeTable(
        games, horizon, np.array(begun), places, {"success": table[:, 3], "length": table[:, 2]}
    )


def lottery(probability: float, games: int, steps: int, stretch: int, seed: int) -> list[Row]:
    """Episodes that succeed after `SHORT` steps or fail after `HORIZON`; games are begun anew every `stretch` steps."""
    rng, rows = np.random.default_rng(seed), []
    for begun in range(0, steps, stretch):
        for game in range(games):
            start = begun
            while True:
                won = rng.random() < probability
                length = SHORT if won else HORIZON
                if start + length > min(begun + stretch, steps):
                    break
                rows.append((game, start, length, float(won)))
                start += length
    return sorted(rows, key=lambda row: (row[1] + row[2], row[0]))


def ended_in(rows: list[Row], first: int, last: int) -> list[float]:
    """Outcomes of the episodes that end in a window of steps: how curves used to be made."""
    return [won for _, start, length, won in rows if first < start + length <= last]


@pytest.mark.parametrize("stretch", [240, 80])
def test_bins_are_unbiased_where_windows_of_ended_episodes_begin_at_one(stretch: int) -> None:
    """Over many runs, each of one game: every bin's mean is the probability, though lengths tell the outcome."""
    probability, steps, runs = 0.4, 240, 3000
    edges = np.arange(0, steps + 1, 20)
    found, windows = [], []
    for seed in range(runs):
        rows = lottery(probability, 1, steps, stretch, seed)
        found.append(TrainingCurves(record(rows, 1, HORIZON, range(0, steps, stretch)), steps).means("success", edges))
        windows.append(ended_in(rows, 0, HORIZON - 1))
    means = np.array(found)
    told = ~np.isnan(means)
    assert (told == told[0]).all()  # which bins are told does not depend on what happened
    assert told[0].sum() == (10 if stretch == 240 else 6)
    error = np.nanstd(means[:, told[0]], axis=0) / np.sqrt(runs)
    assert np.abs(means[:, told[0]].mean(0) - probability).max() < 4 * error.max()
    assert np.mean(np.concatenate(windows)) == 1.0


def test_side_by_side_games_are_bins_of_frames() -> None:
    """Of many games in one run; the mean over frames is that of the told bins."""
    steps, games = 120, 400
    training = TrainingCurves(record(lottery(0.25, games, steps, steps, 0), games, HORIZON), steps)
    middles, means = curve(training, "success", 10 * games)
    assert middles.tolist() == [games * (10 * i + 5) for i in range(8)]
    assert training.frames == games * steps and training.told == games * (steps - 2 * HORIZON + 2)
    assert np.abs(means - 0.25).max() < 0.11 and means.mean() == pytest.approx(0.25, abs=0.04)
    assert training.means("success", np.array([0, 80 * games]))[0] == pytest.approx(means.mean())


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True),
    st.integers(0, 10**6),
    st.sampled_from([100, 60, 35]),
)
def test_bins_are_means_over_frames_one_by_one(games: int, inner: list[int], seed: int, stretch: int) -> None:
    """Against each frame looked at by itself."""
    steps = 100
    rows = lottery(0.5, games, steps, stretch, seed)
    training = TrainingCurves(record(rows, games, HORIZON, range(0, steps, stretch)), steps)
    edges = np.array(sorted({0, games * steps, *(min(x, games * steps) for x in inner)}))
    frames = np.full((steps, games), np.nan)
    for t in range(steps):
        begun = t // stretch * stretch
        end = min(begun + stretch, steps)
        for game in range(games):
            later = [(start, won) for g, start, _, won in rows if g == game and t <= start < end]
            if later and t <= end - 2 * HORIZON + 1:
                frames[t, game] = min(later)[1]
    flat = frames.ravel()
    expected = []
    for first, last in pairwise(edges.tolist()):
        known = flat[first:last][~np.isnan(flat[first:last])]
        expected.append(known.mean() if len(known) >= max(1, 0.5 * (last - first)) else np.nan)
    np.testing.assert_allclose(training.means("success", edges), expected)


def test_without_a_horizon_the_longest_episode_takes_its_place() -> None:
    rows = [(0, 0, 2, 1.0), (0, 2, 5, 3.0), (0, 7, 4, 5.0), (0, 11, 1, 7.0)]
    training = TrainingCurves(record(rows, 1, None), 15)
    assert training.told == 15 - 2 * 5 + 2
    # Frame 0 is judged by the first episode, frames 1 and 2 by the second, 3 to 7 by the third.
    assert training.means("success", np.array([0, 1, 3, 7, 15])).tolist()[:3] == [1.0, 3.0, 5.0]
    assert np.isnan(training.means("success", np.array([7, 15]))[0])
    nothing = TrainingCurves(record([], 1, None), 15)
    assert nothing.told == 0 and np.isnan(nothing.means("success", np.array([0, 10]))[0])


def test_stretches_too_short_for_failures_tell_nothing() -> None:
    """Games are begun anew every 15 steps: only successes ever end, and they must not fill the bins."""
    rows = [(0, 0, SHORT, 1.0), (0, 90, SHORT, 1.0)]
    training = TrainingCurves(record(rows, 1, HORIZON, range(0, 105, 15)), 105)
    assert training.told == 0 and np.isnan(training.means("success", np.arange(0, 106, 1))).all()


def test_a_metric_of_few_episodes_is_the_mean_of_these() -> None:
    rows = [(0, 5 * i, 5, (0.25 if i % 8 == 0 else np.nan)) for i in range(60)]
    training = TrainingCurves(record(rows, 1, 5), 300)
    assert training.means("success", np.array([0, 100, 200])).tolist() == [0.25, 0.25]


def test_episodes_of_which_a_metric_says_nothing_are_left_out() -> None:
    rows = [(0, 5 * i, 5, (1.0, np.nan, 0.0)[i % 3]) for i in range(12)]
    training = TrainingCurves(record(rows, 1, 5), 60)
    # Frames 0; 6 to 10 are judged by successes and failures, 1 to 5 by nothing.
    assert training.means("success", np.array([0, 1, 11])).tolist() == [1.0, 0.0]
    assert np.isnan(training.means("success", np.array([1, 6]))[0])
    assert training.means("length", np.array([0, 50])).tolist() == [5.0]


def write_training(root: Path, overrides: list[str], seed: int, rows: list[Row], steps: int, games: int) -> Path:
    """A finished run with these training episodes."""
    run_ = Run.open(root, "game", {"of": overrides}, [*overrides, f"seed={seed}"], seed)
    with run_:
        file = TrainingEpisodes(run_.folder, games, HORIZON, ["success"])
        file.write([row[:3] for row in rows], [row[3:] for row in rows])
        file.close()
        run_.metrics.log("update", "env_steps", {"loss/policy": 0.0}, env_steps=steps * games, updates=1)
        run_.result = 0.5
    return run_.folder


def test_a_report_compares_all_agents_over_the_same_frames(tmp_path: Path) -> None:
    """Two agents that succeed equally often, one with few games and long training: bins and budget are the task's."""
    games, probability = {"agent=a": 2, "agent=b": 50}, 0.5
    for agent, n in games.items():
        for seed in range(6):
            steps = 4000 // n * (2 if agent == "agent=a" else 1)
            rows = lottery(probability, n, steps, steps, 100 * n + seed)
            write_training(tmp_path, [agent], seed, rows, steps, n)
    report = summarize(tmp_path, ReportSettings(curves=("train/success",)))
    [section] = report.sections
    [drawn] = section.curves
    budget, width = 50 * (80 - 2 * HORIZON + 2), 4000 // 50
    assert all(np.unique(np.diff(line.places)).tolist() == [width] for line in drawn.lines)
    assert all(line.places[0] == width / 2 for line in drawn.lines)
    assert section.notes[-1].endswith(f"Sample efficiency is the mean over the first {budget:,} frames.")
    table = efficiency(section, "game")
    assert [row[:2] for row in table.rows] == [["agent=a", "6 of 6"], ["agent=b", "6 of 6"]]
    for numbers in section.efficiency:
        [values] = numbers.scores
        assert abs(values.mean() - probability) < 0.08 and len(values) == 6
        assert numbers.estimates["mean"].low <= values.mean() <= numbers.estimates["mean"].high
    folders = [run_.folder for run_ in read_runs(tmp_path)]
    assert common_frames(folders, None, None) == FrameBudget(budget, width)
    # As the score of a report, it is the same number.
    ruled = summarize(tmp_path, ReportSettings(ScoreRule("train/success")))
    for scored, told in zip(ruled.sections[0].numbers, section.efficiency, strict=True):
        assert scored.scores[0].tolist() == told.scores[0].tolist()
    short = summarize(tmp_path, ReportSettings(budget=1000, width=500, curves=("train/success",)))
    assert short.sections[0].curves[0].lines[0].places[:2].tolist() == [250, 750]
    far = summarize(tmp_path, ReportSettings(ScoreRule("train/success", budget=5000), budget=5000))
    assert [len(numbers.pooled) for numbers in far.sections[0].numbers] == [6, 0]
    assert any(f"the first {budget:,} frames of training, of 5,000" in left.reason for left in far.excluded)
    with pytest.raises(ConfigError, match="--bin=0"):
        summarize(tmp_path, ReportSettings(width=0))


def test_last_share_of_the_frames(tmp_path: Path) -> None:
    rows = [(0, 20 * i, 20, float(i >= 8)) for i in range(12)]
    folder = write_training(tmp_path, [], 0, rows, 238, 1)
    [record_] = read_runs(tmp_path)  # tells of 200 frames, of which those from 141 on are judged by successes
    assert ScoreRule("train/success").score(record_) == pytest.approx(59 / 200)
    assert ScoreRule("train/success", 0.4).score(record_) == pytest.approx(59 / 80)
    assert ScoreRule("train/success", 0.5, 140).score(record_) == 0.0
    assert "of 201 asked for" in str(ScoreRule("train/success", budget=201).score(record_))
    assert ScoreRule("train/length").score(record_) == 20
    assert metric_names([record_]) == ["loss/policy", "train/length", "train/success"]
    places, values = series(folder, "train/success", width=40)
    assert places.tolist() == [20, 60, 100, 140, 180]
    assert values.tolist() == pytest.approx([0, 0, 0, 19 / 40, 1])
    with pytest.raises(RunFolderError, match="over environment steps alone"):
        series(folder, "train/success", "seconds")


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    folder = write_training(tmp_path, [], 0, [(0, 0, 4, 1.0)], 40, 1)
    with (folder / FILE_NAME).open("a") as file:
        file.write("0\t4\t4\tnan\n0\t0\t")  # the last is still being written
    found = read_training_episodes(folder)
    assert found is not None and np.isnan(found.metrics["success"][1]) and len(found.places["game"]) == 2
    with (folder / FILE_NAME).open("a") as file:
        file.write("nonsense\t3\n")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_training(folder)
    [run_] = read_runs(tmp_path)
    assert "is damaged" in str(ScoreRule("train/success").score(run_))


def test_stopped_and_gone_on_with_it_is_the_same_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between evaluations, with episodes in progress; what was written after the checkpoint is cut off."""
    steps = ("learn.env_steps=600", "learn.rollout_steps=5", "learn.evaluate_every=7", "learn.evaluate_episodes=1")
    env = {"n_envs": 5, "probability": 0.5}
    whole = trained(tmp_path / "whole", env, *steps)
    log = MetricLog.log

    def log_and_stop(self: MetricLog, kind: Any, x: Any, metrics: Any, **counters: int) -> None:
        log(self, kind, x, metrics, **counters)
        if kind == "update" and counters["updates"] in (4, 10):
            os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(MetricLog, "log", log_and_stop)
            trained(tmp_path / "stopped", env, *steps)
        with (only_run_folder(tmp_path / "stopped") / FILE_NAME).open("a") as file:
            file.write("# begun anew at step 1\n0\t999\t4\t1\t1\t1\n0\t99")
    stopped = trained(tmp_path / "stopped", env, *steps)
    assert (stopped / FILE_NAME).read_bytes() == (whole / FILE_NAME).read_bytes()
    found = read_training_episodes(whole)
    assert found is not None and (found.games, found.horizon) == (5, HORIZON)
    assert found.begun.tolist() == [0, 35, 70, 105]
    assert list(found.metrics) == ["return", "base_return", "success", "length"]
    for game in range(5):  # episodes of a game follow each other without a gap
        for begun in (0, 35, 70, 105):
            starts = found.places["start"]
            mine = (found.places["game"] == game) & (begun <= starts) & (starts < begun + 35)
            start, length = starts[mine], found.places["length"][mine]
            assert not len(start) or (start == begun + np.cumsum(length) - length).all()


def trained(root: Path, env: dict[str, Any], *overrides: str) -> Path:
    config = compose("agent=ppo", "trusted_modules=[lottery_game]", *overrides)
    config["env"] = {"_target_": "lottery_game.Lottery", "horizon": HORIZON, "short": SHORT, **env}
    run_experiment({**config, "output_root": str(root), "name": "lottery"}, [])
    return only_run_folder(root)


def test_a_run_whose_success_never_changes_has_a_flat_curve(tmp_path: Path) -> None:
    """What learning records of a real run; the rollouts are shorter than failures."""
    steps = ("learn.env_steps=72000", "learn.rollout_steps=15", "learn.evaluate_every=8", "learn.evaluate_episodes=1")
    folder = trained(tmp_path, {"n_envs": 300, "probability": 0.5}, *steps, "agent.ppo.epochs=1")
    _, values = series(folder, "train/success", width=6000)
    assert len(values) >= 6 and np.abs(values - 0.5).max() < 0.12
    ended = series(folder, "ended/success")[1]
    # Of the episodes that ended in a rollout: only successes, when all games have just begun.
    assert ended[0] == ended[8] == 1.0 and ended.mean() > 0.54
    training = read_training(folder)
    assert training is not None and training.steps == 240
    assert training.episodes.begun.tolist() == [0, 120]
    starts = training.episodes.places["start"]
    ends = starts + training.episodes.places["length"]
    assert (ends <= 240).all() and (ends[starts < 120] <= 120).all()
