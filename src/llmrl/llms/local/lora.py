"""Low-rank adapters of a frozen model (LoRA, arXiv 2106.09685), and sets of them for the sequences of a batch."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval

if TYPE_CHECKING:
    import torch

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
        self.check(module)
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

    def check(self, module: torch.nn.Module) -> int:
        """Return the number of parameters that would be trained, without changing `module`.

        Raises:
            ConfigError: the model has no such layers, or its output layer is among them.
        """
        linear = self._linear_layers(module)
        targets = self._target_layers(module)
        if not targets:
            ends = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"lora.targets={self.targets}: the model has no such layers; use all-linear or some of "
                f"{', '.join(ends)}"
            )
        if (head := _head(module, linear)) in targets:
            raise ConfigError(
                f"lora.targets={self.targets}: {head} is the output layer, which cannot have an adapter; leave it out"
            )
        return sum(self.rank * sum(linear[name].weight.shape) for name in targets)

    def _linear_layers(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return all linear layers of a model by name, without those of adapters."""
        import torch

        return {
            name.removesuffix(".base_layer"): m
            for name, m in module.named_modules()
            if ".lora_" not in name and (isinstance(m, torch.nn.Linear) or _is_conv1d(m))
        }

    def _target_layers(self, module: torch.nn.Module) -> set[str]:
        """Return the names of the layers that get an adapter."""
        linear = self._linear_layers(module)
        if self.targets == "all-linear":
            return {name for name in linear if name != _head(module, linear)}
        return {n for n in linear if any(n == target or n.endswith(f".{target}") for target in self.targets)}


def _head(module: torch.nn.Module, linear: dict[str, Any]) -> str:
    """Return the name of the output layer; "" if it is not in `linear`."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    return next((name for name, layer in linear.items() if layer is head), "")


def _is_conv1d(module: Any) -> bool:
    """Return whether `module` is a `Conv1D`, GPT-2's linear layer."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


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
        self._active = ""

    def parameters(self, name: str) -> Mapping[str, torch.nn.Parameter]:
        """Return the parameters of an adapter, by names that do not contain that of the adapter."""
        self._add(name)
        part = f".{_peft_name(name)}."
        return {
            self.general_name(parameter_name, name): parameter
            for parameter_name, parameter in self._module.named_parameters()
            if ".lora_" in parameter_name and part in parameter_name
        }

    @staticmethod
    def general_name(parameter_name: str, name: str) -> str:
        """Return the name of a parameter of the adapter `name` without that name."""
        return parameter_name.replace(f".{_peft_name(name)}.", ".default.")

    def activate(self, name: str) -> None:
        """Use an adapter for all sequences; only its parameters require gradients."""
        self._add(name)
        if self._active != name:
            for layer in self._layers:
                layer.set_adapter(_peft_name(name))
            self._active = name

    @contextmanager
    def using(self, names: Sequence[str]) -> Iterator[None]:
        """Use the adapter `names[i]` for sequence i of the batches within a `with` block."""
        if len(set(names)) == 1:
            self.activate(names[0])
            yield
            return
        for name in names:
            self._add(name)
        adapter_names = [_peft_name(name) for name in names]

        def add_names(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, kwargs | {"adapter_names": adapter_names}

        handles = [layer.register_forward_pre_hook(add_names, with_kwargs=True) for layer in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, name: str) -> None:
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
        self._active = name


def _peft_name(name: str) -> str:
    """Return the name of an adapter in peft."""
    return name or "default"
