"""The pictures of a video, without the words beside them, on a few sheets: a page of thousands of files is slow."""

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
"""Of a picture on a sheet, pixels; smaller ones stay as they are."""
ACROSS, DOWN = 5, 5
QUALITY = 82
"""Of JPEG, 0 to 95."""


def write_sheets(folder: Path, episode: int, out: Path, name: str) -> dict[str, Any] | None:
    """Write the pictures of an episode as `<name>-<i>.jpg` into `out`.

    Returns:
        `{width, height, across, down, count, sheets}`: of a picture in pixels, pictures in a row and rows of a sheet,
        pictures in all, and the names of the sheets. Picture t is what step t was decided in; the last one is the end.
        None where there is no video.

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
        at = count % (ACROSS * DOWN)
        if at == 0:
            if sheet is not None:
                _save(sheet, out, name, sheets)
            sheet = Image.new("RGB", (size[0] * ACROSS, size[1] * DOWN))
        assert sheet is not None
        sheet.paste(picture, (at % ACROSS * size[0], at // ACROSS * size[1]))
        count += 1
    if sheet is None:
        return None
    rows = math.ceil((count - len(sheets) * ACROSS * DOWN) / ACROSS)
    # The last sheet is cut, but keeps its width, so that all pictures are found in one way.
    _save(sheet.crop((0, 0, sheet.width, rows * size[1])), out, name, sheets)
    return {
        "width": size[0],
        "height": size[1],
        "across": ACROSS,
        "down": DOWN,
        "count": count,
        "sheets": sheets,
    }


def _save(sheet: Image, out: Path, name: str, sheets: list[str]) -> None:
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=QUALITY)
    sheets.append(f"{name}-{len(sheets)}.jpg")
    write_bytes(out / sheets[-1], content.getvalue())


def _pictures(folder: Path) -> Iterator[Image]:
    """Each picture of the video in an episode's folder, or of those taken so far, without its column of words."""
    from PIL import Image, ImageSequence

    film, taken = folder / "episode.gif", sorted((folder / "frames").glob("*.png"))
    if film.is_file():
        with Image.open(film) as pictures:
            for picture in ImageSequence.Iterator(pictures):
                yield _cut(picture.convert("RGB"))
    for path in () if film.is_file() else taken:
        with Image.open(path) as picture:
            yield _cut(picture.convert("RGB"))


def _cut(picture: Image) -> Image:
    picture = picture.crop((0, 0, max(picture.width - FILM_COLUMN, 1), picture.height))
    if picture.height > HEIGHT:
        picture = picture.resize((max(1, picture.width * HEIGHT // picture.height), HEIGHT))
    return picture
