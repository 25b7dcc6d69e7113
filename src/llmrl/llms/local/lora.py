"""Low-rank adapters of a frozen model (LoRA, arXiv 2106.09685): layers, sets for the sequences of a batch, and files.

Files have the format of peft.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.atomic_files import describe_write_error, fsync_folder
from llmrl.core.errors import ConfigError, LLMError, RunFolderError
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval
from llmrl.llms.local.loading import folder_fingerprint

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "adapter_config.json"
WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
BASE_MODEL_FILE = "trained_on.json"
"""File that names the weights that an adapter was trained on.

It holds `model`, `revision`, and `files`, the fingerprint of the model's folder (null for a model of the hub).
"""

_REMEDY = "Use the folder `adapter` in the run folder of llmrl-finetune, or one that peft's save_pretrained wrote."
Targets = list[str] | Literal["all-linear"]


@dataclass(frozen=True)
class Lora:
    """Settings of an adapter: W x becomes W x + (alpha / rank) B A x in the chosen layers.

    Only A [rank, in] and B [out, rank] are trained.

    Attributes:
        rank: rank of the product B A.
        alpha: scale of the product.
        dropout: dropout probability of the adapter's input in training.
        targets: last parts of the layers' names, e.g. [q_proj, v_proj]; `all-linear`: every linear layer except the
            output layer.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: UnitInterval = 0.0
    targets: Targets = "all-linear"

    def config(self) -> Any:
        """Return peft's `LoraConfig` with these settings."""
        from peft import LoraConfig, TaskType

        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self.targets,
            task_type=TaskType.CAUSAL_LM,
        )

    def inject(self, module: torch.nn.Module, seed: int, name: str = "default") -> None:
        """Insert the adapter's layers into `module`, initialized with `seed` so that outputs do not change yet.

        From then on only parameters of adapters require gradients; they are float32 whatever the model's dtype. Further
        adapters have other names; the first one stays in use.

        Raises:
            ConfigError: peft is not installed, the model has no such layers, or its output layer is among them.
        """
        if importlib.util.find_spec("peft") is None:
            raise ConfigError("adapters need the optional package peft: pip install 'llmrl[finetune]'")
        self.count_trainable(module)
        import torch
        from peft import LoraConfig, inject_adapter_in_model

        options = {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout}
        targets: Any = self.targets
        if targets == "all-linear":
            targets = sorted(self._target_layers(module))
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # peft warns of a second adapter
            torch.manual_seed(seed)
            inject_adapter_in_model(LoraConfig(**options, target_modules=targets), module, adapter_name=name)
        for parameter_name, parameter in module.named_parameters():
            parameter.requires_grad_(".lora_" in parameter_name)
            if parameter.requires_grad:
                # Small steps vanish in half precision; peft computes in the adapter's dtype and casts back.
                parameter.data = parameter.data.float()

    def count_trainable(self, module: torch.nn.Module) -> int:
        """Return the number of parameters that would be trained, without changing `module`.

        Raises:
            ConfigError: the model has no such layers, or its output layer is among them.
        """
        linear_layers = self._linear_layers(module)
        targets = self._target_layers(module)
        if not targets:
            layer_suffixes = sorted({name.rpartition(".")[2] for name in linear_layers})
            raise ConfigError(
                f"lora.targets={self.targets}: the model has no such layers; use all-linear or some of "
                f"{', '.join(layer_suffixes)}"
            )
        if (head := _output_layer_name(module, linear_layers)) in targets:
            raise ConfigError(
                f"lora.targets={self.targets}: {head} is the output layer, which cannot have an adapter; leave it out"
            )
        return sum(self.rank * sum(linear_layers[name].weight.shape) for name in targets)

    def _linear_layers(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return all linear layers of a model by name, without those of adapters."""
        import torch

        return {
            name.removesuffix(".base_layer"): m
            for name, m in module.named_modules()
            if ".lora_" not in name and (isinstance(m, torch.nn.Linear) or type(m).__name__ == "Conv1D")  # of GPT-2
        }

    def _target_layers(self, module: torch.nn.Module) -> set[str]:
        """Return the names of the layers that get an adapter."""
        linear_layers = self._linear_layers(module)
        if self.targets == "all-linear":
            return {name for name in linear_layers if name != _output_layer_name(module, linear_layers)}
        return {n for n in linear_layers if any(n == target or n.endswith(f".{target}") for target in self.targets)}


def _output_layer_name(module: torch.nn.Module, linear_layers: dict[str, Any]) -> str:
    """Return the name of the output layer; "" if it is not in `linear_layers`."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    return next((name for name, layer in linear_layers.items() if layer is head), "")


class AdapterSet:
    """Adapters of a language model, whose weights are loaded once.

    An adapter is created when it is first used; all adapters have equal initial weights.

    Args:
        module: the language model.
        lora: settings of the adapters.
        seed: seed of their initial weights.
    """

    def __init__(self, module: torch.nn.Module, lora: Lora, seed: int) -> None:
        self._module, self._lora, self._seed = module, lora, seed
        self._names: list[str] = []
        self._layers: list[Any] = []
        self._active_name = ""

    def parameters(self, name: str) -> Mapping[str, torch.nn.Parameter]:
        """Return the parameters of an adapter, by names that do not contain that of the adapter."""
        self._add_adapter(name)
        adapter_infix = f".{_peft_name(name)}."
        return {
            self.general_name(parameter_name, name): parameter
            for parameter_name, parameter in self._module.named_parameters()
            if ".lora_" in parameter_name and adapter_infix in parameter_name
        }

    @staticmethod
    def general_name(parameter_name: str, name: str) -> str:
        """Return the name of a parameter of the adapter `name` without that name."""
        return parameter_name.replace(f".{_peft_name(name)}.", ".default.")

    def activate(self, name: str) -> None:
        """Use an adapter for all sequences; only its parameters require gradients."""
        self._add_adapter(name)
        if self._active_name != name:
            for layer in self._layers:
                layer.set_adapter(_peft_name(name))
            self._active_name = name

    @contextmanager
    def use_adapters(self, names: Sequence[str]) -> Iterator[None]:
        """Use the adapter `names[i]` for sequence i of the batches within a `with` block."""
        if len(set(names)) == 1:
            self.activate(names[0])
            yield
            return
        for name in names:
            self._add_adapter(name)
        adapter_names = [_peft_name(name) for name in names]

        def add_names(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, kwargs | {"adapter_names": adapter_names}

        handles = [layer.register_forward_pre_hook(add_names, with_kwargs=True) for layer in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add_adapter(self, name: str) -> None:
        """Create an adapter if it does not exist."""
        if name in self._names:
            return
        from peft.tuners.lora import LoraLayer

        device = next(self._module.parameters()).device
        self._lora.inject(self._module, self._seed, _peft_name(name))
        self._module.to(device)
        self._layers = [module for module in self._module.modules() if isinstance(module, LoraLayer)]
        self._names.append(name)
        # Injection makes the parameters of all adapters trainable.
        for layer in self._layers:
            layer.set_adapter(_peft_name(name))
        self._active_name = name


def _peft_name(name: str) -> str:
    """Return the name of an adapter in peft."""
    return name or "default"


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
    missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        missing.append(WEIGHT_FILES[0])
    if missing:
        raise LLMError(f"llm.adapter={adapter} holds no adapter: it has no {' and no '.join(missing)}. {_REMEDY}")


def check_base_model(adapter: str, model: str, revision: str | None, files: str | None) -> None:
    """Check that an adapter was trained on the given weights, if its folder has the file `BASE_MODEL_FILE`.

    Args:
        adapter: folder of the adapter.
        model: model to use the adapter with, as in the config.
        revision: revision of a model of the hub.
        files: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        LLMError: the adapter was trained on other weights, or the file cannot be read.
    """
    base_model_path = Path(adapter).expanduser() / BASE_MODEL_FILE
    if not base_model_path.is_file():
        return
    try:
        base_model = json.loads(base_model_path.read_text(encoding="utf-8"))
        name, base_revision, trained_files = str(base_model["model"]), base_model["revision"], base_model["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LLMError(
            f"{base_model_path} cannot be read ({error!r}); restore the file or train the adapter again"
        ) from error
    if None not in (files, trained_files):
        is_base = files == trained_files
    else:
        is_base = files is trained_files and (model, revision) == (name, base_revision)
    if not is_base:
        trained_model, used_model = (
            x if commit is None else f"{x} llm.revision={commit}"
            for x, commit in ((name, base_revision), (model, revision))
        )
        raise LLMError(
            f"llm.adapter={adapter} was trained on {trained_model}, but llm.model={used_model} has other weights; use "
            f"llm.model={trained_model}, or an adapter that was trained on {used_model}"
        )


def write_adapter(
    module: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    lora: Lora,
    folder: Path,
    model: str,
    revision: str | None,
) -> None:
    """Write an adapter in peft's format, with the file `BASE_MODEL_FILE`.

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
        peft_weights = {f"base_model.model.{name.replace('.default', '')}": x for name, x in weights.items()}
        save_file(peft_weights, path / WEIGHT_FILES[0])

    save_adapter(save, folder, model, revision, folder_fingerprint(model))


def save_adapter(
    save: Callable[[Path], None], folder: Path, name: str, revision: str | None, files: str | None
) -> None:
    """Write an adapter to `folder` in one step, and replace an earlier one.

    Equal weights give equal files, so `adapter_fingerprint` distinguishes trained weights and nothing else.

    Args:
        save: function that writes the adapter into an existing folder, e.g. `save_pretrained` of a `PeftModel`.
        folder: folder to write.
        name: model that the adapter was trained on, see `BASE_MODEL_FILE`.
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
        settings = json.loads((temporary / CONFIG_FILE).read_text(encoding="utf-8"))
        # peft stores names in sets, whose order differs between processes.
        is_name_list = {k: isinstance(v, list) and all(isinstance(x, str) for x in v) for k, v in settings.items()}
        settings = {k: sorted(v) if is_name_list[k] else v for k, v in settings.items()}
        (temporary / CONFIG_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        content = {"model": name, "revision": revision, "files": files}
        (temporary / BASE_MODEL_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {describe_write_error(folder, error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
            peft_model: Any = PeftModelForCausalLM(module, config)
            loaded = peft_model.load_adapter(folder, "default", torch_device=device)
        # ValueError: no such layers; RuntimeError: other shapes; OSError, SafetensorError, KeyError: damaged files.
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, SafetensorError) as error:
            raise LLMError(f"llm.adapter={adapter} cannot be loaded: {' '.join(str(error).split())[:400]}") from error
    if layers := [*loaded.missing_keys, *loaded.unexpected_keys]:
        raise LLMError(
            f"llm.adapter={adapter} belongs to another model: {len(layers)} layers differ, e.g. {layers[0]}; use the "
            "model that the adapter was trained on"
        )
    base_model: torch.nn.Module = peft_model.get_base_model()
    return base_model.requires_grad_(False).eval()


@contextmanager
def disable_adapters(module: Any) -> Iterator[None]:
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
