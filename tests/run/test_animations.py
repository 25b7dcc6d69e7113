"""Animations for event files and reports, which stay small."""

import io
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from llmrl.run.tensorboard_file import read_animation


def noise(path: Path, frames: int, size: int) -> Path:
    """Return an animation that does not compress; its first frame is black."""
    video = np.random.default_rng(0).integers(0, 256, (frames, size, size, 3), dtype=np.uint8)
    video[0] = 0
    iio.imwrite(path, video, duration=40, loop=0)
    return path


@pytest.mark.parametrize(("frames", "size", "limit"), [(64, 32, 40_000), (4, 128, 20_000)])
def test_large_animation_is_subsampled_and_scaled(tmp_path, frames, size, limit):
    gif = noise(tmp_path / "world.gif", frames, size)
    assert gif.stat().st_size > limit
    assert read_animation(gif) == (gif.read_bytes(), (size, size))
    animation, shape = read_animation(gif, limit)
    assert len(animation) <= limit
    smaller = iio.imread(io.BytesIO(animation), index=None)
    assert smaller.ndim == 4 and smaller.size < frames * size * size * 3
    assert shape == smaller.shape[1:3]
    if frames > 40:  # as long as before, with fewer frames
        assert smaller.shape[1] == size or len(smaller) <= 40
        assert iio.immeta(animation, extension=".gif")["duration"] >= 80
