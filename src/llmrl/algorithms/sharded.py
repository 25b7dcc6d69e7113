"""Tensors that are sharded over the processes of a run (`agents.llm_ppo.sharding`), and their optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from llmrl.core.processes import ProcessGroup

_MODULE = "torch.distributed.tensor"
"""Module that is slow to import; as long as it is not loaded, no tensor is sharded."""


def is_sharded(tensor: Any) -> bool:
    """Return whether this process holds only a part of the tensor."""
    return _MODULE in sys.modules and isinstance(tensor, sys.modules[_MODULE].DTensor)


def any_sharded(parameters: Iterable[nn.Parameter]) -> bool:
    return any(is_sharded(parameter) for parameter in parameters)


def groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return parameter groups of an optimizer, which cannot mix sharded and other parameters in one group."""
    parameters = list(parameters)
    split = [[p for p in parameters if is_sharded(p) == sharded] for sharded in (False, True)]
    return [{"params": group} for group in split if group]


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, processes: ProcessGroup) -> torch.Tensor:
    """Scale all gradients down to a joint norm of at most `max_norm`; return the norm before, a scalar."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [torch.zeros((), device=gradients[0].device) for _ in range(2)]
    for gradient in gradients:
        squares[is_sharded(gradient)] += _local_part(gradient).float().square().sum()
    processes.all_reduce([squares[1]])
    norm = (squares[0] + squares[1]).sqrt()
    for gradient in gradients:
        _local_part(gradient).mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def gathered(state: Any) -> Any:
    """Return a state (mappings, lists and leaves) with full tensors on the CPU instead of sharded ones.

    All processes must call it at the same time, and all receive the result.
    """
    if is_sharded(state):
        full: torch.Tensor = state.full_tensor()
        return full.detach().cpu()
    if isinstance(state, Mapping):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(gathered(value) for value in state)
    return state


def divided(state: Any, like: Any) -> Any:
    """Invert `gathered`: shard tensors like their counterparts in `like`, a state of the same structure."""
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        full = state.to(device=like.device, dtype=like.dtype)
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    if isinstance(like, Mapping):
        return {key: divided(value, like.get(key)) for key, value in state.items()}
    if isinstance(like, list | tuple):
        return type(state)(divided(value, template) for value, template in zip(state, like, strict=True))
    return state


def _local_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
