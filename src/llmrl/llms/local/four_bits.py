"""Linear layers whose weights bitsandbytes keeps in four bits: that gradients pass through them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import LLMError

if TYPE_CHECKING:
    import torch

LARGEST_ERROR = 0.05
"""Relative, of a layer's output or gradient; bfloat16 alone makes an error of less than a hundredth."""


def four_bit_layers(module: torch.nn.Module) -> dict[str, Any]:
    """Layers with weights in four bits by name; of a model without any, nothing is imported."""
    if "bitsandbytes" not in sys.modules:
        return {}
    from bitsandbytes.nn import Linear4bit

    return {name: layer for name, layer in module.named_modules() if isinstance(layer, Linear4bit)}


def keep_gradients(module: torch.nn.Module) -> None:
    """Keep such layers in training mode, whatever mode the model is put into.

    In evaluation mode, a processor with AVX512-BF16 packs their weights into a form whose product has no gradient, for
    good. Nothing else in them depends on the mode: dropout is in other layers.
    """
    for layer in four_bit_layers(module).values():
        layer.training = True
        layer.train = lambda mode=True, layer=layer: layer


def check_gradients(module: torch.nn.Module) -> None:
    """Hold such layers, one of each shape, to their own weights written out: what they give, and its gradient.

    A layer is first used without a gradient, as a rollout does. Nothing is done where there are no such layers.

    Raises:
        LLMError: they differ by more than `LARGEST_ERROR`, so what is trained through them would learn something else.
    """
    import torch

    kinds = {
        (layer.in_features, layer.out_features, layer.weight.device): n for n, layer in four_bit_layers(module).items()
    }
    for name in kinds.values():
        layer: Any = module.get_submodule(name)
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(4, layer.in_features, generator=draws).to(layer.weight.device)
        pull = torch.randn(4, layer.out_features, generator=draws).to(layer.weight.device)
        with torch.no_grad():
            layer(x)
        with torch.enable_grad():
            y = layer(x.requires_grad_())
            [gradient] = torch.autograd.grad(y, x, pull, allow_unused=True) if y.requires_grad else [None]
        error = float("inf") if gradient is None else _error(layer, x.detach(), y.detach(), pull, gradient)
        if not error <= LARGEST_ERROR:
            wrong = "no gradient" if gradient is None else f"outputs or gradients that are wrong by {error:.0%}"
            raise LLMError(
                f"weights in four bits give {wrong} on {layer.weight.device} (layer {name}), so an adapter over them "
                "would learn something else: use llm.four_bit=false, with llm.dtype=bfloat16 to save half of the "
                "memory, or the version of bitsandbytes in constraints.txt"
            )


def _error(layer: Any, x: torch.Tensor, y: torch.Tensor, pull: torch.Tensor, gradient: torch.Tensor) -> float:
    """The larger of the relative errors of the output `y` for inputs `x`, and of the gradient of sum(y * pull)."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    bias = None if layer.bias is None else layer.bias.detach().float()
    pairs = ((y, torch.nn.functional.linear(x, weight, bias)), (gradient, pull @ weight))
    return max(float((found - true).norm() / true.norm()) for found, true in pairs)
