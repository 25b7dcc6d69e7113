"""Files of played episodes: truncation to a checkpoint, videos, and texts next to pictures."""

import json
from dataclasses import replace

import imageio.v3 as iio
import numpy as np
import pytest

from llmrl.core.frames import add_text_column
from llmrl.core.spaces import ContinuousActions, EnvDescription, EnvSpec
from llmrl.rollout.episode_logger import _format_numbers, _format_observation
from llmrl.run.episode_files import EpisodeFiles
from llmrl.run.files import read_json_lines

ARM = EnvSpec(
    "arm", 1, 1, {}, 0, (), None, continuous_actions=ContinuousActions(("shoulder", "elbow"), (-1.0, -2.0), (1.0, 2.0))
)


class TestEpisodeFiles:
    def test_files_are_truncated_to_checkpoint(self, tmp_path):
        picture = np.zeros((4, 4, 3), dtype=np.uint8)
        files = EpisodeFiles(tmp_path, None)
        files.write_step(0, {"step": 0})
        files.finish_episode(0, {"episode": 0}, 2.0)
        files.write_step(1, {"step": 0})
        files.write_frame(1, picture)
        state = json.loads(json.dumps(files.state_dict()))
        files.write_step(1, {"step": 1})
        files.write_frame(1, picture)
        files.write_step(2, {"step": 0})
        files.finish_episode(2, {"episode": 2}, 2.0)
        reopened = EpisodeFiles(tmp_path, state)
        assert reopened.finished_lines == [{"episode": 0}] == read_json_lines(tmp_path / "episodes.jsonl")
        assert read_json_lines(tmp_path / "episodes" / "1" / "replies.jsonl") == [{"step": 0}]
        assert len(list((tmp_path / "episodes" / "1" / "frames").iterdir())) == 1
        assert not (tmp_path / "episodes" / "2").exists()
        reopened.write_frame(1, picture)
        assert len(list((tmp_path / "episodes" / "1" / "frames").iterdir())) == 2
        assert EpisodeFiles(tmp_path, None).finished_lines == [] and not (tmp_path / "episodes" / "0").exists()

    def test_video_of_reopened_episode_is_removed(self, tmp_path):
        """End the episode after the last checkpoint: the frames of the checkpoint remain."""
        shades = [np.full((64, 64, 3), 30 * i, dtype=np.uint8) for i in range(8)]
        files = EpisodeFiles(tmp_path, None)
        for shade in shades[:5]:
            files.write_frame(0, shade)
        state = json.loads(json.dumps(files.state_dict()))
        for shade in shades[5:]:
            files.write_frame(0, shade)
        files.finish_episode(0, {"episode": 0}, 2.0)
        reopened = EpisodeFiles(tmp_path, state)
        for shade in shades[5:]:
            reopened.write_frame(0, shade)
        reopened.finish_episode(0, {"episode": 0}, 2.0)
        video = iio.imread(tmp_path / "episodes" / "0" / "episode.gif", index=None)
        assert [int(picture[0, 0, 0]) for picture in video] == pytest.approx([30 * i for i in range(8)], abs=4)
        # Over at the checkpoint: nobody will need them.
        EpisodeFiles(tmp_path, reopened.state_dict())
        assert not (tmp_path / "episodes" / "0" / "frames").exists()

    def test_truncated_files_are_readable(self, tmp_path):
        files = EpisodeFiles(tmp_path, None)
        files.finish_episode(0, {"episode": 0}, 2.0)
        state = files.state_dict()
        (tmp_path / "episodes.jsonl").write_text("")
        with pytest.raises(Exception, match="shorter"):
            EpisodeFiles(tmp_path, state)


class TestFrames:
    def test_text_stays_in_column(self):
        words = [("observation", "a rather long sentence, " * 80), ("reflection", "x" * 400), ("action", "left")]
        frame = add_text_column(np.zeros((30, 40, 3), dtype=np.uint8), words, 300, 200)
        assert frame.shape == (300, 600, 3) and not frame[:, :400].any()
        ink = (frame[:, 400:] < 128).any(2)
        assert ink.any() and not ink[:, -4:].any() and not ink[-4:].any()

    def test_action_is_always_visible(self):
        long, short = ([("observation", "sentence " * n), ("action", "left")] for n in (500, 5))
        frames = [
            add_text_column(np.zeros((30, 40, 3), dtype=np.uint8), words, 300, 200)[:, 400:] for words in (long, short)
        ]
        blue = [(frame == (31, 119, 180)).all(2).any(1).nonzero()[0] for frame in frames]
        assert blue[0].max() > blue[1].max() > blue[1].min() == blue[0].min()


def render_texts(words, height=640):
    """Return which pixel rows of the text column contain ink, [height] bool."""
    frame = add_text_column(np.zeros((8, 8, 3), dtype=np.uint8), words, height, 520)
    return (frame[:, height:] < 128).any(axis=(1, 2))


def test_seven_players_with_long_thoughts_all_find_room():
    words = [(f"player {i}: wait", "a thought that is long. " * 20) for i in range(7)]
    with_last, no_last = render_texts([("episode", "0"), *words]), render_texts([("episode", "0"), *words[:-1]])
    assert not with_last[-2:].any(), "the last line is cut"
    # Six get more lines each than seven do, so the panel is used either way.
    assert with_last[500:].any() and no_last[500:].any()


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"shoulder": 0.12345678901234567, "elbow": -2.0}, "shoulder 0.123, elbow -2"),
        ([0.5, 3], "[0.5, 3]"),
        (4, "4"),
    ],
)
def test_action_numbers_are_rounded(action, text):
    assert _format_numbers(action) == text


def test_each_field_has_line():
    assert (
        _format_observation({"x": 1.5, "goal": "a key", "map": ["ab", "cd"]})
        == 'x: 1.5\ngoal: a key\nmap: ["ab", "cd"]'
    )
    assert _format_observation("seen") == "seen"


def test_action_numbers_use_text_names():
    assert ARM.continuous_action_names == ("shoulder", "elbow")
    text = EnvDescription("Reach.", (), (("upper", "turn"), ("lower", "turn")))
    assert replace(ARM, text=text).continuous_action_names == ("upper", "lower")
    assert replace(ARM, text=replace(text, actions=text.actions[:1])).continuous_action_names == ("shoulder", "elbow")
