"""Pictures with words beside them, and videos of them: GIF, MP4 and WebP."""

from __future__ import annotations

import errno
import functools
import importlib.util
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.atomic_files import remove, why
from llmrl.core.errors import ConfigError, RunFolderError

log = logging.getLogger(__name__)

GIF_FRAMES = 150
"""GIFs are thinned to about this many frames: they hold no compressed video."""
SIDE_BY_SIDE = "side_by_side"
"""Stem of the names of videos and pictures of several mechanisms."""
TARGET_HEIGHT = 336
"""Small engine frames are enlarged by a whole factor up to about this many pixels, so that cells stay sharp."""


def enlarge(frame: np.ndarray, target: int = TARGET_HEIGHT) -> np.ndarray:
    """Nearest-neighbour enlargement of [height, width, 3] uint8, to even sizes (video codecs need them).

    Raises:
        ConfigError: it is no such picture.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3:
        raise ConfigError(f"a frame must be [height, width, 3] uint8, got {frame.dtype} {frame.shape}")
    factor = max(1, target // frame.shape[0])
    large = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return large[: large.shape[0] // 2 * 2, : large.shape[1] // 2 * 2]


def thinned(n: int) -> range:
    """The frames of a video of `n` that its GIF shows."""
    return range(0, n, max(1, n // GIF_FRAMES))


def fitting(texts: Sequence[Sequence[str]], room: int) -> list[str]:
    """The lines of as many whole texts, from the first on, as `room` lines hold, and how many are left out.

    >>> fitting([["a"], ["b", "   b"], ["c"]], 3)
    ['a', '(2 more)']
    """
    lines = [line for text in texts for line in text]
    if len(lines) <= room:
        return lines
    shown: list[str] = []
    for k, text in enumerate(texts):
        if len(shown) + len(text) > room - 1:
            return [*shown, f"({len(texts) - k} more)"]
        shown += text
    raise AssertionError("they fit after all")


def with_text_column(picture: np.ndarray, words: Sequence[tuple[str, str]], height: int, width: int) -> np.ndarray:
    """A picture, scaled to `height` pixels, and to its right a column of `width` pixels with headed texts.

    Texts are wrapped; one that there is no room for ends in dots, and headings stay. All sizes are made even.

    Args:
        picture: [h, w, 3] uint8.
        words: (heading, text) from top to bottom; an empty text is left out with its heading.
        height, width: of the result and of the column, pixels.
    """
    from PIL import Image

    image = Image.fromarray(picture)
    scaled = max(2, round(image.width * height / image.height / 2) * 2)
    grows = image.height < height
    image = image.resize((scaled, height), Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS)
    column = Image.new("RGB", (width, height), "white")
    _write(column, [(heading, text) for heading, text in words if text])
    return np.hstack([np.asarray(image), np.asarray(column)])


class LazyFrames(Sequence[np.ndarray]):
    """`n` pictures, [height, width, 3] uint8 each, that `draw(i)` draws when they are asked for: a long video needs the
    memory of one."""

    def __init__(self, n: int, draw: Callable[[int], np.ndarray]) -> None:
        self._n, self._draw = n, draw

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        return self._draw(range(self._n)[index])


def fitted(picture: np.ndarray, width: int) -> np.ndarray:
    """A picture [h, w, 3] uint8 at `width` pixels, [h', width, 3]: enlarged with sharp cells, then averaged."""
    from PIL import Image

    factor = -(-width // picture.shape[1])
    large = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return np.asarray(Image.fromarray(large).resize((width, height), Image.Resampling.BOX))


def save_image(picture: np.ndarray, file: Path) -> Path:
    """Write [h, w, 3] uint8 as PNG; returns the file."""
    from PIL import Image

    Image.fromarray(picture).save(file, format="PNG")
    return file


_SIZE, _LINE, _GAP, _MARGIN = 14, 18, 8, 12
"""Of the letters, of a line, between texts, at the sides; pixels."""
_HEADING = (31, 119, 180)
_TEXT = (0, 0, 0)
_RESERVED = 5
"""Lines that are kept free for each of the texts that follow, if they need as many and all of them find room so."""


@functools.cache
def font(size: int) -> Any:
    """The letters of all pictures, in a size in pixels."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _write(column: Any, words: Sequence[tuple[str, str]]) -> None:
    from PIL import ImageDraw

    pen, letters = ImageDraw.Draw(column), font(_SIZE)
    width = column.width - 2 * _MARGIN
    texts = [(heading, wrapped(text, width, letters)) for heading, text in words]
    reserved = next((n for n in range(_RESERVED, 1, -1) if _height(texts, n) <= column.height), 1)
    y = _MARGIN
    for k, (heading, lines) in enumerate(texts):
        later = _height(texts[k + 1 :], reserved) - _MARGIN
        room = max(1, (column.height - y - _LINE - later) // _LINE)
        shown = lines if len(lines) <= room else [*lines[: room - 1], "..."]
        pen.text((_MARGIN, y), heading, fill=_HEADING, font=letters)
        y += _LINE
        for line in shown:
            pen.text((_MARGIN, y), line, fill="black", font=letters)
            y += _LINE
        y += _GAP


def _height(texts: Sequence[tuple[str, Sequence[str]]], most: int) -> int:
    """Of headed texts with at most so many lines each, and of the space above them; pixels."""
    return _MARGIN + sum(_LINE * (1 + min(len(lines), most)) + _GAP for _, lines in texts)


def wrapped(text: str, width: float, letters: Any) -> list[str]:
    """Lines of a text no wider than `width` pixels in some `letters`; words that are wider alone are cut."""
    lines = []
    for part in text.splitlines():
        line = part[: len(part) - len(part.lstrip())]
        for word in part.split():
            longer = f"{line}{'' if not line.strip() else ' '}{word}"
            if letters.getlength(longer) <= width:
                line = longer
                continue
            if line.strip():
                lines.append(line)
            line = word
            while letters.getlength(line) > width:
                cut = next(n for n in range(len(line) - 1, 0, -1) if letters.getlength(line[:n]) <= width or n == 1)
                lines.append(line[:cut])
                line = line[cut:]
        lines.append(line)
    return lines


def save_video(frames: Sequence[np.ndarray | Path], folder: Path, name: str, fps: float) -> list[Path]:
    """Write frames, pictures [height, width, 3] of one even size or files of them, as `<name>.mp4` and `<name>.gif`.

    One frame at a time is held. Returns the files, which appear whole or not at all. Without imageio-ffmpeg there is no
    MP4, and a warning names the extra that installs it.

    Raises:
        RunFolderError: they cannot be written.
    """
    writers = {".mp4": _write_mp4, ".gif": _write_gif} if _has_mp4_encoder() else {".gif": _write_gif}
    made = [folder / f"{name}{suffix}" for suffix in writers]
    # Their endings say what they are to be.
    partial = [path.with_name(f".{name}.{os.getpid()}{path.suffix}") for path in made]
    try:
        for path in partial:
            writers[path.suffix](frames, path, fps)
        for path, whole in zip(partial, made, strict=True):
            path.replace(whole)
    except OSError as error:
        raise RunFolderError(f"cannot write the video {made[0]}: {why(folder, error)}") from error
    finally:
        for path in partial:
            remove(path)
    return made


SMALL_FRAMES = 110
"""A small video has about so many pictures,"""
SMALL_FPS = 9
"""so many a second, and stays for a while at its end."""
_STAYS = 2500
"""Milliseconds of that."""


def save_small_video(frames: Sequence[np.ndarray], file: Path, most: int = 1_500_000) -> Path:
    """Write pictures, [height, width, 3] uint8, as an animated WebP for web pages, of some of them; returns the file.

    Args:
        frames: a video of any length.
        file: to write.
        most: bytes that it may have; it is written less exactly, and at last with fewer pictures, until it has no more.

    Raises:
        RunFolderError: it cannot be written.
    """
    from PIL import Image

    shown = sorted({round(i) for i in np.linspace(0, len(frames) - 1, min(SMALL_FRAMES, len(frames)))})
    pictures = [Image.fromarray(frames[i]) for i in shown]
    partial = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        for quality, every in ((80, 1), (65, 1), (50, 1), (35, 1), (35, 2), (35, 4), (35, 8)):
            first, *rest = pictures[:-1:every] + pictures[-1:]
            times = [round(every * 1000 / SMALL_FPS)] * len(rest) + [_STAYS]
            first.save(partial, save_all=True, append_images=rest, duration=times, loop=0, quality=quality, method=2)
            if partial.stat().st_size <= most:
                break
        partial.replace(file)
    except OSError as error:
        raise RunFolderError(f"cannot write the video {file}: {why(file.parent, error)}") from error
    finally:
        remove(partial)
    return file


def _is_whole(mp4: Path) -> bool:
    """Whether a video has all its parts: the encoder is another process, whose failure to write them is told
    nowhere."""
    size, at, kinds = mp4.stat().st_size, 0, set()
    with mp4.open("rb") as file:
        while at + 8 <= size:
            file.seek(at)
            length, kind = struct.unpack(">I4s", file.read(8))
            if length == 1:
                length = struct.unpack(">Q", file.read(8).rjust(8, b"\0"))[0]
            kinds.add(kind)
            at += max(length, 8)
    return at == size and b"moov" in kinds


@functools.cache
def _has_mp4_encoder() -> bool:
    """Return whether MP4 files can be written; log a warning once if not."""
    found = importlib.util.find_spec("imageio_ffmpeg") is not None
    if not found:
        log.warning("videos are written as GIF only; MP4 files need imageio-ffmpeg: pip install 'llmrl[video]'")
    return found


def _write_mp4(frames: Sequence[np.ndarray | Path], path: Path, fps: float) -> None:
    """Write an MP4 file.

    Raises:
        OSError: it cannot be written, or the encoder ended early.
    """
    import imageio.v2

    writer: Any = imageio.v2.get_writer(path, fps=fps, codec="libx264", macro_block_size=2)
    with writer:
        for frame in frames:
            writer.append_data(_loaded(frame))
    if not _is_whole(path):
        raise OSError(errno.EIO, "the encoder ended before the video")


def _write_gif(frames: Sequence[np.ndarray | Path], path: Path, fps: float) -> None:
    from PIL import Image

    def pictures() -> Iterator[Any]:
        for i in thinned(len(frames)):
            # Several times faster than PIL's other ways to 128 colours; drawn worlds have few.
            yield Image.fromarray(_loaded(frames[i])).quantize(128, method=Image.Quantize.FASTOCTREE)

    rest = pictures()
    next(rest).save(path, save_all=True, append_images=rest, duration=max(20, round(1000 / fps)), loop=0)


def _loaded(frame: np.ndarray | Path) -> np.ndarray:
    if isinstance(frame, Path):
        from PIL import Image

        with Image.open(frame) as image:
            return np.asarray(image.convert("RGB"))
    return frame
