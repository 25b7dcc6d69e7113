"""Stacked networks: networks of one shape computed at once, with one more leading axis in each parameter.

The output for a network is bit for bit independent of the networks stacked with it and of their number. A run within a
sweep then equals a run alone. On one thread, three properties ensure this. Products are batched, one weight per
network, with widths padded with zeros to whole cache lines, because libraries choose instructions by alignment.
Convolutions run one network after the other, because a grouped convolution chooses its method by the number of groups.
Sums run only over axes that contain numbers of one network, and vector instructions of Adam never combine two networks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn import functional

from llmrl.networks.actor_critic import ActorCritic, LogStd
from llmrl.networks.spatial_cores import GridCore, OneHots, PixelCore, PlanesCore

MAX_CELLS_PER_BATCH = 12_000
"""Maximum number of map or image cells in one batch on a CPU; intermediate results then stay in its cache."""
MAX_SAMPLES_PER_BATCH = 8192
"""Maximum number of samples in one batch on a CPU, for the same reason."""
FLOATS_PER_CACHE_LINE = 16
"""Number of float32 values in a cache line."""

_STACKABLE_MODULES = (
    *(ActorCritic, LogStd, GridCore, PixelCore, PlanesCore, OneHots),
    *(nn.Sequential, nn.Identity, nn.ReLU, nn.Tanh, nn.Linear, nn.Conv2d),
)
"""Modules that take samples with two leading axes [k, n, ...] once their layers are stacked."""


class StackedLinear(nn.Module):
    """`nn.Linear` of k networks: [k, n, n_in] -> [k, n, n_out], with weights [k, n_out, n_in] padded with zeros."""

    def __init__(self, layer: nn.Linear, k: int) -> None:
        super().__init__()
        self.n_out = layer.out_features
        self.weight = _make_parameter(layer.weight, k, self.n_out, layer.in_features)
        self.bias = None if layer.bias is None else _make_parameter(layer.bias, k, self.n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = pad_inputs(x)
        weight = self.weight.mT
        outputs = torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], x, weight)
        # Sliced only if needed: the backward pass of a slice copies the gradient, even if the slice has all elements.
        return outputs if outputs.shape[-1] == self.n_out else outputs[..., : self.n_out]


def pad_inputs(x: torch.Tensor) -> torch.Tensor:
    """Return inputs of a `StackedLinear`, [..., n_in], padded with zeros to whole cache lines."""
    n_padding = -x.shape[-1] % FLOATS_PER_CACHE_LINE
    return functional.pad(x, (0, n_padding)) if n_padding else x


class StackedConv2d(nn.Module):
    """`nn.Conv2d` of k networks, one after the other: [k, n, c_in, h, w] -> [k, n, c_out, h', w'].

    The weights of each network are flattened to one vector.
    """

    def __init__(self, layer: nn.Conv2d, k: int) -> None:
        super().__init__()
        self.shape, self.n_out = layer.weight.shape, layer.out_channels
        self.weight = _make_parameter(layer.weight, k, layer.weight.numel())
        self.bias = None if layer.bias is None else _make_parameter(layer.bias, k, self.n_out)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weight[:, : self.shape.numel()].unbind()
        biases = [None] * len(weights) if self.bias is None else self.bias[:, : self.n_out].unbind()
        outputs = [
            functional.conv2d(inputs, weight.view(self.shape), bias, self.stride, self.padding, self.dilation)
            for inputs, weight, bias in zip(x.unbind(), weights, biases, strict=True)
        ]
        return torch.stack(outputs)


class StackedLogStd(nn.Module):
    """`LogStd` of k networks: [k, n, m] -> [k, n, m + n_std], with weights [k, n_std] padded with zeros."""

    def __init__(self, layer: LogStd, k: int) -> None:
        super().__init__()
        self.n_std = layer.weight.numel()
        self.weight = _make_parameter(layer.weight, k, self.n_std)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        # The padded weight is expanded and then sliced, so that its gradient is summed like that of a bias.
        return torch.cat([outputs, self.weight[:, None].expand(-1, outputs.shape[1], -1)[..., : self.n_std]], dim=-1)


class StackedNetwork:
    """Stack of k networks of one shape, computed at once.

    The stack contains a copy of the weights. `read` copies weights from the networks, `write` copies them back.

    Args:
        members: the networks, for which `are_stackable` is true.

    Attributes:
        network: stacked network, from samples [k, n, ...] to outputs [k, n, n_outputs] and values [k, n].
        parameters: each stacked parameter [k, ...] with the list of the corresponding parameters of the networks.
    """

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.members = members
        self.network = copy.deepcopy(members[0])
        _stack_layers(self.network, len(members))
        member_parameters = [dict(member.named_parameters()) for member in members]
        self.parameters: list[tuple[nn.Parameter, list[nn.Parameter]]] = [
            (p, [group[name] for group in member_parameters]) for name, p in self.network.named_parameters()
        ]
        self._member_weights = [weight.data for _, group in self.parameters for weight in group]
        self._member_views = [view for p, group in self.parameters for view in make_member_views(p.data, group[0])]
        self.read()

    @torch.no_grad()
    def read(self) -> None:
        """Copy the weights of the networks into the stack."""
        torch._foreach_copy_(self._member_views, self._member_weights)

    @torch.no_grad()
    def write(self) -> None:
        """Copy the weights of the stack into the networks."""
        torch._foreach_copy_(self._member_weights, self._member_views)


def make_member_views(stacked: torch.Tensor, single: torch.Tensor) -> list[torch.Tensor]:
    """Return views, one per network, of the part of a `stacked` parameter or moment that has the shape of `single`."""
    if stacked.dim() == single.dim() + 1:
        inner = tuple(slice(0, n) for n in single.shape)
        return [tensor[inner] for tensor in stacked.unbind()]
    return [tensor[: single.numel()].view(single.shape) for tensor in stacked.unbind()]


def are_stackable(networks: Sequence[nn.Module]) -> bool:
    """Return whether the networks have the same architecture and buffers, and only layers that can be stacked.

    Networks with a memory or a `film` core cannot be stacked, because the contents of a batch (starts of episodes,
    instructions) decide which operations are computed.
    """
    modules = list(networks[0].named_modules())
    if not all(type(module) in _STACKABLE_MODULES for _, module in modules) or type(networks[0]) is not ActorCritic:
        return False
    if any(isinstance(m, nn.Conv2d) and (m.groups != 1 or m.padding_mode != "zeros") for _, m in modules):
        return False
    architecture = _describe_architecture(networks[0])
    buffers = list(networks[0].buffers())
    return all(
        _describe_architecture(network) == architecture
        and len(list(network.buffers())) == len(buffers)
        and all(torch.equal(*pair) for pair in zip(network.buffers(), buffers, strict=True))
        for network in networks[1:]
    )


def choose_stack_slices(networks: Sequence[ActorCritic], n_samples: int, n_cells: int) -> list[slice]:
    """Return slices of the networks to stack together, so that intermediate results fit into a CPU's cache.

    Args:
        networks: the networks, for which `are_stackable` is true.
        n_samples: number of samples per network in one batch.
        n_cells: number of cells of a sample's map or image (`count_cells`); 0: there is none.
    """
    max_networks = n = len(networks)
    if next(networks[0].parameters()).device.type == "cpu":
        max_networks_by_cells = MAX_CELLS_PER_BATCH // (n_samples * n_cells) if n_cells else n
        max_networks = max(1, min(MAX_SAMPLES_PER_BATCH // n_samples, max_networks_by_cells))
    n_slices = -(-n // max_networks)
    bounds = [n * i // n_slices for i in range(n_slices + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def count_cells(network: ActorCritic, observation: dict[str, torch.Tensor]) -> int:
    """Return height x width of the map or image [..., height, width, n_features] that the network convolves; else 0."""
    if network.spatial_channel is None or network.spatial_channel not in observation:
        return 0
    if not any(isinstance(layer, nn.Conv2d) for layer in network.core.modules()):
        return 0
    height, width = observation[network.spatial_channel].shape[-3:-1]
    return int(height * width)


def _stack_layers(module: nn.Module, k: int) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, StackedLinear(child, k))
        elif isinstance(child, nn.Conv2d):
            setattr(module, name, StackedConv2d(child, k))
        elif isinstance(child, LogStd):
            setattr(module, name, StackedLogStd(child, k))
        else:
            _stack_layers(child, k)


def _make_parameter(single: torch.Tensor, k: int, *shape: int) -> nn.Parameter:
    """Return zeros [k, *shape] like `single`, as a parameter, with each axis of `shape` padded to whole cache lines."""
    padded_shape = (-(-n // FLOATS_PER_CACHE_LINE) * FLOATS_PER_CACHE_LINE for n in shape)
    return nn.Parameter(single.data.new_zeros((k, *padded_shape)), requires_grad=single.requires_grad)


def _describe_architecture(network: nn.Module) -> list[object]:
    """Return the properties that must be equal in stacked networks."""
    return [
        *_iterate_properties(network),
        *((name, type(module), module.extra_repr()) for name, module in network.named_modules()),
    ]


def _iterate_properties(network: nn.Module) -> Iterator[object]:
    for name, p in network.named_parameters():
        yield name, p.shape, p.dtype, p.device, p.requires_grad
    if isinstance(network, ActorCritic):
        yield (
            network.spatial_channel,
            network.instruction_channel,
            network.vector_inputs,
            network.has_central_critic,
            network.distribution,
        )
