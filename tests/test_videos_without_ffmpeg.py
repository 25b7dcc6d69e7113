"""Without imageio-ffmpeg videos are GIF files, and a warning names what installs the encoder."""

import importlib.util
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from llmrl.core import frames


def test_gif_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    find = importlib.util.find_spec
    absent = "imageio_ffmpeg"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == absent else find(name, *rest))
    frames._has_mp4_encoder.cache_clear()
    pictures = [np.full((16, 16, 3), 60 * i, dtype=np.uint8) for i in range(4)]
    files = [path for name in ("a", "b") for path in frames.save_video(pictures, tmp_path, name, 2.0)]
    frames._has_mp4_encoder.cache_clear()
    assert [path.name for path in files] == ["a.gif", "b.gif"]
    assert len(iio.imread(files[0], index=None)) == 4
    assert caplog.text.count("llmrl[video]") == 1
