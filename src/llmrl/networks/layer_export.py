"""Export of a network's actor as a list of layers for other programs.

A layer is a function of PyTorch or a function that the program in `docs/with_other_tools.md` defines: `append_numbers`,
`one_hot`, `planes` and `lstm_cell`. Its input is the output of the previous layer. The input of the first layer is the
map or image that the network reads or, without one, an empty vector.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn

from llmrl.core.errors import IncompatibilityReason, Incompatible
from llmrl.networks.action_distributions import NumericDistribution
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.layers import MAX_NORMALIZED_VALUE, RunningMoments
from llmrl.networks.spatial_cores import FilmCore, GridCore, OneHots, PixelCore, PlanesCore


class ActorLayers:
    """The layers of the actor of one network.

    Their output is the logits of all actions or, if an action is a vector of numbers, the most probable action.

    Args:
        network: network with discrete actions, or with actions that are vectors of numbers.

    Attributes:
        layers: a dictionary for each layer: `function`; `weights`, names of tensors that are its arguments after the
            input; `options`, its keyword arguments.
        tensors: name -> tensor.

    Raises:
        Incompatible: the core reads an instruction, or an action includes integers with few values.
    """

    def __init__(self, network: ActorCritic) -> None:
        self.layers: list[dict[str, Any]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        if isinstance(network.core, FilmCore):
            raise Incompatible(
                IncompatibilityReason.INTERFACE, "a core that reads an instruction (agent.core=film) cannot be exported"
            )
        if isinstance(network.core, nn.Sequential):
            self._add_vector_inputs(network)
            self._add_modules(network.core)
        else:
            self._add_spatial_core(network.core)
            self._add_modules(network.core.linear)  # type: ignore[arg-type]
            self._add_vector_inputs(network)
        if network.memory is not None:
            lstm = network.memory.lstm
            for i in range(lstm.num_layers):
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                self._add_layer("lstm_cell", {name: getattr(lstm, f"{name}_l{i}") for name in names})
        self._add_modules(network.actor)
        if isinstance(network.distribution, NumericDistribution):
            self._add_numeric_actions(network.distribution)

    def _add_layer(self, function: str, weights: dict[str, torch.Tensor] | None = None, **options: Any) -> None:
        named_tensors = {f"{len(self.layers)}.{name}": tensor for name, tensor in (weights or {}).items()}
        self.layers.append({"function": function, "weights": list(named_tensors), "options": options})
        self.tensors |= {name: tensor.detach() for name, tensor in named_tensors.items()}

    def _add_modules(self, modules: nn.Module) -> None:
        for module in modules.children():
            match module:
                case nn.Linear(weight=weight, bias=bias):
                    self._add_layer("linear", {"weight": weight, "bias": bias})
                case nn.Conv2d(weight=weight, bias=bias):
                    geometry = {"stride": list(module.stride), "padding": list(module.padding)}
                    self._add_layer("conv2d", {"weight": weight, "bias": bias}, **geometry)  # type: ignore[dict-item]
                case nn.ReLU() | nn.Tanh():
                    self._add_layer(type(module).__name__.lower())
                case _:
                    raise TypeError(f"{type(module).__name__} is not a layer of an actor")

    def _add_vector_inputs(self, network: ActorCritic) -> None:
        """Append the numbers outside the map and the index of the agent as one-hot: (x - mean) / deviation, clipped."""
        if not network.vector_inputs:
            return
        moments = network.normalizer or RunningMoments()
        limit = math.inf if network.normalizer is None else MAX_NORMALIZED_VALUE
        weights = {"mean": moments.mean, "deviation": moments.deviation, "limit": torch.tensor(limit)}
        weights = {name: tensor.float() for name, tensor in weights.items()}
        self._add_layer("append_numbers", weights, channels=list(network.vector_channels))

    def _add_spatial_core(self, core: nn.Module) -> None:
        """Add the layers of a core for a map or an image, except its last layer."""
        if isinstance(core, PlanesCore):
            self._add_layer("planes", planes=[list(plane) for plane in core.planes])
        elif isinstance(core, PixelCore):
            self._add_layer("div", other=255.0)
            self._add_layer("permute", dims=[2, 0, 1])
            self._add_modules(core.convolutions)
            self._add_layer("flatten")
        elif isinstance(core, GridCore):
            one_hots = core.one_hots
            if isinstance(one_hots, OneHots) and one_hots.n_columns:
                offsets = [*one_hots.first_code.tolist(), one_hots.n_columns]
                self._add_layer("one_hot", codes=[high - low for low, high in itertools.pairwise(offsets)])
            self._add_layer("permute", dims=[2, 0, 1])
            self._add_modules(core.convolutions)
            if not len(core.convolutions):
                self._add_layer("permute", dims=[1, 2, 0])
            self._add_layer("flatten")

    def _add_numeric_actions(self, distribution: NumericDistribution) -> None:
        """Scale the outputs, the means of normalized numbers, to the bounds of the numbers."""
        if distribution.categorical_integers:
            raise Incompatible(
                IncompatibilityReason.INTERFACE, "actions that include integers with few values cannot be exported"
            )
        arrays = distribution.center, distribution.half_range
        center, half_range = (torch.tensor(x, dtype=torch.float32) for x in arrays)
        self._add_layer("linear", {"weight": half_range.diag(), "bias": center})
