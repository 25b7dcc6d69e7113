"""Hash of the content of a folder of weights, since training writes new weights under old names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from llmrl.core.errors import LLMError

SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors", ".bin", ".gguf"})
"""Suffixes of files that models and tokenizers are loaded from; notes, logs and optimizer states do not count."""


_LARGE, _SAMPLES, _SAMPLE = 64 << 20, 256, 16 << 10


def folder_fingerprint(model: str, sampled: bool = False) -> str | None:
    """Return the hexadecimal SHA-256 of names and contents of the files in a model's folder; None for a hub name.

    Args:
        model: folder or hub name.
        sampled: hash only the size and 256 pieces of 16 KiB, evenly spread, of a file above 64 MiB. This is fast, and
            other weights differ almost everywhere. Otherwise every byte is read, as in loading.

    Raises:
        LLMError: a file cannot be read.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in SUFFIXES and path.is_file():
                with path.open("rb") as file:
                    size = path.stat().st_size
                    large = sampled and size > _LARGE
                    content = _samples(file, size) if large else hashlib.file_digest(file, "sha256").hexdigest()
                    digest.update(f"{path.name}:{content}\n".encode())
    except OSError as error:
        raise LLMError(f"{model}: cannot read its files: {error}") from error
    return digest.hexdigest()


def _samples(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256(f"{size}:".encode())
    for i in range(_SAMPLES):  # the first at the beginning, the last at the end
        file.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
