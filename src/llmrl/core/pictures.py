"""Pictures with words beside them, and films of them: GIF and MP4."""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.disk import remove, why
from llmrl.core.errors import ConfigError, RunFolderError

GIF_FRAMES = 150
"""GIFs are thinned to about this many frames: they hold no compressed video."""
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
    """The frames of a film of `n` that its GIF shows."""
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


def beside(picture: np.ndarray, words: Sequence[tuple[str, str]], height: int, width: int) -> np.ndarray:
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


class Drawn(Sequence[np.ndarray]):
    """`n` pictures, [height, width, 3] uint8 each, that `draw(i)` draws when they are asked for: a long film needs the
    memory of one."""

    def __init__(self, n: int, draw: Callable[[int], np.ndarray]) -> None:
        self._n, self._draw = n, draw

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        return self._draw(range(self._n)[index])


def captioned(picture: np.ndarray, title: str, lines: Sequence[str], width: int, rows: int) -> np.ndarray:
    """A picture with a title and lines of text above it, all on white; sizes are made even.

    Args:
        picture: [h, w, 3] uint8; it stands in the middle if it is narrower than `width`.
        title: in the colour of headings; wrapped.
        lines: below the title; each is wrapped.
        width: least width of the result, pixels.
        rows: of text that there is room for, title included; those that are too many are left out.
    """
    from PIL import Image, ImageDraw

    width, top = -(-max(width, picture.shape[1]) // 2) * 2, rows * _LINE + 2 * _GAP
    height = -(-(top + picture.shape[0]) // 2) * 2
    image = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(image), _font()
    texts = [(_HEADING, row) for row in _wrapped(title, width - 2 * _MARGIN, font)]
    texts += [(_TEXT, row) for line in lines for row in _wrapped(line, width - 2 * _MARGIN, font)]
    for i, (colour, row) in enumerate(texts[:rows]):
        pen.text((_MARGIN, _GAP + i * _LINE), row, fill=colour, font=font)
    image.paste(Image.fromarray(picture), ((width - picture.shape[1]) // 2, top))
    return np.asarray(image)


def caption_rows(title: str, lines: Sequence[str], width: int) -> int:
    """Rows of text that `captioned` needs at a width in pixels."""
    return sum(len(_wrapped(text, width - 2 * _MARGIN, _font())) for text in (title, *lines))


def save_picture(picture: np.ndarray, file: Path) -> Path:
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
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(_SIZE)


def _write(column: Any, words: Sequence[tuple[str, str]]) -> None:
    from PIL import ImageDraw

    pen, font = ImageDraw.Draw(column), _font()
    width = column.width - 2 * _MARGIN
    wrapped = [(heading, _wrapped(text, width, font)) for heading, text in words]
    reserved = next((n for n in range(_RESERVED, 1, -1) if _height(wrapped, n) <= column.height), 1)
    y = _MARGIN
    for k, (heading, lines) in enumerate(wrapped):
        later = _height(wrapped[k + 1 :], reserved) - _MARGIN
        room = max(1, (column.height - y - _LINE - later) // _LINE)
        shown = lines if len(lines) <= room else [*lines[: room - 1], "..."]
        pen.text((_MARGIN, y), heading, fill=_HEADING, font=font)
        y += _LINE
        for line in shown:
            pen.text((_MARGIN, y), line, fill="black", font=font)
            y += _LINE
        y += _GAP


def _height(texts: Sequence[tuple[str, Sequence[str]]], most: int) -> int:
    """Of headed texts with at most so many lines each, and of the space above them; pixels."""
    return _MARGIN + sum(_LINE * (1 + min(len(lines), most)) + _GAP for _, lines in texts)


def _wrapped(text: str, width: float, font: Any) -> list[str]:
    """Lines no wider than `width` pixels; words that are wider alone are cut."""
    lines = []
    for part in text.splitlines():
        line = part[: len(part) - len(part.lstrip())]
        for word in part.split():
            longer = f"{line}{'' if not line.strip() else ' '}{word}"
            if font.getlength(longer) <= width:
                line = longer
                continue
            if line.strip():
                lines.append(line)
            line = word
            while font.getlength(line) > width:
                cut = next(n for n in range(len(line) - 1, 0, -1) if font.getlength(line[:n]) <= width or n == 1)
                lines.append(line[:cut])
                line = line[cut:]
        lines.append(line)
    return lines


def save_film(frames: Sequence[np.ndarray | Path], folder: Path, name: str, fps: float) -> list[Path]:
    """Write frames, pictures [height, width, 3] of one even size or files of them, as `<name>.mp4` and `<name>.gif`.

    One frame at a time is held. Returns the files, which appear whole or not at all.

    Raises:
        RunFolderError: they cannot be written.
    """
    made = [folder / f"{name}.mp4", folder / f"{name}.gif"]
    # Their endings say what they are to be.
    mp4, gif = partial = [path.with_name(f".{name}.{os.getpid()}{path.suffix}") for path in made]
    try:
        _make_film(frames, mp4, gif, fps)
        if not _is_whole(mp4):
            raise OSError(errno.EIO, "the encoder ended before the film")
        for path, whole in zip(partial, made, strict=True):
            path.replace(whole)
    except OSError as error:
        raise RunFolderError(f"cannot write the film {made[0]}: {why(folder, error)}") from error
    finally:
        for path in partial:
            remove(path)
    return made


def _is_whole(mp4: Path) -> bool:
    """Whether a film has all its parts: the encoder is another process, whose failure to write them is told nowhere."""
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


def _make_film(frames: Sequence[np.ndarray | Path], mp4: Path, gif: Path, fps: float) -> None:
    import imageio.v2
    from PIL import Image

    writer: Any = imageio.v2.get_writer(mp4, fps=fps, codec="libx264", macro_block_size=2)
    with writer:
        for frame in frames:
            writer.append_data(_loaded(frame))

    def pictures() -> Iterator[Any]:
        for i in thinned(len(frames)):
            # Several times faster than PIL's other ways to 128 colours; drawn worlds have few.
            yield Image.fromarray(_loaded(frames[i])).quantize(128, method=Image.Quantize.FASTOCTREE)

    rest = pictures()
    next(rest).save(gif, save_all=True, append_images=rest, duration=max(20, round(1000 / fps)), loop=0)


def _loaded(frame: np.ndarray | Path) -> np.ndarray:
    if isinstance(frame, Path):
        from PIL import Image

        with Image.open(frame) as image:
            return np.asarray(image.convert("RGB"))
    return frame
