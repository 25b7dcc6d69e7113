"""The event file of an evaluation: one point of each number, an animation that stays small, and its first frame."""

import io
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llmrl.core.errors import RunFolderError
from llmrl.run import tensorboard_file
from llmrl.run.tensorboard_file import EPISODE, FIRST_FRAME, write_evaluation


def noise(path: Path, frames: int, size: int) -> Path:
    """Return an animation that does not compress; its first frame is black."""
    video = np.random.default_rng(0).integers(0, 256, (frames, size, size, 3), dtype=np.uint8)
    video[0] = 0
    iio.imwrite(path, video, duration=40, loop=0)
    return path


def load_events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0})
    accumulator.Reload()
    return accumulator


def pictures(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the animation and of its first frame."""
    accumulator = load_events(folder)
    return tuple(accumulator.Images(tag)[0].encoded_image_string for tag in (EPISODE, FIRST_FRAME))


def test_repeated_evaluations(tmp_path):
    gif = noise(tmp_path / "world.gif", frames=12, size=24)
    write_evaluation(tmp_path, 7, {"evaluation/return": 1.5}, gif)
    animation, poster = pictures(tmp_path)
    assert animation == gif.read_bytes() and poster.startswith(b"\x89PNG")
    assert iio.imread(poster).shape == (24, 24, 3) and not iio.imread(poster).any()
    image = load_events(tmp_path).Images(EPISODE)[0]
    assert (image.step, image.height, image.width) == (7, 24, 24)
    write_evaluation(tmp_path, 8, {"evaluation/return": 2.5})
    tags = load_events(tmp_path).Tags()
    assert tags["images"] == [] and tags["scalars"] == ["evaluation/return"]
    assert [(e.step, e.value) for e in load_events(tmp_path).Scalars("evaluation/return")] == [(8, 2.5)]
    assert len(list(tmp_path.glob("*tfevents*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("frames", "size", "limit"), [(64, 32, 40_000), (4, 128, 20_000)])
def test_large_animation_is_subsampled_and_scaled(tmp_path, frames, size, limit):
    gif = noise(tmp_path / "world.gif", frames, size)
    assert gif.stat().st_size > limit
    animation, poster, shape = tensorboard_file.read_animation(gif, limit)
    assert len(animation) <= limit
    smaller = iio.imread(io.BytesIO(animation), index=None)
    assert smaller.ndim == 4 and smaller.size < frames * size * size * 3
    assert iio.imread(poster).shape == smaller.shape[1:] and shape == smaller.shape[1:3]
    if frames > 40:  # as long as before, with fewer frames
        assert smaller.shape[1] == size or len(smaller) <= 40
        assert iio.immeta(animation, extension=".gif")["duration"] >= 80


def test_run_folder_keeps_curves(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(RunFolderError, match="evaluation"):
        write_evaluation(tmp_path, 1, {"evaluation/return": 1.0})
    assert not list(tmp_path.glob("*tfevents*"))
