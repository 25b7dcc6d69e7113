"""What a folder of weights contains, in one hash: training writes new weights under old names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llmrl.core.errors import LLMError

SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors", ".bin", ".gguf"})
"""Files that models and tokenizers are read from; notes, logs and optimizer states beside them do not count."""


def folder_fingerprint(model: str) -> str | None:
    """SHA-256, in hex, of names and contents of the files in a model's folder; None for a hub name.

    Reads every byte, as loading the weights does.

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
                    digest.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    except OSError as error:
        raise LLMError(f"{model}: cannot read its files: {error}") from error
    return digest.hexdigest()
