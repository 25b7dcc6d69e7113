"""Loading of models and tokenizers from folders or from the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ConfigError, LLMError

if TYPE_CHECKING:
    import torch

ModelKind = Literal["causal", "seq2seq"]
Dtype = Literal["float32", "bfloat16", "float16"]
LoadedWeights = Literal["pretrained", "embeddings", "random"]
"""Weights that are loaded: all, only the input embeddings, or none. The others are randomly initialized."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_ACCEPTED_SOURCES = (
    "Accepted: a folder written by save_pretrained (model and tokenizer); a name on huggingface.co, which is "
    "downloaded once into HF_HOME (default ~/.cache/huggingface); without a network, a name that was downloaded "
    "before, with HF_HUB_OFFLINE=1. Gated models need `hf auth login` first."
)


def check_model(model: str, created_on_demand: bool = False) -> None:
    """Check that the folder `model` contains a model, or that `model` is a possible hub name.

    Args:
        model: folder or hub name.
        created_on_demand: whether the folder is created when the model is first needed, so that it may be missing.

    Raises:
        LLMError: transformers is not installed, the folder does not exist or contains no model, or `model` is not a
            possible hub name.
    """
    if importlib.util.find_spec("transformers") is None:
        raise LLMError(
            f"{model}: local language models need the optional package transformers: pip install 'llmrl[local-llm]'"
        )
    folder = Path(model).expanduser()
    if created_on_demand:
        return
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LLMError(f"the folder {folder} has no config.json, so it holds no model. {_ACCEPTED_SOURCES}")
    elif model.startswith(("/", ".", "~")):
        raise LLMError(f"there is no folder {folder}. {_ACCEPTED_SOURCES}")
    elif not _HUB_NAME.fullmatch(model):
        raise LLMError(
            f"'{model}' is neither a folder nor a hub name such as google/flan-t5-small. {_ACCEPTED_SOURCES}"
        )


def load_tokenizer(model: str, revision: str | None) -> Any:
    """Load the tokenizer of `model` (a `PreTrainedTokenizerBase`).

    Args:
        model: folder or hub name.
        revision: branch, tag or commit on the hub; None: `main`.

    Raises:
        LLMError: the tokenizer cannot be loaded.
    """
    check_model(model)
    from transformers import AutoTokenizer

    return _load_pretrained(AutoTokenizer.from_pretrained, "tokenizer", model, revision)


def load_config(model: str, revision: str | None) -> Any:
    """Load the model's `config.json` (a `PretrainedConfig`) without its weights.

    Raises:
        LLMError: the config cannot be loaded.
    """
    check_model(model)
    from transformers import AutoConfig

    return _load_pretrained(AutoConfig.from_pretrained, "config", model, revision)


def load_meta_model(model: str, revision: str | None) -> torch.nn.Module:
    """Return a causal model on the meta device (layers without weights); this reads only `config.json`.

    Raises:
        LLMError: the config cannot be loaded, or does not belong to a causal model.
    """
    config = load_config(model, revision)
    import torch
    from transformers import AutoModelForCausalLM

    model_class: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            module: torch.nn.Module = model_class.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise LLMError(f"{model} is not a causal language model: {_to_one_line(error)}") from error
    return module


def load_model(
    kind: ModelKind,
    model: str,
    revision: str | None,
    device: str,
    dtype: Dtype,
    weights: LoadedWeights = "pretrained",
    seed: int = 0,
) -> torch.nn.Module:
    """Load a model in eval mode (no dropout) with its weights on `device`. Code from the hub is never executed.

    Args:
        kind: `causal` (decoder-only) or `seq2seq` (encoder-decoder).
        model: folder or hub name.
        revision: branch, tag or commit on the hub; None: `main`.
        device: torch device, e.g. `cpu` or `cuda`.
        dtype: data type of the weights and of the computation.
        weights: `pretrained`: all weights are loaded; `random`: none is loaded; `embeddings`: only the input embeddings
            are loaded. Weights that are not loaded have the initial distribution of the architecture.
        seed: seed of randomly initialized weights.

    Raises:
        LLMError: the model cannot be loaded, is not of this kind, or does not fit on the device.
    """
    check_model(model)
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    model_class: Any = AutoModelForCausalLM if kind == "causal" else AutoModelForSeq2SeqLM
    load_options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    component = f"{kind} language model"
    module: torch.nn.Module
    if weights == "pretrained":
        module = _load_pretrained(model_class.from_pretrained, component, model, revision, **load_options)
    else:
        config = load_config(model, revision)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = model_class.from_config(config, trust_remote_code=False, dtype=torch.float32)
            except ValueError as error:
                raise LLMError(
                    f"{model} is not a {kind} language model: {_to_one_line(error)} {_ACCEPTED_SOURCES}"
                ) from error
            _untie_output_layer(module)
            # Weights are drawn in float32, because draws in half precision are slower and depend on the torch version.
            for parameter in module.parameters():
                parameter.data = parameter.data.to(load_options["dtype"])
            module.config.dtype = load_options["dtype"]
        if weights == "embeddings":
            source = _load_pretrained(model_class.from_pretrained, component, model, revision, **load_options)
            _copy_embeddings(source, module)
    try:
        return module.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, a torch without CUDA, out of memory
        raise LLMError(f"{model} cannot be moved to device {device}: {_to_one_line(error)}") from error


def _untie_output_layer(module: Any) -> None:
    """Initialize a separate output layer for models of the T5 family whose config requires one, e.g. Flan-T5.

    transformers ties the output layer of these models, whose configs have `scale_decoder_outputs=False`, to the input
    embeddings until it loads weights.
    """
    import torch

    output_layer, embeddings = module.get_output_embeddings(), module.get_input_embeddings()
    if getattr(module.config, "scale_decoder_outputs", None) is False and output_layer.weight is embeddings.weight:
        weight = torch.empty_like(embeddings.weight).normal_(0.0, module.config.initializer_factor)
        output_layer.weight = torch.nn.Parameter(weight)


def _copy_embeddings(source: Any, target: Any) -> None:
    """Copy the input embeddings, and learned position embeddings if any, from `source` to `target`.

    A separate output layer, e.g. of Flan-T5, stays randomly initialized, as in Carta et al. 2023 (arXiv 2302.02662).
    """
    import torch

    parameters = dict(source.named_parameters())
    output_weight = getattr(target.get_output_embeddings(), "weight", None)
    excluded_weight = None if output_weight is target.get_input_embeddings().weight else output_weight
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            embeds_words = parameter.dim() == 2 and parameter.shape[0] == target.config.get_text_config().vocab_size
            embeds_positions = name.endswith(("wpe.weight", "embed_positions.weight"))
            if (embeds_words and parameter is not excluded_weight) or embeds_positions:
                parameter.copy_(parameters[name])


def _load_pretrained(from_pretrained: Any, component: str, model: str, revision: str | None, **options: Any) -> Any:
    """Call `from_pretrained`; raise LLMError with the accepted sources if `component`, e.g. the tokenizer, fails."""
    from safetensors import SafetensorError

    disable_progress_bars()
    folder = Path(model).expanduser()
    source = str(folder) if folder.is_dir() else model
    try:
        return from_pretrained(source, revision=revision or "main", trust_remote_code=False, **options)
    # OSError: the model is missing or gated, or the hub cannot be reached; ValueError: another kind of model or a
    # damaged file; ImportError: the model or tokenizer needs a package that is not installed.
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise LLMError(
            f"{model}: its {component} cannot be loaded: {_to_one_line(error)} {_ACCEPTED_SOURCES}"
        ) from error


def disable_progress_bars() -> None:
    """Disable the progress bars of transformers, because a run displays its own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _to_one_line(error: Exception) -> str:
    """Return the message of `error` in one line, cut at 500 characters."""
    line = " ".join(str(error).split())
    return line if len(line) <= 500 else line[:500] + " ..."


MODEL_FILE_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors", ".bin", ".gguf"})
"""Suffixes of files that contain models and tokenizers; others are e.g. notes, logs and optimizer states."""
_MAX_FULLY_HASHED_BYTES, _N_BLOCKS, _BLOCK_BYTES = 64 << 20, 256, 16 << 10
"""Maximum size of a file that is hashed completely; number and size of the blocks that are hashed of larger files."""


def folder_fingerprint(model: str, hashes_blocks: bool = False) -> str | None:
    """Return the hexadecimal SHA-256 of names and contents of the files in a model's folder; None for a hub name.

    Args:
        model: folder or hub name.
        hashes_blocks: whether only the size and 256 evenly spaced blocks of 16 KiB of files above 64 MiB are hashed.
            This is fast, and is enough because retrained weights differ almost everywhere.

    Raises:
        LLMError: a file cannot be read.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in MODEL_FILE_SUFFIXES and path.is_file():
                with path.open("rb") as file:
                    size = path.stat().st_size
                    if hashes_blocks and size > _MAX_FULLY_HASHED_BYTES:
                        file_digest = hashlib.sha256(f"{size}:".encode())
                        for i in range(_N_BLOCKS):  # the first block begins the file, the last one ends it
                            file.seek((size - _BLOCK_BYTES) * i // (_N_BLOCKS - 1))
                            file_digest.update(file.read(_BLOCK_BYTES))
                    else:
                        file_digest = hashlib.file_digest(file, "sha256")
                    digest.update(f"{path.name}:{file_digest.hexdigest()}\n".encode())
    except OSError as error:
        raise LLMError(f"{model}: cannot read its files: {error}") from error
    return digest.hexdigest()


def check_model_unchanged(model: str, stored_fingerprint: str | None, fingerprint: str | None) -> None:
    """Raise ConfigError if the fingerprint in a checkpoint differs from that of the model's folder; None: unknown."""
    if None not in (stored_fingerprint, fingerprint) and stored_fingerprint != fingerprint:
        raise ConfigError(
            f"the files of llm.model={model} have changed since this run was created; restore them, or restart the run "
            "with resume=false (rerun=true if it is finished)"
        )


def copy_weights(
    weights: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], source: str, options: str
) -> None:
    """Copy weights into the parameters of the same names.

    Args:
        weights, parameters: weights and parameters by name.
        source: origin of the weights, for the error message.
        options: options that determine names and shapes, for the error message.

    Raises:
        ConfigError: names or shapes differ.
    """
    import torch

    different_shapes = [name for name, x in parameters.items() if name in weights and weights[name].shape != x.shape]
    if differences := [*sorted(weights.keys() ^ parameters.keys()), *different_shapes]:
        raise ConfigError(
            f"the weights of {source} do not fit the model (first difference: {differences[0]}); use the same {options}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def enable_recomputation(module: Any, option: str) -> None:
    """Enable gradient checkpointing, which a model uses in training mode only, and set dropout to 0.

    Gradient checkpointing takes less memory and about a third more time.

    Args:
        module: model of transformers.
        option: option that requests gradient checkpointing, for the error message.

    Raises:
        LLMError: the model does not support gradient checkpointing.
    """
    import torch

    # transformers checkpoints only in training mode, in which dropout would be active.
    for submodule in module.modules():
        for name, attribute in vars(submodule).items():
            if "dropout" in name and isinstance(attribute, float):
                setattr(submodule, name, 0.0)
        if isinstance(submodule, torch.nn.Dropout):
            submodule.p = 0.0
    try:
        if hasattr(module, "activation_checkpointing_enable"):
            module.activation_checkpointing_enable()
        else:  # older transformers; reentrant checkpoints would give no gradients if the embeddings are frozen
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise LLMError(f"{option}: {error}") from error
