"""Images in messages: encoding, sending, token counts, names and files.

A message may have `images` beside its `content`: data URLs of PNG files, shown in this order after the text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.atomic_files import replacing, why
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder
from llmrl.core.frames import enlarge

IMAGES = "images"
"""Key of a message's images."""
FOLDER = "llm_images"
"""Folder of a run with the images of its requests, each once."""

_BEGINNING = "data:image/png;base64,"
_TILE, _TILE_TOKENS, _PICTURE_TOKENS = 512, 170, 85
_AREA = 750
_LEAST = 258


def picture(frame: np.ndarray, side: int) -> str:
    """Return a frame as a PNG in a data URL.

    Args:
        frame: frame [height, width, 3] uint8.
        side: most pixels of the longer side. Smaller frames are enlarged by an integer factor, so that cells stay
            sharp; larger ones are shrunk by averaging pixels.

    Raises:
        ConfigError: `frame` is no such array.
    """
    from PIL import Image

    longest = max(frame.shape[:2])
    if longest <= side:
        image = Image.fromarray(enlarge(np.asarray(frame), frame.shape[0] * (side // longest)))
    else:
        height, width = (max(1, round(n * side / longest)) for n in enlarge(frame, 0).shape[:2])
        image = Image.fromarray(frame).resize((width, height), Image.Resampling.BOX)
    written = io.BytesIO()
    image.save(written, "PNG")
    return _BEGINNING + base64.b64encode(written.getvalue()).decode()


def size(url: str) -> tuple[int, int]:
    """Return width and height of an image, in pixels."""
    # Signature, length and name of the first block take 16 bytes; 24 are 32 characters.
    head = base64.b64decode(url[len(_BEGINNING) : len(_BEGINNING) + 32])
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def image_tokens(width: int, height: int) -> int:
    """Estimate the tokens of an image: the maximum over the rules that three providers publish.

    OpenAI: 85, and 170 for each tile of 512 x 512 pixels; Anthropic: one for each 750 pixels; Google: 258 at least.
    """
    tiles = math.ceil(width / _TILE) * math.ceil(height / _TILE)
    return max(_PICTURE_TOKENS + _TILE_TOKENS * tiles, math.ceil(width * height / _AREA), _LEAST)


def tokens_of(message: Mapping[str, Any]) -> int:
    """Estimate the tokens of a message's images."""
    return sum(image_tokens(*size(url)) for url in message.get(IMAGES, ()))


def in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the format of OpenAI's API, which litellm translates for others: text, then images.

    Args:
        message: message whose content is a text or a list of parts in that format.
    """
    sent = {name: x for name, x in message.items() if name != IMAGES}
    if not message.get(IMAGES):
        return sent
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in message[IMAGES]]
    return {**sent, "content": [*parts, *pictures]}


def named(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which images are replaced by hashes of their pixels, independent of the PNG encoding."""
    return [
        {**each, IMAGES: [_name(url) for url in each[IMAGES]]} if IMAGES in each else dict(each) for each in messages
    ]


def kept(messages: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return messages in which images are replaced by the names of their files; write missing files.

    Args:
        messages: messages of a request.
        folder: run folder, to which names such as `llm_images/<hash>.png` are relative.

    Raises:
        RunFolderError: a file cannot be written.
    """
    for url in (url for each in messages for url in each.get(IMAGES, ())):
        path = folder / FOLDER / f"{_name(url)}.png"
        if path.exists():
            continue
        try:
            create_folder(path.parent, folder)
            with replacing(path, folder) as file:  # threads may write the same image at the same time
                file.write(_bytes(url))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {why(path, error)}") from error
    return [
        {**each, IMAGES: [f"{FOLDER}/{name}.png" for name in each[IMAGES]]} if IMAGES in each else each
        for each in named(messages)
    ]


@functools.lru_cache(maxsize=1024)
def _name(url: str) -> str:
    """Return a hash of the pixels, since versions of libraries encode the same pixels differently."""
    from PIL import Image

    image = Image.open(io.BytesIO(_bytes(url))).convert("RGB")
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()[:32]


def _bytes(url: str) -> bytes:
    return base64.b64decode(url[len(_BEGINNING) :])
