"""Scaling of frames, frames with a column of texts, and videos in GIF and MP4 format."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.atomic_files import describe_write_error, remove_file_ignoring_errors
from llmrl.core.errors import ConfigError, RunFolderError

log = logging.getLogger(__name__)

MAX_GIF_FRAMES = 150
"""Approximate maximum number of frames of a GIF; longer videos are subsampled, because GIF compresses little."""
TARGET_HEIGHT = 336
"""Height in pixels up to which small frames are enlarged, by an integer factor, so that edges of cells stay sharp."""


def enlarge(frame: np.ndarray, target_height: int = TARGET_HEIGHT) -> np.ndarray:
    """Return a frame [height, width, 3] uint8, enlarged by an integer factor up to `target_height` pixels of height.

    Height and width become even, because video codecs need even sizes.

    Raises:
        ConfigError: `frame` has another dtype or number of axes.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3:
        raise ConfigError(f"a frame must be [height, width, 3] uint8, got {frame.dtype} {frame.shape}")
    factor = max(1, target_height // frame.shape[0])
    enlarged = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return enlarged[: enlarged.shape[0] // 2 * 2, : enlarged.shape[1] // 2 * 2]


def add_text_column(picture: np.ndarray, texts: Sequence[tuple[str, str]], height: int, width: int) -> np.ndarray:
    """Return a picture with a column of texts on its right, [height, w' + width, 3] uint8; the width w' is even.

    Texts are wrapped. A text that is too long for the column ends in `...`; headings are never cut.

    Args:
        picture: [h, w, 3] uint8.
        texts: pairs (heading, text) from top to bottom; an empty text is left out with its heading.
        height: height of the result in pixels, to which the picture is scaled.
        width: width of the column, pixels.
    """
    from PIL import Image

    image = Image.fromarray(picture)
    scaled_width = max(2, round(image.width * height / image.height / 2) * 2)
    is_enlarged = image.height < height
    image = image.resize((scaled_width, height), Image.Resampling.NEAREST if is_enlarged else Image.Resampling.LANCZOS)
    column = Image.new("RGB", (width, height), "white")
    _draw_texts(column, [(heading, text) for heading, text in texts if text])
    return np.hstack([np.asarray(image), np.asarray(column)])


class LazyFrames(Sequence[np.ndarray]):
    """A sequence of `n_frames` pictures [height, width, 3] uint8, each drawn by `draw_frame(i)` when it is accessed.

    A long video therefore needs the memory of one picture only.
    """

    def __init__(self, n_frames: int, draw_frame: Callable[[int], np.ndarray]) -> None:
        self._n_frames, self._draw_frame = n_frames, draw_frame

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, index: Any) -> Any:
        return self._draw_frame(range(self._n_frames)[index])


def scale_to_width(picture: np.ndarray, width: int) -> np.ndarray:
    """Return a picture [h, w, 3] uint8 scaled to `width` pixels, [h', width, 3].

    It is enlarged by an integer factor and then averaged over blocks of pixels, so that edges of cells stay sharp.
    """
    from PIL import Image

    factor = -(-width // picture.shape[1])
    enlarged = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return np.asarray(Image.fromarray(enlarged).resize((width, height), Image.Resampling.BOX))


_FONT_SIZE, _LINE_HEIGHT, _TEXT_GAP, _SIDE_MARGIN = 14, 18, 8, 12
"""Font size, line height, gap between texts and margin at the sides, pixels."""
_HEADING_COLOR = (31, 119, 180)


@functools.cache
def load_font(size: int) -> Any:
    """Return the font of all pictures; `size` in pixels."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _draw_texts(column: Any, texts: Sequence[tuple[str, str]]) -> None:
    from PIL import ImageDraw

    canvas, text_font = ImageDraw.Draw(column), load_font(_FONT_SIZE)
    width = column.width - 2 * _SIDE_MARGIN
    wrapped_texts = [(heading, wrap_text(text, width, text_font)) for heading, text in texts]
    max_lines = next(
        (n for n in range(column.height // _LINE_HEIGHT, 1, -1) if _sum_heights(wrapped_texts, n) <= column.height),
        1,
    )
    y = _SIDE_MARGIN
    for heading, lines in wrapped_texts:
        visible_lines = lines if len(lines) <= max_lines else [*lines[: max_lines - 1], "..."]
        canvas.text((_SIDE_MARGIN, y), heading, fill=_HEADING_COLOR, font=text_font)
        y += _LINE_HEIGHT
        for line in visible_lines:
            canvas.text((_SIDE_MARGIN, y), line, fill="black", font=text_font)
            y += _LINE_HEIGHT
        y += _TEXT_GAP


def _sum_heights(texts: Sequence[tuple[str, Sequence[str]]], max_lines: int) -> int:
    """Return the height in pixels of texts, cut to `max_lines` lines each, with headings and the margin above."""
    return _SIDE_MARGIN + sum(_LINE_HEIGHT * (1 + min(len(lines), max_lines)) + _TEXT_GAP for _, lines in texts)


def wrap_text(text: str, width: float, text_font: Any) -> list[str]:
    """Return the lines of a text, wrapped to `width` pixels; words that are wider than a line are divided."""
    lines = []
    for paragraph in text.splitlines():
        line = paragraph[: len(paragraph) - len(paragraph.lstrip())]
        for word in paragraph.split():
            longer_line = f"{line}{'' if not line.strip() else ' '}{word}"
            if text_font.getlength(longer_line) <= width:
                line = longer_line
                continue
            if line.strip():
                lines.append(line)
            line = word
            while text_font.getlength(line) > width:
                end = next(n for n in range(len(line) - 1, 0, -1) if text_font.getlength(line[:n]) <= width or n == 1)
                lines.append(line[:end])
                line = line[end:]
        lines.append(line)
    return lines


def save_video(frames: Sequence[np.ndarray | Path], folder: Path, name: str, fps: float) -> list[Path]:
    """Write frames as `<name>.mp4` and `<name>.gif` and return the paths.

    Frames are pictures [height, width, 3] uint8 of equal, even size, or paths of such pictures.

    Frames are loaded one at a time. The files are written atomically. Without imageio-ffmpeg no MP4 file is written,
    and a warning states the extra that installs it.

    Raises:
        RunFolderError: the files cannot be written.
    """
    writers = {".mp4": _write_mp4, ".gif": _write_gif} if _has_mp4_encoder() else {".gif": _write_gif}
    paths = [folder / f"{name}{suffix}" for suffix in writers]
    # The encoders choose the format by the suffix, so temporary files must have it, too.
    temporary_paths = [path.with_name(f".{name}.{os.getpid()}{path.suffix}") for path in paths]
    try:
        for path in temporary_paths:
            writers[path.suffix](frames, path, fps)
        for path, final_path in zip(temporary_paths, paths, strict=True):
            path.replace(final_path)
    except OSError as error:
        raise RunFolderError(f"cannot write the video {paths[0]}: {describe_write_error(folder, error)}") from error
    finally:
        for path in temporary_paths:
            remove_file_ignoring_errors(path)
    return paths


@functools.cache
def _has_mp4_encoder() -> bool:
    """Return whether MP4 files can be written; log a warning once if not."""
    has_ffmpeg = importlib.util.find_spec("imageio_ffmpeg") is not None
    if not has_ffmpeg:
        log.warning("videos are written as GIF only; MP4 files need imageio-ffmpeg: pip install 'llmrl[video]'")
    return has_ffmpeg


def _write_mp4(frames: Sequence[np.ndarray | Path], path: Path, fps: float) -> None:
    import imageio.v2

    writer: Any = imageio.v2.get_writer(path, fps=fps, codec="libx264", macro_block_size=2, ffmpeg_log_level="error")
    with writer:
        for frame in frames:
            writer.append_data(_load_image(frame))


def _write_gif(frames: Sequence[np.ndarray | Path], path: Path, fps: float) -> None:
    from PIL import Image

    # Octrees are several times faster than PIL's other methods; 128 colors suffice for drawn games.
    images = (
        Image.fromarray(_load_image(frames[i])).quantize(128, method=Image.Quantize.FASTOCTREE)
        for i in range(0, len(frames), max(1, len(frames) // MAX_GIF_FRAMES))
    )
    next(images).save(path, save_all=True, append_images=images, duration=max(20, round(1000 / fps)), loop=0)


def _load_image(frame: np.ndarray | Path) -> np.ndarray:
    if isinstance(frame, Path):
        from PIL import Image

        with Image.open(frame) as image:
            return np.asarray(image.convert("RGB"))
    return frame
