"""LoRA adapters of local models, loaded through peft from the folders that training writes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.atomic_files import describe_write_error, sync_folder
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.llms.local.loading import folder_fingerprint

if TYPE_CHECKING:
    import torch

    from llmrl.llms.local.lora import Lora

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
BASE = "trained_on.json"
"""File that names the weights that an adapter was trained on.

It holds `model`, `revision`, and `files`, the fingerprint of the model's folder (null for a model of the hub).
"""

_REMEDY = "Use the folder `adapter` in the run folder of llmrl-finetune, or one that peft's save_pretrained wrote."


def check_adapter(adapter: str) -> None:
    """Check that `adapter` could be loaded, reading only the folder's listing.

    Raises:
        LLMError: peft is not installed, or the folder does not exist or holds no adapter.
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
    """Check that an adapter was trained on the given weights, if its folder has the file `BASE`.

    Args:
        adapter: folder of the adapter.
        model: model to use the adapter with, as in the config.
        revision: revision of a model of the hub.
        files: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        LLMError: the adapter was trained on other weights, or the file cannot be read.
    """
    base_file = Path(adapter).expanduser() / BASE
    if not base_file.is_file():
        return
    try:
        base = json.loads(base_file.read_text(encoding="utf-8"))
        name, commit, trained_files = str(base["model"]), base["revision"], base["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LLMError(
            f"{base_file} cannot be read ({error!r}); restore the file or train the adapter again"
        ) from error
    if None not in (files, trained_files):
        is_base = files == trained_files
    else:
        is_base = files is trained_files and (model, revision) == (name, commit)
    if not is_base:
        trained_model = f"{name}{_revision_suffix(commit)}"
        used_model = f"{model}{_revision_suffix(revision)}"
        raise LLMError(
            f"llm.adapter={adapter} was trained on {trained_model}, but llm.model={used_model} has other weights; use "
            f"llm.model={trained_model}, or an adapter that was trained on {used_model}"
        )


def _revision_suffix(revision: str | None) -> str:
    return "" if revision is None else f" llm.revision={revision}"


def write_base(adapter: Path, model: str, revision: str | None, files: str | None) -> None:
    """Write the file `BASE` into the adapter's folder."""
    content = {"model": model, "revision": revision, "files": files}
    (adapter / BASE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_adapter(
    module: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    lora: Lora,
    folder: Path,
    model: str,
    revision: str | None,
) -> None:
    """Write an adapter in peft's format, with the file `BASE`.

    Args:
        module: model with the adapter.
        parameters: parameters of the adapter (`AdapterSet.parameters`).
        lora: settings of the adapter.
        folder: folder to write; an existing adapter in it is replaced.
        model: model as in the config.
        revision: revision of a model of the hub.
    """
    from peft import LoraConfig, TaskType
    from safetensors.torch import save_file

    weights = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    is_seq2seq = bool(getattr(module.config, "is_encoder_decoder", False))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=sorted({name.partition(".lora_")[0] for name in weights}),
        task_type=TaskType.SEQ_2_SEQ_LM if is_seq2seq else TaskType.CAUSAL_LM,
        base_model_name_or_path=model,
        inference_mode=True,
    )

    def save(path: Path) -> None:
        config.save_pretrained(str(path))
        renamed = {f"base_model.model.{name.replace('.default', '')}": x for name, x in weights.items()}
        save_file(renamed, path / WEIGHTS[0])

    save_adapter(save, folder, model, revision, folder_fingerprint(model))


def save_adapter(
    save: Callable[[Path], None], folder: Path, name: str, revision: str | None, files: str | None
) -> None:
    """Write an adapter to `folder` in one step, and replace an earlier one.

    Equal weights give equal files, so `adapter_fingerprint` distinguishes trained weights and nothing else.

    Args:
        save: function that writes the adapter into an existing folder, e.g. `save_pretrained` of a `PeftModel`.
        folder: folder to write.
        name: model that the adapter was trained on, see `BASE`.
        revision: revision of a model of the hub.
        files: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # an empty model card
        settings = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
        # peft stores names in sets, whose order differs between processes.
        sorted_settings = {k: sorted(v) if isinstance(v, list) and _are_texts(v) else v for k, v in settings.items()}
        (temporary / CONFIG).write_text(json.dumps(sorted_settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(temporary, name, revision, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {describe_write_error(folder, error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def merge_adapter(module: torch.nn.Module, adapter: str) -> torch.nn.Module:
    """Return `module` with the adapter added to its weights, without layers of peft."""
    from peft import PeftModel

    merged: torch.nn.Module = PeftModel.from_pretrained(module, adapter).merge_and_unload()
    return merged


def adapter_fingerprint(adapter: str) -> str:
    """Return the hexadecimal SHA-256 of the adapter's folder (`folder_fingerprint`).

    Raises:
        LLMError: there is no such folder, or a file cannot be read.
    """
    fingerprint = folder_fingerprint(adapter)
    if fingerprint is None:
        raise LLMError(f"llm.adapter={adapter}: there is no such folder. {_REMEDY}")
    return fingerprint


def load_adapter(module: torch.nn.Module, adapter: str, device: str) -> torch.nn.Module:
    """Insert the adapter's layers into `module` in place; return it frozen and in eval mode.

    The adapter is not merged into the weights, because half precision would round part of it away.

    Raises:
        LLMError: the adapter is missing or damaged, is not a weight adapter, or belongs to another architecture.
    """
    check_adapter(adapter)
    import torch
    from peft import PeftConfig, PeftModelForCausalLM
    from safetensors import SafetensorError

    folder = str(Path(adapter).expanduser())
    # Creating the layers draws random numbers before the saved weights replace them.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses a deprecated name of transformers
        try:
            config = PeftConfig.from_pretrained(folder)
            if config.is_prompt_learning:
                raise LLMError(
                    f"llm.adapter={adapter} is an adapter of type {config.peft_type.value}; use an adapter of weights, "
                    "e.g. LORA"
                )
            wrapped: Any = PeftModelForCausalLM(module, config)
            loaded = wrapped.load_adapter(folder, "default", torch_device=device)
        # ValueError: no such layers; RuntimeError: other shapes; OSError, SafetensorError, KeyError: damaged files.
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, SafetensorError) as error:
            raise LLMError(f"llm.adapter={adapter} cannot be loaded: {' '.join(str(error).split())[:400]}") from error
    if layers := [*loaded.missing_keys, *loaded.unexpected_keys]:
        raise LLMError(
            f"llm.adapter={adapter} belongs to another model: {len(layers)} layers differ, e.g. {layers[0]}; use the "
            "model that the adapter was trained on"
        )
    base: torch.nn.Module = wrapped.get_base_model()
    return base.requires_grad_(False).eval()


@contextmanager
def adapters_off(module: Any) -> Iterator[None]:
    """Disable the model's adapters inside a `with` block."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    trainable = [p for p in module.parameters() if p.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter in trainable:  # peft has frozen them
            parameter.requires_grad_(True)
