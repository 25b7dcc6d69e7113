"""Images in messages: encoding, token counts, hashes and files.

In addition to `content`, a message may have `images`: a list of data URLs of PNG files, which follow the text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder
from llmrl.core.frames import enlarge

IMAGES_KEY = "images"
"""Key of the images in a message."""
IMAGE_FOLDER = "llm_images"
"""Subfolder of a run folder with the images of its requests; each distinct image is one file."""

_DATA_URL_PREFIX = "data:image/png;base64,"
_TILE_SIDE, _TILE_TOKENS, _BASE_TOKENS = 512, 170, 85
_PIXELS_PER_TOKEN = 750
_GOOGLE_MIN_TOKENS = 258
"""Constants of the rules in `estimate_image_tokens`."""


def encode_frame(frame: np.ndarray, side: int) -> str:
    """Return a frame as the data URL of a PNG file.

    Args:
        frame: frame [height, width, 3] uint8.
        side: maximum number of pixels of the longer side. Smaller frames are enlarged by an integer factor, which keeps
            edges sharp; larger frames are reduced by averaging pixels.

    Raises:
        ConfigError: `frame` has another shape or dtype.
    """
    from PIL import Image

    frame_side = max(frame.shape[:2])
    if frame_side <= side:
        image = Image.fromarray(enlarge(np.asarray(frame), frame.shape[0] * (side // frame_side)))
    else:
        height, width = (max(1, round(n * side / frame_side)) for n in enlarge(frame, 0).shape[:2])
        image = Image.fromarray(frame).resize((width, height), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _DATA_URL_PREFIX + base64.b64encode(buffer.getvalue()).decode()


def get_image_size(url: str) -> tuple[int, int]:
    """Return width and height of an image, in pixels."""
    from PIL import Image

    return Image.open(io.BytesIO(_decode_url(url))).size


def estimate_image_tokens(width: int, height: int) -> int:
    """Return an estimate of the tokens of an image, the maximum over the published rules of three providers.

    OpenAI: 85, plus 170 for each tile of 512 x 512 pixels; Anthropic: 1 per 750 pixels; Google: at least 258.
    """
    tiles = math.ceil(width / _TILE_SIDE) * math.ceil(height / _TILE_SIDE)
    return max(_BASE_TOKENS + _TILE_TOKENS * tiles, math.ceil(width * height / _PIXELS_PER_TOKEN), _GOOGLE_MIN_TOKENS)


def count_image_tokens(message: Mapping[str, Any]) -> int:
    """Return an estimate of the number of tokens of all images of a message."""
    return sum(estimate_image_tokens(*get_image_size(url)) for url in message.get(IMAGES_KEY, ()))


def to_content_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the format of OpenAI's API, which litellm converts for other providers.

    The content of `message` is a text or a list of parts in this format. Its images are appended as further parts.
    """
    fields = {name: field for name, field in message.items() if name != IMAGES_KEY}
    if not message.get(IMAGES_KEY):
        return fields
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    image_parts = [{"type": "image_url", "image_url": {"url": url}} for url in message[IMAGES_KEY]]
    return {**fields, "content": [*parts, *image_parts]}


def with_image_hashes(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which hashes of the pixels (`_pixel_hash`) replace the images."""
    return [
        {**message, IMAGES_KEY: [_pixel_hash(url) for url in message[IMAGES_KEY]]}
        if IMAGES_KEY in message
        else dict(message)
        for message in messages
    ]


def with_image_files(messages: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return messages in which the names of files replace the images; write missing files.

    Args:
        messages: messages of a request.
        folder: run folder; names are relative to it, e.g. `llm_images/<hash>.png`.

    Raises:
        RunFolderError: a file cannot be written.
    """
    for url in (url for message in messages for url in message.get(IMAGES_KEY, ())):
        path = folder / IMAGE_FOLDER / f"{_pixel_hash(url)}.png"
        if path.exists():
            continue
        try:
            create_folder(path.parent, folder)
            with atomic_write(path, folder) as file:  # threads may write the same image at the same time
                file.write(_decode_url(url))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {describe_write_error(path, error)}") from error
    return [
        {**message, IMAGES_KEY: [f"{IMAGE_FOLDER}/{name}.png" for name in message[IMAGES_KEY]]}
        if IMAGES_KEY in message
        else message
        for message in with_image_hashes(messages)
    ]


@functools.lru_cache(maxsize=1024)
def _pixel_hash(url: str) -> str:
    """Return a hash of the pixels; the PNG file of the same pixels depends on the version of the library."""
    from PIL import Image

    image = Image.open(io.BytesIO(_decode_url(url))).convert("RGB")
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()[:32]


def _decode_url(url: str) -> bytes:
    return base64.b64decode(url[len(_DATA_URL_PREFIX) :])
