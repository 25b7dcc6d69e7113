"""Tensors that the processes of a run have divided among them (`agents.llm_ppo.sharding`), and their optimiser."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from llmrl.core.processes import ProcessGroup

_MODULE = "torch.distributed.tensor"
"""Takes a while to import, and without it nothing is divided."""


def is_divided(tensor: Any) -> bool:
    """Whether this process holds a part of it only."""
    return _MODULE in sys.modules and isinstance(tensor, sys.modules[_MODULE].DTensor)


def any_divided(parameters: Iterable[nn.Parameter]) -> bool:
    return any(is_divided(parameter) for parameter in parameters)


def groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameters as an optimiser takes them: it cannot handle divided and whole ones in one group."""
    parameters = list(parameters)
    split = [[p for p in parameters if is_divided(p) == part] for part in (False, True)]
    return [{"params": group} for group in split if group]


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, processes: ProcessGroup) -> torch.Tensor:
    """Scale all gradients down so that together they have at most this norm; returns the norm before, a scalar."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [torch.zeros((), device=gradients[0].device) for _ in range(2)]
    for gradient in gradients:
        squares[is_divided(gradient)] += _own(gradient).float().square().sum()
    processes.all_reduce([squares[1]])
    norm = (squares[0] + squares[1]).sqrt()
    for gradient in gradients:
        _own(gradient).mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def gathered(state: Any) -> Any:
    """A state (mappings, lists and leaves) with whole tensors in place of divided ones, on the CPU. All processes have
    to ask for it at the same time, and all get it."""
    if is_divided(state):
        whole: torch.Tensor = state.full_tensor()
        return whole.detach().cpu()
    if isinstance(state, Mapping):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(gathered(value) for value in state)
    return state


def divided(state: Any, like: Any) -> Any:
    """The reverse: what is a divided tensor in `like`, a state of the same form, is divided in the same way."""
    if is_divided(like):
        from torch.distributed.tensor import distribute_tensor

        whole = state.to(device=like.device, dtype=like.dtype)
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    if isinstance(like, Mapping):
        return {key: divided(value, like.get(key)) for key, value in state.items()}
    if isinstance(like, list | tuple):
        return type(state)(divided(value, other) for value, other in zip(state, like, strict=True))
    return state


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if is_divided(tensor) else tensor  # type: ignore[attr-defined]
