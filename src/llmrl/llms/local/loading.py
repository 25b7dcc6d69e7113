"""Loading of model and tokenizer from a folder or by a Hugging Face hub name, with errors that say what would work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import LLMError
from llmrl.llms.local.four_bits import keep_gradients

if TYPE_CHECKING:
    import torch

Kind = Literal["causal", "seq2seq"]
Dtype = Literal["float32", "bfloat16", "float16"]
Weights = Literal["pretrained", "embeddings", "random"]
"""Which weights are loaded: all, the word embeddings, or none; the others are randomly initialised."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REMEDIES = (
    "What works: a folder written by save_pretrained (model and tokenizer); a name on huggingface.co, which is "
    "fetched once into HF_HOME (default ~/.cache/huggingface); without a network, a name that was fetched before, "
    "with HF_HUB_OFFLINE=1 so that no time is lost on connecting. Gated models need `hf auth login` first."
)


def check_installed(model: str) -> None:
    """Raise LLMError if transformers, which `model` needs, is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise LLMError(
            f"{model}: local language models need the optional package transformers: pip install 'llmrl[local-llm]'"
        )


def check_model(model: str) -> None:
    """Check that `model` could be loaded, reading only the folder's listing.

    Raises:
        LLMError: transformers is not installed, the folder does not exist or holds no model, or the name is no
            hub name.
    """
    check_installed(model)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LLMError(f"the folder {folder} has no config.json, so it holds no model. {_REMEDIES}")
    elif model.startswith(("/", ".", "~")):
        raise LLMError(f"there is no folder {folder}. {_REMEDIES}")
    elif not _HUB_NAME.fullmatch(model):
        raise LLMError(f"'{model}' is neither a folder nor a hub name such as google/flan-t5-small. {_REMEDIES}")


def load_tokenizer(model: str, revision: str | None) -> Any:
    """Load the tokenizer of `model` (a `PreTrainedTokenizerBase`).

    Args:
        model: folder or hub name.
        revision: branch, tag or commit on the hub; None: its default branch.

    Raises:
        LLMError: the tokenizer cannot be loaded.
    """
    check_model(model)
    from transformers import AutoTokenizer

    return _load(AutoTokenizer.from_pretrained, "tokenizer", model, revision)


def load_config(model: str, revision: str | None) -> Any:
    """Load the model's `config.json` (a `PretrainedConfig`) without its weights.

    Raises:
        LLMError: the config cannot be loaded.
    """
    check_model(model)
    from transformers import AutoConfig

    return _load(AutoConfig.from_pretrained, "config", model, revision)


def empty_model(model: str, revision: str | None) -> torch.nn.Module:
    """Return a causal model on the meta device: its layers without weights, from `config.json` alone.

    Raises:
        LLMError: the config cannot be loaded, or is not of a causal model.
    """
    config = load_config(model, revision)
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            module: torch.nn.Module = auto.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise LLMError(f"{model} is no causal language model: {_one_line(error)}") from error
    return module


def load_model(
    kind: Kind,
    model: str,
    revision: str | None,
    device: str,
    dtype: Dtype,
    weights: Weights = "pretrained",
    seed: int = 0,
    four_bit: bool = False,
) -> torch.nn.Module:
    """Return the model with its weights on `device`, in eval mode (no dropout). Code from the hub is never run.

    Args:
        kind: `causal` (continues a text) or `seq2seq` (an encoder reads it, a decoder answers).
        model: folder or hub name.
        revision: branch, tag or commit on the hub; None: its default branch.
        device: torch device, e.g. `cpu` or `cuda`.
        dtype: type of the weights, and so of the computation; products with weights in four bits are computed in
            float16 if `dtype` is that, else in bfloat16.
        weights: `pretrained`: all are loaded; `random`: the architecture's own initialisation, with only `config.json`
            loaded; `embeddings`: the same with pretrained input embeddings.
        seed: seed of randomly initialised weights.
        four_bit: keep the weights of linear layers in four bits (nf4 with double quantisation, arXiv 2305.14314); they
            cannot be trained then, but adapters over them can (`four_bits`).

    Raises:
        LLMError: the model cannot be loaded, is not of this kind, or does not fit on the device.
    """
    check_model(model)
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto: Any = AutoModelForCausalLM if kind == "causal" else AutoModelForSeq2SeqLM
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if four_bit:
        options |= _four_bits(model, device, dtype, weights)
    module: torch.nn.Module
    if weights == "pretrained":
        module = _load(auto.from_pretrained, f"{kind} language model", model, revision, **options)
    else:
        config = load_config(model, revision)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = auto.from_config(config, trust_remote_code=False, dtype=torch.float32)
            except ValueError as error:
                raise LLMError(f"{model} is no {kind} language model: {_one_line(error)} {_REMEDIES}") from error
            _untie(module)
            # Drawn in float32, they do not depend on how this torch draws half precision, which can also be slower.
            for parameter in module.parameters():
                parameter.data = parameter.data.to(options["dtype"])
            module.config.dtype = options["dtype"]
        if weights == "embeddings":
            whole = _load(auto.from_pretrained, f"{kind} language model", model, revision, **options)
            _copy_words(whole, module)
    if four_bit:  # quantised weights are on the device already and cannot be moved
        keep_gradients(module)
        return module.eval()
    try:
        return module.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, a torch without CUDA, out of memory
        raise LLMError(f"{model} cannot be moved to device {device}: {_one_line(error)}") from error


def _untie(module: Any) -> None:
    """Initialise a separate output layer for models of the T5 family whose config wants one, e.g. Flan-T5.

    transformers ties the output layer to the input embeddings until a checkpoint provides another. Of the config's
    setting it keeps only that hidden states are not scaled for a shared layer.
    """
    import torch

    head, read = module.get_output_embeddings(), module.get_input_embeddings()
    if getattr(module.config, "scale_decoder_outputs", None) is False and head.weight is read.weight:
        drawn = torch.empty_like(read.weight).normal_(0.0, module.config.initializer_factor)
        head.weight = torch.nn.Parameter(drawn)


def _copy_words(source: Any, target: Any) -> None:
    """Copy the input embeddings, and learned position embeddings if any, from `source` to `target`.

    A separate output layer, as in Flan-T5, stays randomly initialised, as in the published study.
    """
    import torch

    given = dict(source.named_parameters())
    answers = getattr(target.get_output_embeddings(), "weight", None)
    drawn = None if answers is target.get_input_embeddings().weight else answers
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            words = parameter.shape[0] == target.config.get_text_config().vocab_size and parameter.dim() == 2
            if (words and parameter is not drawn) or name.endswith(("wpe.weight", "embed_positions.weight")):
                parameter.copy_(given[name])


def _four_bits(model: str, device: str, dtype: Dtype, weights: Weights) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that keep weights in four bits.

    Raises:
        LLMError: bitsandbytes is not installed, or `weights` is not `pretrained`.
    """
    if weights != "pretrained":
        raise LLMError("llm.four_bit=true keeps pretrained weights small, and llm.weights draws them: choose one")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise LLMError(
            f"{model}: llm.four_bit=true needs the optional package bitsandbytes: pip install 'llmrl[four-bit]'; or "
            "use llm.four_bit=false, with llm.dtype=bfloat16 to save half of the memory"
        )
    import torch
    from transformers import BitsAndBytesConfig

    config: Any = BitsAndBytesConfig
    quantization = config(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float16 if dtype == "float16" else torch.bfloat16,
    )
    return {"quantization_config": quantization, "device_map": {"": device}}


def _load(from_pretrained: Any, what: str, model: str, revision: str | None, **options: Any) -> Any:
    from safetensors import SafetensorError

    quiet()
    folder = Path(model).expanduser()
    source = str(folder) if folder.is_dir() else model
    try:
        return from_pretrained(source, revision=revision or "main", trust_remote_code=False, **options)
    # OSError: missing, gated, or no network; ValueError: another kind of model or a file that does not parse;
    # ImportError: a package this one model or tokenizer needs, which the message names.
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise LLMError(f"{model}: its {what} cannot be loaded: {_one_line(error)} {_REMEDIES}") from error


def quiet() -> None:
    """Disable the progress bars of transformers, since a run has its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _one_line(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= 500 else line[:500] + " ..."
