"""Low-rank adapters of a frozen model (LoRA, arXiv 2106.09685): layers, sets of adapters, files in peft's format."""

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

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
BASE_MODEL_FILE = "trained_on.json"
"""File in an adapter's folder that identifies the weights on which the adapter was trained.

It contains `model`, `revision`, and `files`, the fingerprint of the model's folder (null for a model of the hub).
"""

_FOLDER_ADVICE = (
    "Use the folder `adapter` in the run folder of llmrl-finetune, or one that save_pretrained of peft wrote."
)
TargetLayers = list[str] | Literal["all-linear"]


@dataclass(frozen=True)
class Lora:
    """Settings of an adapter, which replaces W x by W x + (alpha / rank) B A x in some linear layers.

    Only A [rank, in] and B [out, rank] are trained.

    Attributes:
        rank: rank of the product B A.
        alpha: factor of the product, divided by the rank, > 0.
        dropout: dropout probability of the adapter's input in training.
        targets: last parts of the names of the layers, e.g. [q_proj, v_proj]; `all-linear`: all linear layers but the
            output layer.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: UnitInterval = 0.0
    targets: TargetLayers = "all-linear"

    def peft_config(self, **options: Any) -> Any:
        """Return peft's `LoraConfig` with these settings for a causal model; `options` replace and complete them."""
        from peft import LoraConfig, TaskType

        settings: dict[str, Any] = {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout}
        settings |= {"target_modules": self.targets, "task_type": TaskType.CAUSAL_LM}
        return LoraConfig(**settings | options)

    def inject(self, module: torch.nn.Module, seed: int, name: str = "default") -> None:
        """Insert an adapter with the given name into `module`. Its initial weights, from `seed`, do not change outputs.

        Afterwards only parameters of adapters require gradients; they are float32 for every dtype of the model. If
        `module` already has an adapter, that one stays active.

        Raises:
            ConfigError: peft is not installed, no layer matches `targets`, or the output layer does.
        """
        if importlib.util.find_spec("peft") is None:
            raise ConfigError("adapters need the optional package peft: pip install 'llmrl[finetune]'")
        self.count_trainable_parameters(module)
        import torch
        from peft import inject_adapter_in_model

        target_names = sorted(self._find_target_names(module)) if self.targets == "all-linear" else self.targets
        config = self.peft_config(target_modules=target_names)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # peft warns if there already is an adapter
            torch.manual_seed(seed)
            inject_adapter_in_model(config, module, adapter_name=name)
        for parameter_name, parameter in module.named_parameters():
            parameter.requires_grad_(".lora_" in parameter_name)
            if parameter.requires_grad:
                # Half precision would round small updates to 0. peft converts inputs to float32 and outputs back.
                parameter.data = parameter.data.float()

    def count_trainable_parameters(self, module: torch.nn.Module) -> int:
        """Return the number of parameters that `inject` would add to `module`.

        Raises:
            ConfigError: no layer matches `targets`, or the output layer does.
        """
        linear_layers = self._find_linear_layers(module)
        targets = self._find_target_names(module)
        if not targets:
            layer_suffixes = sorted({name.rpartition(".")[2] for name in linear_layers})
            raise ConfigError(
                f"lora.targets={self.targets}: the model has no such layers; use all-linear or some of "
                f"{', '.join(layer_suffixes)}"
            )
        if (output_name := _find_output_layer(module, linear_layers)) in targets:
            raise ConfigError(
                f"lora.targets={self.targets}: {output_name} is the output layer, which cannot have an adapter; omit it"
            )
        return sum(self.rank * sum(linear_layers[name].weight.shape) for name in targets)

    def _find_linear_layers(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the linear layers of a model by name, without layers of adapters."""
        import torch

        return {
            name.removesuffix(".base_layer"): layer
            for name, layer in module.named_modules()
            if ".lora_" not in name
            and (isinstance(layer, torch.nn.Linear) or type(layer).__name__ == "Conv1D")  # GPT-2
        }

    def _find_target_names(self, module: torch.nn.Module) -> set[str]:
        """Return the names of the layers that get an adapter."""
        linear_layers = self._find_linear_layers(module)
        if self.targets == "all-linear":
            return {name for name in linear_layers if name != _find_output_layer(module, linear_layers)}
        return {n for n in linear_layers if any(n == target or n.endswith(f".{target}") for target in self.targets)}


def _find_output_layer(module: torch.nn.Module, linear_layers: dict[str, Any]) -> str:
    """Return the name of the output layer; "" if it is not in `linear_layers`."""
    output_layer = getattr(module, "get_output_embeddings", lambda: None)()
    return next((name for name, layer in linear_layers.items() if layer is output_layer), "")


class AdapterSet:
    """Named adapters of one language model.

    An adapter is created when it is first used. All adapters have equal initial weights.

    Args:
        module: the language model.
        lora: settings of all adapters.
        seed: seed of the initial weights of each adapter.
    """

    def __init__(self, module: torch.nn.Module, lora: Lora, seed: int) -> None:
        self._module, self._lora, self._seed = module, lora, seed
        self._names: list[str] = []
        self._layers: list[Any] = []
        self._active_name = ""

    def parameters(self, name: str) -> Mapping[str, torch.nn.Parameter]:
        """Return the parameters of an adapter, created if missing, by their `generic_parameter_name`."""
        self._add_adapter(name)
        adapter_infix = f".{_to_peft_name(name)}."
        return {
            self.generic_parameter_name(parameter_name, name): parameter
            for parameter_name, parameter in self._module.named_parameters()
            if ".lora_" in parameter_name and adapter_infix in parameter_name
        }

    @staticmethod
    def generic_parameter_name(parameter_name: str, name: str) -> str:
        """Return a parameter's name with `default` in place of the name of its adapter, `name`."""
        return parameter_name.replace(f".{_to_peft_name(name)}.", ".default.")

    def activate(self, name: str) -> None:
        """Use an adapter for all sequences from now on, and let only its parameters require gradients."""
        self._add_adapter(name)
        if self._active_name != name:
            for layer in self._layers:
                layer.set_adapter(_to_peft_name(name))
            self._active_name = name

    @contextmanager
    def use_adapters(self, names: Sequence[str]) -> Iterator[None]:
        """Use the adapter `names[i]` for sequence i of each batch inside a `with` block."""
        if len(set(names)) == 1:
            self.activate(names[0])
            yield
            return
        for name in names:
            self._add_adapter(name)
        adapter_names = [_to_peft_name(name) for name in names]

        def add_adapter_names(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, kwargs | {"adapter_names": adapter_names}

        handles = [layer.register_forward_pre_hook(add_adapter_names, with_kwargs=True) for layer in self._layers]
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
        self._lora.inject(self._module, self._seed, _to_peft_name(name))
        self._module.to(device)
        self._layers = [module for module in self._module.modules() if isinstance(module, LoraLayer)]
        self._names.append(name)
        # `inject` makes the parameters of all adapters trainable; this restricts gradients to the new adapter.
        for layer in self._layers:
            layer.set_adapter(_to_peft_name(name))
        self._active_name = name


def _to_peft_name(name: str) -> str:
    """Return the name of an adapter in peft, which does not accept the empty name."""
    return name or "default"


def check_adapter(adapter: str) -> None:
    """Check that peft is installed and that the folder `adapter` contains the files of an adapter.

    Raises:
        LLMError: peft is not installed, the folder does not exist, or a file is missing.
    """
    if importlib.util.find_spec("peft") is None:
        raise LLMError(f"llm.adapter={adapter} needs the optional package peft: pip install 'llmrl[finetune]'")
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        raise LLMError(f"llm.adapter={adapter}: there is no such folder. {_FOLDER_ADVICE}")
    missing = [] if (folder / ADAPTER_CONFIG_FILE).is_file() else [ADAPTER_CONFIG_FILE]
    if not any((folder / name).is_file() for name in ADAPTER_WEIGHT_FILES):
        missing.append(ADAPTER_WEIGHT_FILES[0])
    if missing:
        raise LLMError(f"llm.adapter={adapter} holds no adapter: {' and '.join(missing)} is missing. {_FOLDER_ADVICE}")


def check_base_model(adapter: str, model: str, revision: str | None, fingerprint: str | None) -> None:
    """Check that an adapter was trained on the given weights, if its folder has the file `BASE_MODEL_FILE`.

    Args:
        adapter: folder of the adapter.
        model: model to use the adapter with, as in the config.
        revision: revision of a model of the hub; None: the default one.
        fingerprint: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        LLMError: the adapter was trained on other weights, or `BASE_MODEL_FILE` cannot be read.
    """
    base_model_path = Path(adapter).expanduser() / BASE_MODEL_FILE
    if not base_model_path.is_file():
        return
    try:
        base_model = json.loads(base_model_path.read_text(encoding="utf-8"))
        base_name, base_revision, base_fingerprint = (base_model[key] for key in ("model", "revision", "files"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LLMError(
            f"{base_model_path} cannot be read ({error!r}); restore the file or train the adapter again"
        ) from error
    if None not in (fingerprint, base_fingerprint):
        is_same_model = fingerprint == base_fingerprint
    else:
        is_same_model = fingerprint is base_fingerprint and (model, revision) == (base_name, base_revision)
    if not is_same_model:
        trained_model, used_model = (
            name if commit is None else f"{name} llm.revision={commit}"
            for name, commit in ((base_name, base_revision), (model, revision))
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
    from peft import TaskType
    from safetensors.torch import save_file

    weights = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    is_seq2seq = bool(getattr(module.config, "is_encoder_decoder", False))
    config = lora.peft_config(
        target_modules=sorted({name.partition(".lora_")[0] for name in weights}),
        task_type=TaskType.SEQ_2_SEQ_LM if is_seq2seq else TaskType.CAUSAL_LM,
        base_model_name_or_path=model,
        inference_mode=True,
    )

    def save(path: Path) -> None:
        config.save_pretrained(str(path))
        peft_weights = {f"base_model.model.{name.replace('.default', '')}": x for name, x in weights.items()}
        save_file(peft_weights, path / ADAPTER_WEIGHT_FILES[0])

    save_adapter(save, folder, model, revision, folder_fingerprint(model))


def save_adapter(
    save: Callable[[Path], None], folder: Path, model: str, revision: str | None, fingerprint: str | None
) -> None:
    """Write an adapter to `folder` atomically, and replace an existing one.

    Equal adapters give equal files, and therefore equal fingerprints.

    Args:
        save: function that writes the adapter into an existing folder, e.g. `save_pretrained` of a `PeftModel`.
        folder: folder to write.
        model, revision, fingerprint: fields `model`, `revision` and `files` of `BASE_MODEL_FILE`.

    Raises:
        RunFolderError: the operating system cannot write the files.
    """
    temporary_folder = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary_folder, ignore_errors=True)
        temporary_folder.mkdir(parents=True)
        save(temporary_folder)
        (temporary_folder / "README.md").unlink(missing_ok=True)  # an empty model card
        settings = json.loads((temporary_folder / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
        # peft writes names from sets, whose order differs between processes.
        are_names = {k: isinstance(v, list) and all(isinstance(x, str) for x in v) for k, v in settings.items()}
        settings = {k: sorted(v) if are_names[k] else v for k, v in settings.items()}
        config_text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
        (temporary_folder / ADAPTER_CONFIG_FILE).write_text(config_text, encoding="utf-8")
        base_model = {"model": model, "revision": revision, "files": fingerprint}
        (temporary_folder / BASE_MODEL_FILE).write_text(json.dumps(base_model, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        temporary_folder.replace(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {describe_write_error(folder, error)}") from error
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def merge_adapter(module: torch.nn.Module, adapter: str) -> torch.nn.Module:
    """Add the adapter in the folder `adapter` to the weights of `module`; return the model without layers of peft."""
    from peft import PeftModel

    return PeftModel.from_pretrained(module, adapter).merge_and_unload()


def adapter_fingerprint(adapter: str) -> str:
    """Return the hexadecimal SHA-256 of the adapter's folder (`folder_fingerprint`).

    Raises:
        LLMError: there is no such folder, or a file cannot be read.
    """
    fingerprint = folder_fingerprint(adapter)
    if fingerprint is None:
        raise LLMError(f"llm.adapter={adapter}: there is no such folder. {_FOLDER_ADVICE}")
    return fingerprint


def load_adapter(module: torch.nn.Module, adapter: str, device: str) -> torch.nn.Module:
    """Insert the adapter in the folder `adapter` into `module`; return the model frozen and in eval mode.

    The adapter is not merged into the weights, because in half precision the sum would lose digits of the adapter.

    Raises:
        LLMError: the adapter is missing or damaged, adapts prompts instead of weights, or belongs to another model.
    """
    check_adapter(adapter)
    import torch
    from peft import PeftConfig, PeftModelForCausalLM
    from safetensors import SafetensorError

    folder = str(Path(adapter).expanduser())
    # peft draws initial weights before it loads the saved ones; this must not change torch's random state.
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
            load_report = peft_model.load_adapter(folder, "default", torch_device=device)
        # ValueError: no such layers; RuntimeError: other shapes; OSError, SafetensorError, KeyError: damaged files.
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, SafetensorError) as error:
            raise LLMError(f"llm.adapter={adapter} cannot be loaded: {' '.join(str(error).split())[:400]}") from error
    if differing_names := [*load_report.missing_keys, *load_report.unexpected_keys]:
        raise LLMError(
            f"llm.adapter={adapter} belongs to another model: {len(differing_names)} layers differ, e.g. "
            f"{differing_names[0]}; use the model that the adapter was trained on"
        )
    base_model: torch.nn.Module = peft_model.get_base_model()
    return base_model.requires_grad_(False).eval()


@contextmanager
def disable_adapters(module: Any) -> Iterator[None]:
    """Disable the model's adapters inside a `with` block."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    trainable_parameters = [p for p in module.parameters() if p.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter in trainable_parameters:  # peft has frozen them
            parameter.requires_grad_(True)
