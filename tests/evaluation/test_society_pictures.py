"""Pictures of societies: all values are shown, and different values look different."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.frames import scale_to_width
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.evaluation import videos
from llmrl.evaluation.society_pictures import (
    SIDE_BY_SIDE_SOCIETY_WIDTH,
    SINGLE_SOCIETY_WIDTH,
    EpisodeMoment,
    PictureSettings,
    SocietyEpisode,
    SocietyPictures,
)

COLORS = np.array([[220, 40, 40], [40, 40, 220], [250, 150, 20]], np.uint8)
SETTING = PictureSettings(10, "mean of the agents' payoffs", "an apple 1", COLORS)
GREY = np.full((21, 30, 3), 90, np.uint8)


def society(
    payoffs: np.ndarray, levels: dict[str, list[float]], world: np.ndarray = GREY, title: str = "a"
) -> SocietyEpisode:
    """Return a society with as many moments as `payoffs` [n, n_agents] has rows."""
    moments = [
        EpisodeMoment(
            i, float(row.mean()), row, {"apples eaten": 3.0 * i}, {k: x[i] for k, x in levels.items()} if i else {}
        )
        for i, row in enumerate(payoffs)
    ]
    return SocietyEpisode(title, "What is done.", [world] * len(moments), moments)


def has(picture: np.ndarray, color) -> int:
    """Count the pixels of a color."""
    return int((picture == np.array(color)).all(-1).sum())


def test_bar_lengths_match_payoffs():
    payoffs_gained = np.array([[0.0, 0, 0], [10, 5, -5]])
    first, last = SocietyPictures([society(payoffs_gained, {})], SETTING)
    assert [has(first, color) for color in COLORS] == pytest.approx([has(first, COLORS[1])] * 3, abs=12)
    widths = [np.flatnonzero((last == color).all(-1).any(0)) for color in COLORS]
    assert len(widths[0]) == pytest.approx(2 * len(widths[1]), abs=3)
    assert widths[2].max() <= widths[1].min() + 1 and len(widths[2]) == pytest.approx(len(widths[1]), abs=2)


@pytest.mark.parametrize("n_moments", [1, 400, 401, 799, 800, 5001])
def test_side_by_side_videos_have_limited_length(monkeypatch, tmp_path, n_moments):
    frame_counts = []
    monkeypatch.setattr(videos, "SocietyPictures", lambda societies, setting: range(n_moments))
    monkeypatch.setattr(videos, "save_video", lambda frames, *args: frame_counts.append((len(frames), int(frames[-1]))))
    videos.save_side_by_side_video([], SETTING, tmp_path, 10)
    [(n_frames, last_frame)] = frame_counts
    assert n_frames <= videos.MAX_SIDE_BY_SIDE_FRAMES and last_frame == n_moments - 1


def test_levels_follow_episode():
    levels = {"apples_live": [0.0, *np.linspace(1, 10, 10)], "dirt": [9.0] * 11}
    pictures = SocietyPictures([society(np.zeros((11, 3)), levels)], SETTING)
    red = [np.flatnonzero((p[520:] == (200, 45, 45)).all(-1).any(0)).max() for p in (pictures[3], pictures[10])]
    assert red[1] > red[0] + 100, "the curve goes on"


def test_societies_share_scales():
    low, high = np.array([[0.0, 0, 0], [1, 1, 1]]), np.array([[0.0, 0, 0], [50, 50, 50]])
    pictures = SocietyPictures([society(low, {}), society(high, {}, title="b")], SETTING)
    half = SIDE_BY_SIDE_SOCIETY_WIDTH + 2
    bars = [has(side, COLORS[0]) for side in (pictures[1][:, :half], pictures[1][:, half:])]
    assert bars[1] > 20 * bars[0] > 0


@settings(max_examples=12)
@given(
    st.integers(1, 15),
    st.integers(1, 3),
    st.floats(-1e6, 1e6),
    st.sampled_from([(8, 8), (21, 30), (40, 20), (320, 320)]),
    st.text(st.characters(codec="latin-1", exclude_categories=("C",)), max_size=200),
)
def test_pictures_have_constant_even_size(agents, societies, payoff, shape, words):
    world = np.zeros((*shape, 3), np.uint8)
    payoffs = np.array([[0.0] * agents, [payoff] * agents])
    society_list = [society(payoffs, {}, world, words) for _ in range(societies)]
    pictures = SocietyPictures(society_list, PictureSettings(None, "mean", "", None))
    sizes = {picture.shape for picture in (pictures[0], pictures[1])}
    [(height, width, _)] = sizes
    assert height % 2 == width % 2 == 0 and width == (
        SINGLE_SOCIETY_WIDTH if societies == 1 else societies * SIDE_BY_SIDE_SOCIETY_WIDTH + 4 * (societies - 1)
    )


def test_world_fills_width():
    world = np.random.default_rng(0).integers(0, 255, (21, 30, 3), dtype=np.uint8)
    resized = scale_to_width(world, 400)
    assert resized.shape == (280, 400, 3)
    assert (resized[6, 6] == world[0, 0]).all() and (resized[-6, -6] == world[-1, -1]).all()


def test_mechanism_sentences():
    pays, taxes = Incentives().space, BracketedTax().space
    assert pays.describe_effects(np.array([0, 3.0, 0])) == "Pays agents 3 for each step of cleaning."
    assert pays.describe_effects(np.array([2.3, 3, 0.5])) == (
        "Pays agents 2.3 for each apple eaten, 3 for each step of cleaning and 0.5 for each other step."
    )
    assert pays.describe_effects(np.zeros(3)) == "No incentives: agents get what the game pays."
    assert taxes.describe_effects(np.array([0.1, 0, 1])) == (
        "Takes of each apple 40% from who ate under 3 and 400% from who ate 5 or more in the last 11 steps; "
        "all agents share it equally."
    )
    plain = ParameterSpace("levers", (Parameter("a", 0, 1, "", ""), Parameter("b", 0, 1, "", "")))
    assert plain.describe_effects(np.array([0.5, 0])) == "Sets a to 0.5."
