"""A LoRA adapter over a local model: weights that training wrote beside those of the model, loaded through peft."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import LLMError
from llmrl.llms.local.fingerprint import folder_fingerprint

if TYPE_CHECKING:
    import torch

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
BASE = "trained_on.json"
"""Which weights the adapter was trained on: `model` and `revision` as they were named, and `files`, the fingerprint of
the model's folder (null for a model of the hub)."""

_REMEDY = (
    "What works: the folder `adapter` in the run folder of llmrl-finetune, or one that peft's save_pretrained wrote."
)


def check_adapter(adapter: str) -> None:
    """Cheap test that `adapter` could be loaded: nothing is read but the folder's listing.

    Raises:
        LLMError: peft is not installed, the folder does not exist or holds no adapter.
    """
    if importlib.util.find_spec("peft") is None:
        raise LLMError(f"llm.adapter={adapter} needs the optional package peft: pip install 'llmrl[finetune]'")
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        raise LLMError(f"llm.adapter={adapter}: there is no such folder. {_REMEDY}")
    missing = [] if (folder / CONFIG).is_file() else [CONFIG]
    if not any((folder / name).is_file() for name in WEIGHTS):
        missing.append(WEIGHTS[0])
    if missing:
        raise LLMError(f"llm.adapter={adapter} holds no adapter: it has no {' and no '.join(missing)}. {_REMEDY}")


def check_base(adapter: str, model: str, revision: str | None, files: str | None) -> None:
    """Refuse an adapter on weights it was not trained on, where its folder tells (`BASE`).

    Args:
        adapter: its folder.
        model: what it is to be used with, as in the config.
        revision: of a model of the hub.
        files: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        LLMError: the weights are others, or the note cannot be read.
    """
    note = Path(adapter).expanduser() / BASE
    if not note.is_file():
        return
    try:
        base = json.loads(note.read_text(encoding="utf-8"))
        name, commit, trained_on = str(base["model"]), base["revision"], base["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LLMError(f"{note} cannot be read: {error!r}") from error
    if None not in (files, trained_on):
        same = files == trained_on
    else:
        same = files is trained_on and (model, revision) == (name, commit)
    if not same:
        raise LLMError(
            f"llm.adapter={adapter} was trained on {name}{_at(commit)}, and llm.model={model}{_at(revision)} has other "
            f"weights; use llm.model={name}{_at(commit)}, or an adapter that was trained on {model}{_at(revision)}"
        )


def _at(revision: str | None) -> str:
    return "" if revision is None else f" llm.revision={revision}"


def write_base(adapter: Path, model: str, revision: str | None, files: str | None) -> None:
    """Note in the adapter's folder what it was trained on."""
    content = {"model": model, "revision": revision, "files": files}
    (adapter / BASE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def adapter_fingerprint(adapter: str) -> str:
    """SHA-256, in hex, of what the adapter's folder contains.

    Raises:
        LLMError: there is no such folder, or a file cannot be read.
    """
    found = folder_fingerprint(adapter)
    if found is None:
        raise LLMError(f"llm.adapter={adapter}: there is no such folder. {_REMEDY}")
    return found


def load_adapter(module: torch.nn.Module, adapter: str, device: str) -> torch.nn.Module:
    """`module` with the adapter's layers in it, frozen and in eval mode; it is changed in place.

    The adapter stays apart from the weights: added to them in half precision, a part of it would be rounded away.

    Raises:
        LLMError: it is damaged, is none for a language model, or does not belong to this architecture.
    """
    check_adapter(adapter)
    import torch
    from peft import PeftConfig, PeftModelForCausalLM
    from safetensors import SafetensorError

    folder = str(Path(adapter).expanduser())
    # Layers are made with random numbers before the saved ones replace them.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a name that is to change
        try:
            config = PeftConfig.from_pretrained(folder)
            if config.is_prompt_learning:
                raise LLMError(f"llm.adapter={adapter} is {config.peft_type.value}; only adapters of weights work here")
            wrapped: Any = PeftModelForCausalLM(module, config)
            loaded = wrapped.load_adapter(folder, "default", torch_device=device)
        # ValueError: no such layers; RuntimeError: other shapes; OSError, SafetensorError, KeyError: damaged files.
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, SafetensorError) as error:
            raise LLMError(f"llm.adapter={adapter} cannot be loaded: {' '.join(str(error).split())[:400]}") from error
    if others := [*loaded.missing_keys, *loaded.unexpected_keys]:
        raise LLMError(
            f"llm.adapter={adapter} belongs to another model: {len(others)} of its layers are not in this one, or are "
            f"missing in it, {others[0]} for one"
        )
    base: torch.nn.Module = wrapped.get_base_model()
    return base.requires_grad_(False).eval()
