"""Pictures of a video without its column of text, combined on a few sheets for faster pages."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.run.episode_files import FILM_COLUMN, FOLDER
from llmrl.run.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

HEIGHT = 400
"""Maximum height of a picture on a sheet, pixels; larger ones are reduced."""
MAX_COLUMNS, MAX_ROWS = 5, 5
QUALITY = 82
"""JPEG quality, 0 to 95."""


def write_sheets(folder: Path, episode: int, out: Path, name: str) -> dict[str, Any] | None:
    """Write the pictures of an episode as `<name>-<i>.jpg` into `out`.

    Returns:
        `{width, height, across, down, count, sheets}`: size of a picture in pixels, columns and rows of a sheet, number
        of pictures, and names of the sheets. Picture t shows the state before step t; the last one shows the end. None
        if there is no video.

    Raises:
        RunFolderError: a sheet cannot be written.
        OSError: a picture cannot be read.
    """
    from PIL import Image

    sheets: list[str] = []
    sheet: Image.Image | None = None
    size, count = (0, 0), 0
    for picture in _pictures(folder / FOLDER / str(episode)):
        size = size if count else picture.size
        at = count % (MAX_COLUMNS * MAX_ROWS)
        if at == 0:
            if sheet is not None:
                _save(sheet, out, name, sheets)
            sheet = Image.new("RGB", (size[0] * MAX_COLUMNS, size[1] * MAX_ROWS))
        assert sheet is not None
        sheet.paste(picture, (at % MAX_COLUMNS * size[0], at // MAX_COLUMNS * size[1]))
        count += 1
    if sheet is None:
        return None
    rows = math.ceil((count - len(sheets) * MAX_COLUMNS * MAX_ROWS) / MAX_COLUMNS)
    # The last sheet is cropped in height only, so that all sheets have the same columns.
    _save(sheet.crop((0, 0, sheet.width, rows * size[1])), out, name, sheets)
    return {
        "width": size[0],
        "height": size[1],
        "across": MAX_COLUMNS,
        "down": MAX_ROWS,
        "count": count,
        "sheets": sheets,
    }


def _save(sheet: Image, out: Path, name: str, sheets: list[str]) -> None:
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=QUALITY)
    sheets.append(f"{name}-{len(sheets)}.jpg")
    write_bytes(out / sheets[-1], content.getvalue())


def _pictures(folder: Path) -> Iterator[Image]:
    """Yield the pictures of an episode's video, or its frames so far, without their column of text."""
    from PIL import Image, ImageSequence

    film, frames = folder / "episode.gif", sorted((folder / "frames").glob("*.png"))
    if film.is_file():
        with Image.open(film) as pictures:
            for picture in ImageSequence.Iterator(pictures):
                yield _crop(picture.convert("RGB"))
    for path in () if film.is_file() else frames:
        with Image.open(path) as picture:
            yield _crop(picture.convert("RGB"))


def _crop(picture: Image) -> Image:
    picture = picture.crop((0, 0, max(picture.width - FILM_COLUMN, 1), picture.height))
    if picture.height > HEIGHT:
        picture = picture.resize((max(1, picture.width * HEIGHT // picture.height), HEIGHT))
    return picture
