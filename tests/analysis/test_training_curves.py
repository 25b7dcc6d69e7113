"""Training curves and sample efficiency over equal numbers of frames, without bias by episode length."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, find_run_folder, run_experiment
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.report_tables import build_efficiency_table
from llmrl.analysis.scores import ScoreRule, list_metric_names, read_series
from llmrl.analysis.training_curves import (
    FrameBudget,
    TrainingHistory,
    compute_binned_curve,
    find_frame_budget,
    read_training_history,
)
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.run_records import read_runs
from llmrl.run.metrics import MetricLog
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.training_episodes import FILE_NAME, TrainingEpisodes, TrainingEpisodeTable, read_training_episodes

pytestmark = pytest.mark.slow

Row = tuple[int, int, int, float]
"""Game, start, length and success of an episode."""

SHORT, HORIZON = 4, 20
PLACES = ("game", "start", "length")


def record(
    rows: list[Row], games: int, horizon: int | None, start_frames: Sequence[int] = (0,)
) -> TrainingEpisodeTable:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    places = {name: table[:, i].astype(np.int64) for i, name in enumerate(PLACES)}
    return TrainingEpisodeTable(
        games, horizon, np.array(start_frames), places, {"success": table[:, 3], "length": table[:, 2]}
    )


def lottery(probability: float, games: int, steps: int, stretch: int, seed: int) -> list[Row]:
    """Return episodes that succeed after `SHORT` steps or fail after `HORIZON`; games restart every `stretch` steps."""
    rng, rows = np.random.default_rng(seed), []
    for start_frames in range(0, steps, stretch):
        for game in range(games):
            start = start_frames
            while True:
                success = rng.random() < probability
                length = SHORT if success else HORIZON
                if start + length > min(start_frames + stretch, steps):
                    break
                rows.append((game, start, length, float(success)))
                start += length
    return sorted(rows, key=lambda row: (row[1] + row[2], row[0]))


def select_completed(rows: list[Row], first: int, last: int) -> list[float]:
    """Return the outcomes of episodes that end in a window of steps, the former method."""
    return [success for _, start, length, success in rows if first < start + length <= last]


@pytest.mark.parametrize("stretch", [240, 80])
def test_bins_have_no_length_bias(stretch: int) -> None:
    """Check over many runs that the mean of each bin is the probability, although lengths depend on the outcome."""
    probability, steps, runs = 0.4, 240, 3000
    edges = np.arange(0, steps + 1, 20)
    record_read, windows = [], []
    for seed in range(runs):
        rows = lottery(probability, 1, steps, stretch, seed)
        record_read.append(
            TrainingHistory(record(rows, 1, HORIZON, range(0, steps, stretch)), steps).compute_means("success", edges)
        )
        windows.append(select_completed(rows, 0, HORIZON - 1))
    means = np.array(record_read)
    has_mean = ~np.isnan(means)
    assert (has_mean == has_mean[0]).all()  # which bins are told does not depend on what happened
    assert has_mean[0].sum() == (10 if stretch == 240 else 6)
    error = np.nanstd(means[:, has_mean[0]], axis=0) / np.sqrt(runs)
    assert np.abs(means[:, has_mean[0]].mean(0) - probability).max() < 4 * error.max()
    assert np.mean(np.concatenate(windows)) == 1.0


def test_parallel_games_are_binned_by_frames() -> None:
    """Use many games in one run; the mean over frames equals that of the bins."""
    steps, games = 120, 400
    training = TrainingHistory(record(lottery(0.25, games, steps, steps, 0), games, HORIZON), steps)
    middles, means = compute_binned_curve(training, "success", 10 * games)
    assert middles.tolist() == [games * (10 * i + 5) for i in range(8)]
    assert training.n_frames == games * steps and training.n_covered_frames == games * (steps - 2 * HORIZON + 2)
    assert np.abs(means - 0.25).max() < 0.11 and means.mean() == pytest.approx(0.25, abs=0.04)
    assert training.compute_means("success", np.array([0, 80 * games]))[0] == pytest.approx(means.mean())


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True),
    st.integers(0, 10**6),
    st.sampled_from([100, 60, 35]),
)
def test_bins_are_frame_weighted_means(games: int, inner: list[int], seed: int, stretch: int) -> None:
    """Compare with a computation frame by frame."""
    steps = 100
    rows = lottery(0.5, games, steps, stretch, seed)
    training = TrainingHistory(record(rows, games, HORIZON, range(0, steps, stretch)), steps)
    edges = np.array(sorted({0, games * steps, *(min(x, games * steps) for x in inner)}))
    frames = np.full((steps, games), np.nan)
    for t in range(steps):
        start_frames = t // stretch * stretch
        end = min(start_frames + stretch, steps)
        for game in range(games):
            successes = [(start, success) for g, start, _, success in rows if g == game and t <= start < end]
            if successes and t <= end - 2 * HORIZON + 1:
                frames[t, game] = min(successes)[1]
    flat = frames.ravel()
    expected = []
    for first, last in pairwise(edges.tolist()):
        finite = flat[first:last][~np.isnan(flat[first:last])]
        expected.append(finite.mean() if len(finite) >= max(1, 0.5 * (last - first)) else np.nan)
    np.testing.assert_allclose(training.compute_means("success", edges), expected)


def test_longest_episode_replaces_missing_horizon() -> None:
    rows = [(0, 0, 2, 1.0), (0, 2, 5, 3.0), (0, 7, 4, 5.0), (0, 11, 1, 7.0)]
    training = TrainingHistory(record(rows, 1, None), 15)
    assert training.n_covered_frames == 15 - 2 * 5 + 2
    # Frame 0 is judged by the first episode, frames 1 and 2 by the second, 3 to 7 by the third.
    assert training.compute_means("success", np.array([0, 1, 3, 7, 15])).tolist()[:3] == [1.0, 3.0, 5.0]
    assert np.isnan(training.compute_means("success", np.array([7, 15]))[0])
    empty_history = TrainingHistory(record([], 1, None), 15)
    assert empty_history.n_covered_frames == 0 and np.isnan(
        empty_history.compute_means("success", np.array([0, 10]))[0]
    )


def test_short_segments_are_missing() -> None:
    """Restart games every 15 steps, so that only successes end; they must not fill the bins."""
    rows = [(0, 0, SHORT, 1.0), (0, 90, SHORT, 1.0)]
    training = TrainingHistory(record(rows, 1, HORIZON, range(0, 105, 15)), 105)
    assert training.n_covered_frames == 0 and np.isnan(training.compute_means("success", np.arange(0, 106, 1))).all()


def test_rare_metric_averages_its_episodes() -> None:
    rows = [(0, 5 * i, 5, (0.25 if i % 8 == 0 else np.nan)) for i in range(60)]
    training = TrainingHistory(record(rows, 1, 5), 300)
    assert training.compute_means("success", np.array([0, 100, 200])).tolist() == [0.25, 0.25]


def test_skips_episodes_missing_metric() -> None:
    rows = [(0, 5 * i, 5, (1.0, np.nan, 0.0)[i % 3]) for i in range(12)]
    training = TrainingHistory(record(rows, 1, 5), 60)
    # Frames 0; 6 to 10 are judged by successes and failures, 1 to 5 by nothing.
    assert training.compute_means("success", np.array([0, 1, 11])).tolist() == [1.0, 0.0]
    assert np.isnan(training.compute_means("success", np.array([1, 6]))[0])
    assert training.compute_means("length", np.array([0, 50])).tolist() == [5.0]


def write_training(root: Path, overrides: list[str], seed: int, rows: list[Row], steps: int, games: int) -> Path:
    """Write a finished run with these training episodes."""
    run_ = Run.open(root, "game", {"of": overrides}, [*overrides, f"seed={seed}"], seed)
    with run_:
        file = TrainingEpisodes(run_.folder, games, HORIZON, ["success"])
        file.write_episodes([row[:3] for row in rows], [row[3:] for row in rows])
        file.close()
        run_.metrics.log("update", "env_steps", {"loss/policy": 0.0}, env_steps=steps * games, updates=1)
        run_.result = 0.5
    return run_.folder


def test_report_compares_agents_by_frames(tmp_path: Path) -> None:
    """Compare two equally good agents with different numbers of games: bins and budget belong to the task."""
    games, probability = {"agent=a": 2, "agent=b": 50}, 0.5
    for agent, n in games.items():
        for seed in range(6):
            steps = 4000 // n * (2 if agent == "agent=a" else 1)
            rows = lottery(probability, n, steps, steps, 100 * n + seed)
            write_training(tmp_path, [agent], seed, rows, steps, n)
    report = compute_report(tmp_path, ReportSettings(curves=("train/success",)))
    [section] = report.sections
    [plotted] = section.curves
    budget, width = 50 * (80 - 2 * HORIZON + 2), 4000 // 50
    assert all(np.unique(np.diff(line.x)).tolist() == [width] for line in plotted.curve_by_group.values())
    assert all(line.x[0] == width / 2 for line in plotted.curve_by_group.values())
    assert f" {budget:,} frames" in section.notes[-1]
    table = build_efficiency_table(section)
    assert [row[:2] for row in table.rows] == [["agent=a", "6 of 6"], ["agent=b", "6 of 6"]]
    for numbers in section.efficiency:
        values = numbers.scores
        assert abs(values.mean() - probability) < 0.08 and len(values) == 6
        assert numbers.estimates["mean"].low <= values.mean() <= numbers.estimates["mean"].high
    folders = [run_.folder for run_ in read_runs(tmp_path)]
    assert find_frame_budget(folders, None, None) == FrameBudget(budget, width)
    # As the score of a report, it is the same number.
    ruled_report = compute_report(tmp_path, ReportSettings(ScoreRule("train/success")))
    for score, has_mean in zip(ruled_report.sections[0].summaries, section.efficiency, strict=True):
        assert score.scores.tolist() == has_mean.scores.tolist()
    short = compute_report(tmp_path, ReportSettings(budget=1000, bin_width=500, curves=("train/success",)))
    [line, *_] = short.sections[0].curves[0].curve_by_group.values()
    assert line.x[:2].tolist() == [250, 750]
    long_report = compute_report(tmp_path, ReportSettings(ScoreRule("train/success", budget=5000), budget=5000))
    assert [len(numbers.scores) for numbers in long_report.sections[0].summaries] == [6, 0]
    assert any(re.search(f" {budget:,} frames .* 5,000 ", run_.reason) for run_ in long_report.excluded)
    with pytest.raises(ConfigError, match="--bin=0"):
        compute_report(tmp_path, ReportSettings(bin_width=0))


def test_tail_fraction_of_frames(tmp_path: Path) -> None:
    rows = [(0, 20 * i, 20, float(i >= 8)) for i in range(12)]
    folder = write_training(tmp_path, [], 0, rows, 238, 1)
    [record_] = read_runs(tmp_path)  # tells of 200 frames, of which those from 141 on are judged by successes
    assert ScoreRule("train/success").score(record_) == pytest.approx(59 / 200)
    assert ScoreRule("train/success", 0.4).score(record_) == pytest.approx(59 / 80)
    assert ScoreRule("train/success", 0.5, 140).score(record_) == 0.0
    assert "of 201 requested" in str(ScoreRule("train/success", budget=201).score(record_))
    assert ScoreRule("train/length").score(record_) == 20
    assert list_metric_names([record_]) == ["loss/policy", "train/length", "train/success"]
    places, values = read_series(folder, "train/success", bin_width=40)
    assert places.tolist() == [20, 60, 100, 140, 180]
    assert values.tolist() == pytest.approx([0, 0, 0, 19 / 40, 1])
    with pytest.raises(RunFolderError, match="environment steps"):
        read_series(folder, "train/success", "seconds")


def test_reports_corrupt_record(tmp_path: Path) -> None:
    folder = write_training(tmp_path, [], 0, [(0, 0, 4, 1.0)], 40, 1)
    with (folder / FILE_NAME).open("a") as file:
        file.write("0\t4\t4\tnan\n0\t0\t")  # the last is still being written
    record_read = read_training_episodes(folder)
    assert (
        record_read is not None
        and np.isnan(record_read.metrics["success"][1])
        and len(record_read.indices["game"]) == 2
    )
    with (folder / FILE_NAME).open("a") as file:
        file.write("nonsense\t3\n")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_training_history(folder)
    [run_] = read_runs(tmp_path)
    assert "is damaged" in str(ScoreRule("train/success").score(run_))


def test_resume_reproduces_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop between evaluations; lines after the checkpoint are removed."""
    steps = ("learn.env_steps=600", "learn.rollout_steps=5", "learn.evaluation_interval=7", "learn.evaluate_episodes=1")
    env = {"n_envs": 5, "probability": 0.5}
    reference = train(tmp_path / "whole", env, *steps)
    log = MetricLog.log

    def log_and_stop(self: MetricLog, kind: Any, x: Any, metrics: Any, **counters: int) -> None:
        log(self, kind, x, metrics, **counters)
        if kind == "update" and counters["updates"] in (4, 10):
            os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(MetricLog, "log", log_and_stop)
            train(tmp_path / "stopped", env, *steps)
        with (find_run_folder(tmp_path / "stopped") / FILE_NAME).open("a") as file:
            file.write("# begun anew at step 1\n0\t999\t4\t1\t1\t1\n0\t99")
    stopped = train(tmp_path / "stopped", env, *steps)
    assert (stopped / FILE_NAME).read_bytes() == (reference / FILE_NAME).read_bytes()
    record_read = read_training_episodes(reference)
    assert record_read is not None and (record_read.n_games, record_read.horizon) == (5, HORIZON)
    assert record_read.reset_steps.tolist() == [0, 35, 70, 105]
    assert list(record_read.metrics) == ["return", "base_return", "success", "length"]
    for game in range(5):  # episodes of a game follow each other without a gap
        for start_frames in (0, 35, 70, 105):
            starts = record_read.indices["start"]
            mine = (record_read.indices["game"] == game) & (start_frames <= starts) & (starts < start_frames + 35)
            start, length = starts[mine], record_read.indices["length"][mine]
            assert not len(start) or (start == start_frames + np.cumsum(length) - length).all()


def train(root: Path, env: dict[str, Any], *overrides: str) -> Path:
    config = compose("agent=ppo", "trusted_modules=[lottery_game]", *overrides)
    config["env"] = {"_target_": "lottery_game.Lottery", "horizon": HORIZON, "short": SHORT, **env}
    run_experiment({**config, "output_root": str(root), "name": "lottery"}, [])
    return find_run_folder(root)


def test_constant_success_gives_flat_curve(tmp_path: Path) -> None:
    """Use a real run whose rollouts are shorter than failed episodes."""
    steps = (
        "learn.env_steps=72000",
        "learn.rollout_steps=15",
        "learn.evaluation_interval=8",
        "learn.evaluate_episodes=1",
    )
    folder = train(tmp_path, {"n_envs": 300, "probability": 0.5}, *steps, "agent.ppo.epochs=1")
    _, values = read_series(folder, "train/success", bin_width=6000)
    assert len(values) >= 6 and np.abs(values - 0.5).max() < 0.12
    series_values = read_series(folder, "episode/success")[1]
    # Of the episodes that ended in a rollout: only successes, when all games have just begun.
    assert series_values[0] == series_values[8] == 1.0 and series_values.mean() > 0.54
    training = read_training_history(folder)
    assert training is not None and training.n_steps == 240
    assert training.episodes.reset_steps.tolist() == [0, 120]
    starts = training.episodes.indices["start"]
    ends = starts + training.episodes.indices["length"]
    assert (ends <= 240).all() and (ends[starts < 120] <= 120).all()
