"""Low-rank adapters of one language model, of which each sequence of a batch uses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmrl.llms.local.lora import Lora

if TYPE_CHECKING:
    import torch


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
