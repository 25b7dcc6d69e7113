"""Writing a trained adapter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from llmrl.core.disk import sync_folder, why
from llmrl.core.errors import RunFolderError
from llmrl.llms.local.adapter import CONFIG, write_base


def save_adapter(model: Any, folder: Path, name: str, revision: str | None, files: str | None) -> None:
    """Write the adapter of a peft model to `folder` in one step, in place of an earlier one.

    Equal weights give equal files, so that `adapter_fingerprint` tells trainings apart and nothing else.

    Args:
        model: `PeftModel`.
        folder: to write.
        name, revision, files: what it was trained on, see `llmrl.llms.local.adapter.BASE`.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # a model card with nothing in it
        settings = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
        # peft keeps names in sets, whose order differs from process to process.
        ordered = {k: sorted(v) if isinstance(v, list) and _texts(v) else v for k, v in settings.items()}
        (temporary / CONFIG).write_text(json.dumps(ordered, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(temporary, name, revision, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {why(folder, error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
