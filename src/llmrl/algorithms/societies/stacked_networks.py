"""Networks of one shape as one network whose parameters have one more axis, so that all are computed at once."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.cnn import PixelCore
from llmrl.networks.maps import GridCore, OneHots, PlanesCore, StridedConvolution

CELLS = 12_000
"""Cells of maps or pictures that a processor convolves at once: with more, one network after the other is faster."""
SAMPLES = 8192
"""Samples that a processor takes in at once: with more, what is computed of them does not stay in its cache."""

_KNOWN = (
    *(ActorCritic, GridCore, PixelCore, PlanesCore, OneHots, StridedConvolution),
    *(nn.Sequential, nn.Identity, nn.ReLU, nn.Linear, nn.Conv2d),
)
"""Modules that take samples with two leading axes [k, n, ...] once their layers are stacked."""


class StackedLinear(nn.Module):
    """`nn.Linear` of k networks: [k, n, n_in] -> [k, n, n_out]."""

    def __init__(self, layer: nn.Linear, k: int) -> None:
        super().__init__()
        self.weight, self.bias = _parameter(layer.weight, k), _parameter(layer.bias, k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        if self.bias is None:
            return torch.bmm(x, self.weight.mT)
        return torch.baddbmm(self.bias[:, None], x, self.weight.mT)


class StackedConv2d(nn.Module):
    """`nn.Conv2d` of k networks: [k, n, c_in, h, w] -> [k, n, c_out, h', w'], as one convolution of k groups."""

    def __init__(self, layer: nn.Conv2d, k: int) -> None:
        super().__init__()
        self.weight, self.bias = _parameter(layer.weight, k), _parameter(layer.bias, k)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        k = len(self.weight)
        # Of what another such layer gave, this is a view.
        side_by_side = x.transpose(0, 1).flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        weight = self.weight.flatten(0, 1)
        y = nn.functional.conv2d(side_by_side, weight, bias, self.stride, self.padding, self.dilation, k)
        return y.view(len(y), k, -1, *y.shape[2:]).transpose(0, 1)


class StackedNetwork:
    """k networks of one shape, computed at once.

    It has weights of its own, which `read` takes from the networks and `write` gives back.

    Args:
        members: the networks; `stackable`.

    Attributes:
        network: called with samples [k, n, ...], it gives logits [k, n, n_actions] and values [k, n].
    """

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.members = members
        self.network = copy.deepcopy(members[0])
        _stack_layers(self.network, len(members))
        own = [dict(member.named_parameters()) for member in members]
        self.parameters = [(p, [each[name] for each in own]) for name, p in self.network.named_parameters()]
        """Each parameter [k, ...] with the members'."""
        self.read()

    def read(self) -> None:
        for p, members in self.parameters:
            torch.stack([member.data for member in members], out=p.data)

    def write(self) -> None:
        members = [member.data for _, each in self.parameters for member in each]
        torch._foreach_copy_(members, [row for p, _ in self.parameters for row in p.data.unbind()])


def stackable(networks: Sequence[nn.Module]) -> bool:
    """Whether the networks compute the same function of their parameters and samples, one that can be stacked.

    Not so with a memory or a `film` core, whose work depends on the samples.
    """
    first = list(networks[0].named_modules())
    if not all(type(module) in _KNOWN for _, module in first) or type(networks[0]) is not ActorCritic:
        return False
    if any(isinstance(m, nn.Conv2d) and (m.groups != 1 or m.padding_mode != "zeros") for _, m in first):
        return False
    traits = _traits(networks[0])
    buffers = list(networks[0].buffers())
    return all(
        _traits(other) == traits and all(torch.equal(*pair) for pair in zip(other.buffers(), buffers, strict=True))
        for other in networks[1:]
    )


def stacks(networks: Sequence[ActorCritic], samples: int, cells: int) -> list[slice]:
    """Which of the networks to stack together so that it pays; slices of one network are best left alone.

    Args:
        networks: `stackable`.
        samples: that each is given at once.
        cells: of a sample's map or picture (`cells_of`); 0: it has none.
    """
    largest = n = len(networks)
    if next(networks[0].parameters()).device.type == "cpu":
        fit = min(SAMPLES // samples, CELLS // (samples * cells) if cells else n)
        largest = max(1, fit)
    pieces = -(-n // largest)
    bounds = [n * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def cells_of(network: ActorCritic, observation: dict[str, torch.Tensor]) -> int:
    """Cells of a sample's map or picture, where the network convolves one, among channels [..., height, width, k]."""
    if network.image is None or network.image not in observation:
        return 0
    if not any(isinstance(layer, nn.Conv2d) for layer in network.core.modules()):
        return 0
    height, width = observation[network.image].shape[-3:-1]
    return int(height * width)


def _stack_layers(module: nn.Module, k: int) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, StackedLinear(child, k))
        elif isinstance(child, nn.Conv2d):
            setattr(module, name, StackedConv2d(child, k))
        else:
            _stack_layers(child, k)


def _parameter(single: torch.Tensor | None, k: int) -> nn.Parameter | None:
    if single is None:
        return None
    return nn.Parameter(single.data.new_zeros((k, *single.shape)), requires_grad=single.requires_grad)


def _traits(network: nn.Module) -> list[object]:
    """What must be the same in networks that are stacked."""
    return [*_shapes(network), *((name, type(module), module.extra_repr()) for name, module in network.named_modules())]


def _shapes(network: nn.Module) -> Iterator[object]:
    for name, p in network.named_parameters():
        yield name, p.shape, p.dtype, p.device, p.requires_grad
    if isinstance(network, ActorCritic):
        yield network.image, network.words, network.vectors, network.central, network.join
