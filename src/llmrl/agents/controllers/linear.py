"""Controllers: linear policies, small multilayer perceptrons, and projections of these to a few random directions.

n: number of games (parallel copies of the environment), d: number of parameters of a policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.agents.controllers.labels import (
    count_inputs,
    format_indices,
    join_abbreviated,
    list_input_names,
    list_output_names,
)
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace

Activation = Literal["tanh", "leaky_relu"]
OutputTransform = Literal["raw", "tanh", "leaky_relu"]

LEAKY_SLOPE = 0.2
"""Slope of the leaky ReLU below zero, as in ProPS (arXiv 2511.21928)."""
MAX_LISTED_INPUTS = 40
"""Maximum number of inputs that a prompt describes one by one; for more inputs, it contains only a general rule."""


@dataclass(frozen=True)
class LayerSettings:
    """Shape of a `LayeredController`, and the range of its parameters.

    Attributes:
        bias: whether layers have biases.
        bound: each parameter is between -bound and bound.
        decimals: number of digits after the decimal point of each parameter; None: no rounding.
        output, clip_actions: `transform` and `clip_actions` of the `ActionDecoder`.
        hidden: number of units in each hidden layer; empty for a linear policy.
        activation: activation of hidden layers.
    """

    bias: bool
    bound: PositiveFloat
    decimals: NonNegativeInt | None
    output: OutputTransform
    clip_actions: bool
    hidden: Sequence[PositiveInt] = ()
    activation: Activation = "tanh"


class LayeredController:
    """Linear policy or multilayer perceptron: x -> activation(x W + b) -> ... -> x W + b -> action.

    Parameters are ordered by layer. Those of a layer with k inputs and m outputs are the rows of W [k, m], so that
    parameter i is the weight of input i // m on output i % m, and then m biases. For a linear policy this is the order
    of ProPS (arXiv 2511.21928).

    Each game has different parameters. Sums are computed input by input, so that a game's actions are bit for bit
    independent of the other games.

    Args:
        spec: spec of the environment.
        settings: shape and bounds.

    Raises:
        ConfigError: `bound` has more decimals than `decimals`, or `output` is `tanh` and actions are discrete.
        Incompatible: the environment has no channel `vector`.
    """

    channel = "vector"

    def __init__(self, spec: EnvSpec, settings: LayerSettings) -> None:
        s = settings
        if s.decimals is not None and round(s.bound, s.decimals) != s.bound:
            raise ConfigError(
                f"agent.bound={s.bound:g} has more digits than agent.decimals={s.decimals} allows; use fewer digits, "
                "or agent.decimals=null"
            )
        if spec.continuous_actions is None and s.output == "tanh":
            raise ConfigError(
                f"agent.output=tanh needs numeric actions, but those of env={spec.name} are discrete; use "
                "agent.output=raw"
            )
        self.name = "multilayer perceptron" if s.hidden else "linear policy"
        self.bias, self.activation = s.bias, s.activation
        self.action_decoder, self.clip_actions = ActionDecoder(spec, s.clip_actions, s.output), s.clip_actions
        widths = [count_inputs(spec, f"a {self.name}"), *s.hidden, self.action_decoder.n_outputs]
        self.layer_sizes = tuple(itertools.pairwise(widths))
        self.input_names = list_input_names(spec)
        self.space = ParameterSpace(self.name, tuple(self._build_parameters(s.bound, s.decimals)))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return actions [n] or [n, a] for observations [n, k] under parameters [n, d]."""
        return self.bind_parameters(parameters)(observation)

    def bind_parameters(self, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from observations [n, k] to actions with fixed parameters [n, d], faster than `act`."""
        # Games are the last axis, because NumPy is fastest if the last axis is the longest.
        n, parameter_columns, offset = len(parameters), np.ascontiguousarray(parameters.T, dtype=np.float64), 0
        layers = []
        for k, m in self.layer_sizes:
            # Biases, then the products of each input with its weights; they are summed in this order.
            terms = np.zeros((1 + k, m, n))
            if self.bias:
                terms[0] = parameter_columns[offset + k * m : offset + (k + 1) * m]
            layers.append((parameter_columns[offset : offset + k * m].reshape(k, m, n), terms, terms[1:]))
            offset += (k + self.bias) * m

        def act(observation: np.ndarray) -> np.ndarray:
            x = observation.T
            for layer_index, (weights, terms, products) in enumerate(layers):
                if layer_index:
                    x = np.tanh(x) if self.activation == "tanh" else leaky_relu(x)
                np.multiply(x[:, None], weights, products)
                # NumPy would sum a single column pairwise, in another order.
                x = np.add.reduce(terms, axis=0) if terms[0].size > 1 else np.cumsum(terms, axis=0)[-1]
            return self.action_decoder(x.T)

        return act

    @property
    def layout(self) -> str:
        """Description of the parameters by index, for prompts of proposers."""
        lines, offset = [], 0
        for layer_index, (k, m) in enumerate(self.layer_sizes):
            lines += self._describe_layer(layer_index, offset, k, m)
            offset += (k + self.bias) * m
        return "\n".join([*lines, self.action_decoder.description])

    @property
    def invariances(self) -> str:
        """Description of changes of parameters that change no action, for prompts; "" if there are none."""
        if self.action_decoder.continuous_actions is not None:
            return ""
        k, m = self.layer_sizes[-1]
        offset = self.space.dim - (k + self.bias) * m
        if offset:
            parameters_text, source_text = f"params[{offset}] to params[{self.space.dim - 1}]", "of one hidden unit"
        else:
            parameters_text, source_text = "all numbers", "of one entry of the observation"
        biases_text = ", or to all biases of the outputs" if self.bias else ""
        return (
            "Only which output is largest counts. So nothing changes where "
            f"{parameters_text} are multiplied by the same positive factor, or the same amount is added to the {m} "
            f"weights {source_text}{biases_text}. Numbers that differ in nothing else are one policy, up to what "
            "rounding does."
        )

    def _describe_layer(self, layer_index: int, offset: int, k: int, m: int) -> list[str]:
        is_output = layer_index == len(self.layer_sizes) - 1
        input_name = f"hidden{layer_index}" if layer_index else "observation"
        output_name = "output" if is_output else f"hidden{layer_index + 1}"
        bias_text = f" + params[{offset + k * m} + j]" if self.bias else ""
        offset_text = f"{offset} + " if offset else ""
        sum_text = f"the sum over i of {input_name}[i] * params[{offset_text}{m} * i + j]{bias_text}"
        activation_text = "tanh" if self.activation == "tanh" else f"leaky ReLU (slope {LEAKY_SLOPE:g} below 0)"
        prefix = "" if is_output else f"{activation_text} of "
        lines = [f"{output_name}[j], for j from 0 to {m - 1}, is {prefix}{sum_text}, with i from 0 to {k - 1}."]
        if layer_index == 0 and k <= MAX_LISTED_INPUTS:
            for i, name in enumerate(self.input_names):
                name_suffix = "" if name == f"observation[{i}]" else f" ({name})"
                lines.append(f"- {format_indices(i * m, i * m + m - 1)}: weights of observation[{i}]{name_suffix}")
            if self.bias:
                lines.append(f"- {format_indices(k * m, k * m + m - 1)}: biases")
        elif layer_index == 0:
            lines.append(f"The entries of the observation are: {join_abbreviated(self.input_names)}.")
        return lines

    def _build_parameters(self, bound: float, decimals: int | None) -> list[Parameter]:
        parameters: list[Parameter] = []
        for layer_index, (k, m) in enumerate(self.layer_sizes):
            is_output = layer_index == len(self.layer_sizes) - 1
            hidden_names = [f"hidden {layer_index + 1}.{j}" for j in range(m)]
            outputs = self.action_decoder.output_names if is_output else hidden_names
            inputs = self.input_names if layer_index == 0 else [f"hidden {layer_index}.{i}" for i in range(k)]
            descriptions = [
                f"weight of {input_name} on {output_name}" for input_name in inputs for output_name in outputs
            ]
            descriptions += [f"bias of {output_name}" for output_name in outputs] if self.bias else []
            parameters += [
                Parameter(f"params[{len(parameters) + i}]", -bound, bound, "weight", description, decimals)
                for i, description in enumerate(descriptions)
            ]
        return parameters


class ActionDecoder:
    """Map from a policy's outputs to actions.

    A discrete action is the one with the largest output (the first of equal ones); a numeric action consists of the
    transformed outputs.

    Args:
        spec: spec of the environment.
        clip_actions: whether real numbers in an action are clipped to their bounds; integers are always clipped.
        transform: function that is applied to outputs. `raw`: none; `leaky_relu`: slope 0.2; `tanh`: scaled to the
            bounds of each number.
    """

    def __init__(self, spec: EnvSpec, clip_actions: bool, transform: OutputTransform = "raw") -> None:
        self.continuous_actions, self.clip_actions, self.transform = spec.continuous_actions, clip_actions, transform
        self.n_outputs = spec.n_actions if spec.continuous_actions is None else spec.continuous_actions.dim
        self.output_names = list_output_names(spec)
        if spec.continuous_actions is not None:
            self.low, self.high = np.array(spec.continuous_actions.low), np.array(spec.continuous_actions.high)

    def __call__(self, outputs: np.ndarray) -> np.ndarray:
        """Return actions [n] int64 or [n, a] float64 for outputs [n, n_outputs]."""
        if self.transform == "leaky_relu":
            outputs = leaky_relu(outputs)
        elif self.transform == "tanh":
            outputs = np.tanh(outputs)
        if self.continuous_actions is None:
            return outputs.argmax(axis=1)
        if self.transform == "tanh":
            outputs = (self.high + self.low) / 2 + (self.high - self.low) / 2 * outputs
        is_integer = np.array(self.continuous_actions.is_integer)
        outputs = np.where(is_integer, np.rint(outputs), outputs)
        return np.where(self.clip_actions | is_integer, np.clip(outputs, self.low, self.high), outputs)

    @property
    def description(self) -> str:
        """Description of the map, for prompts, in which outputs are called output[0], output[1], ..."""
        transform_text = {
            "raw": "",
            "tanh": "tanh of ",
            "leaky_relu": f"leaky ReLU (slope {LEAKY_SLOPE:g} below 0) of ",
        }[self.transform]
        if self.continuous_actions is None:
            labels = [f"output[{j}] is of action {name}" for j, name in enumerate(self.output_names)]
            return f"The action taken is the one whose output is largest: {join_abbreviated(labels)}."
        bounds = [
            f"output[{j}] is {name}, from {low:g} to {high:g}"
            for j, (name, low, high) in enumerate(zip(self.output_names, self.low, self.high, strict=True))
        ]
        all_integer, has_integer = all(self.continuous_actions.is_integer), any(self.continuous_actions.is_integer)
        scale_text = {"raw": "", "tanh": ", stretched over its bounds"}.get(self.transform, "")
        clip_text = "put inside these bounds" if self.clip_actions or all_integer else "given to the game as it is"
        round_text = " rounded to a whole number and" if all_integer else ""
        action_text = (
            f"The action is {transform_text}the outputs{scale_text}: {join_abbreviated(bounds)}; each is{round_text} "
            f"{clip_text}."
        )
        if all_integer or not has_integer:
            return action_text
        integer_names = [self.output_names[j] for j in np.flatnonzero(self.continuous_actions.is_integer)]
        return f"{action_text} Rounded to a whole number inside the bounds: {join_abbreviated(integer_names)}."


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0.0, x, LEAKY_SLOPE * x)


class ProjectedController:
    """Controller whose parameters z determine the parameters theta of the controller `inner`: theta = z Q^T.

    Q [d, rank] is the random orthogonal factor (QR) of a matrix of standard normal numbers. ProPS (arXiv 2511.21928)
    uses the first `rank` columns of the factor of a square matrix, which have the same distribution. Its initial
    z = theta Q with theta from N(0, s^2) has the distribution N(0, s^2).

    Args:
        inner: controller whose parameters are theta.
        seeds: seed tree for Q.
        rank: number of directions, at most d.
        bound: each element of z is between -bound and bound; theta may exceed the bounds of `inner`.
        decimals: number of digits after the decimal point of the elements of z; None: no rounding.

    Raises:
        ConfigError: `rank` exceeds the number of parameters.
    """

    def __init__(self, inner: LayeredController, seeds: Seeds, rank: int, bound: float, decimals: int | None) -> None:
        self.inner, self.channel = inner, inner.channel
        self.clip_actions = inner.clip_actions
        d = inner.space.dim
        if rank > d:
            raise ConfigError(
                f"agent.rank={rank} exceeds the {d} parameters of the {inner.space.name}; use agent.rank<={d}"
            )
        self.basis = np.linalg.qr(seeds.numpy("projection").standard_normal((d, rank)))[0]
        name = f"projection of a {inner.space.name}"
        parameters = (
            Parameter(f"params[{i}]", -bound, bound, "weight", f"amount of direction {i}", decimals)
            for i in range(rank)
        )
        self.space = ParameterSpace(name, tuple(parameters))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return actions [n] or [n, a] for observations [n, k] under parameters z [n, rank]."""
        return self.bind_parameters(parameters)(observation)

    def bind_parameters(self, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from observations [n, k] to actions with fixed parameters z [n, rank]."""
        return self.inner.bind_parameters(self.compute_weights(parameters))

    def compute_weights(self, parameters: np.ndarray) -> np.ndarray:
        """Return theta [n, d], the parameters of `inner`, for z [n, rank].

        Sums are computed direction by direction, so that the results of a game do not depend on other games.
        """
        theta = np.zeros((len(parameters), len(self.basis)))
        for i in range(self.basis.shape[1]):
            theta = theta + parameters[:, i, None] * self.basis[:, i]
        return theta

    @property
    def invariances(self) -> str:
        """Description of changes of parameters that change no action, for prompts; "" if there are none."""
        if not self.inner.invariances or len(self.inner.layer_sizes) > 1:
            return ""
        return (
            "Only which output of the policy is largest counts. So nothing changes where all numbers are multiplied by "
            "the same positive factor, up to what rounding does."
        )

    @property
    def layout(self) -> str:
        d, rank = self.basis.shape
        return (
            f"The policy is a {self.inner.space.name} of {d} weights. They are the sum of {rank} fixed random "
            f"directions, and params[i] is how much of direction i goes into it, for i from 0 to {rank - 1}. Which "
            "weights a direction changes is not told."
        )
