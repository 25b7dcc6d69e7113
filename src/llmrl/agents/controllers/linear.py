"""Policies that weigh their observation: linear ones, and small networks of such layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.agents.controllers.labels import indices, input_names, listed, n_inputs, output_names
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace

Activation = Literal["tanh", "leaky_relu"]
Output = Literal["raw", "tanh", "leaky_relu"]

LEAK = 0.2
"""Slope of the leaky ReLU below zero (the published one)."""
WRITTEN_OUT = 40
"""Inputs of a layer that are described one by one; of larger layers the rule alone is told."""


@dataclass(frozen=True)
class LayerSettings:
    """Shape of a `LayeredController`, and what its numbers may be.

    Attributes:
        hidden: units of each hidden layer; none for a linear policy.
        bias: layers have biases.
        activation: of hidden layers.
        output, clip_actions: what the last layer's outputs decide, see `ActionDecoder`.
        bound: every number lies between -bound and bound.
        decimals: digits after the point of every number; None: all.
    """

    hidden: Sequence[int]
    bias: bool
    activation: Activation
    bound: float
    decimals: int | None
    output: Output
    clip_actions: bool


class LayeredController:
    """A linear policy, or a multilayer perceptron: x -> act(x W + b) -> ... -> x W + b -> decision.

    The flat order of the numbers is layer by layer; in a layer of k inputs and m outputs row by row of W, so that
    number i is the weight of input i div m on output i mod m, and then the m biases. For a linear policy that is the
    published order (ProPS, arXiv 2511.21928).

    Every game has weights of its own. Sums are formed input by input, so that a game's actions are, bit for bit, the
    same whatever games are played beside it.

    Args:
        spec: of the environment.
        settings: shape and bounds.

    Raises:
        ConfigError: the environment shows no vector, the bound has more digits than its numbers, or a choice is to be
            stretched over bounds.
    """

    channel = "vector"

    def __init__(self, spec: EnvSpec, settings: LayerSettings) -> None:
        s = settings
        if s.decimals is not None and round(s.bound, s.decimals) != s.bound:
            raise ConfigError(
                f"agent.bound={s.bound:g} has more digits than agent.decimals={s.decimals} leaves; set a bound with "
                "fewer, or agent.decimals=null"
            )
        if spec.continuous_actions is None and s.output == "tanh":
            raise ConfigError(
                f"agent.output=tanh is for actions that are numbers; env={spec.name} has a choice: use raw"
            )
        self.name = "multilayer perceptron" if s.hidden else "linear policy"
        self.bias, self.activation = s.bias, s.activation
        self.decision, self.clip_actions = ActionDecoder(spec, s.clip_actions, s.output), s.clip_actions
        widths = [n_inputs(spec, f"a {self.name}"), *s.hidden, self.decision.size]
        self.layers = tuple(itertools.pairwise(widths))
        self.input_names = input_names(spec)
        self.space = ParameterSpace(self.name, tuple(self._parameters(s.bound, s.decimals)))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Actions [n] or [n, a] for observations [n, k] under parameters [n, d]."""
        return self.prepared(parameters)(observation)

    def prepared(self, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """`act` with these parameters, [n, d], for many steps: what it needs of them is laid out once."""
        # Games are the last axis here: NumPy's inner loop is then over the longest one.
        n, columns, at = len(parameters), np.ascontiguousarray(parameters.T, dtype=np.float64), 0
        layers = []
        for k, m in self.layers:
            # Biases, then the products of each input, to be added up in this order.
            terms = np.zeros((1 + k, m, n))
            if self.bias:
                terms[0] = columns[at + k * m : at + (k + 1) * m]
            layers.append((columns[at : at + k * m].reshape(k, m, n), terms, terms[1:]))
            at += (k + self.bias) * m

        def act(observation: np.ndarray) -> np.ndarray:
            x = observation.T
            for number, (weights, terms, products) in enumerate(layers):
                if number:
                    x = np.tanh(x) if self.activation == "tanh" else leaky_relu(x)
                np.multiply(x[:, None], weights, products)
                # Of a single column NumPy would add up pairs instead.
                x = np.add.reduce(terms, axis=0) if terms[0].size > 1 else np.cumsum(terms, axis=0)[-1]
            return self.decision(x.T)

        return act

    @property
    def layout(self) -> str:
        """What the numbers are, in words, by their index."""
        told, at = [], 0
        for number, (k, m) in enumerate(self.layers):
            told += self._layer(number, at, k, m)
            at += (k + self.bias) * m
        return "\n".join([*told, self.decision.told])

    @property
    def invariances(self) -> str:
        """Changes to the numbers that no action depends on, in words; "" where there are none."""
        if self.decision.numbers is not None:
            return ""
        k, m = self.layers[-1]
        at = self.space.dim - (k + self.bias) * m
        if at:
            what, inputs = f"params[{at}] to params[{self.space.dim - 1}]", "of one hidden unit"
        else:
            what, inputs = "all numbers", "of one entry of the observation"
        biases = ", or to all biases of the outputs" if self.bias else ""
        return (
            "Only which output is largest counts. So nothing changes where "
            f"{what} are multiplied by the same positive factor, or the same amount is added to the {m} weights "
            f"{inputs}{biases}. Numbers that differ in nothing else are one policy, up to what rounding does."
        )

    def _layer(self, number: int, at: int, k: int, m: int) -> list[str]:
        last = number == len(self.layers) - 1
        source = f"hidden{number}" if number else "observation"
        target = "output" if last else f"hidden{number + 1}"
        shift = f" + params[{at + k * m} + j]" if self.bias else ""
        start = f"{at} + " if at else ""
        sum_ = f"the sum over i of {source}[i] * params[{start}{m} * i + j]{shift}"
        rule = "tanh" if self.activation == "tanh" else f"leaky ReLU (slope {LEAK:g} below 0)"
        how = "" if last else f"{rule} of "
        told = [f"{target}[j], for j from 0 to {m - 1}, is {how}{sum_}, with i from 0 to {k - 1}."]
        if number == 0 and k <= WRITTEN_OUT:
            for i, name in enumerate(self.input_names):
                own = "" if name == f"observation[{i}]" else f" ({name})"
                told.append(f"- {indices(i * m, i * m + m - 1)}: weights of observation[{i}]{own}")
            if self.bias:
                told.append(f"- {indices(k * m, k * m + m - 1)}: biases")
        elif number == 0:
            told.append(f"The entries of the observation are: {listed(self.input_names)}.")
        return told

    def _parameters(self, bound: float, decimals: int | None) -> list[Parameter]:
        made: list[Parameter] = []
        for number, (k, m) in enumerate(self.layers):
            last = number == len(self.layers) - 1
            targets = self.decision.names if last else [f"hidden {number + 1}.{j}" for j in range(m)]
            sources = self.input_names if number == 0 else [f"hidden {number}.{i}" for i in range(k)]
            meanings = [f"weight of {source} on {target}" for source in sources for target in targets]
            meanings += [f"bias of {target}" for target in targets] if self.bias else []
            made += [
                Parameter(f"params[{len(made) + i}]", -bound, bound, "weight", meaning, decimals)
                for i, meaning in enumerate(meanings)
            ]
        return made


class ActionDecoder:
    """What a policy's outputs decide.

    The action with the largest output (of equal ones the first), where there is one of several; else the outputs
    themselves, one a number of the action.

    Args:
        spec: of the environment.
        clip: numbers of an action are put inside their bounds; whole numbers always are.
        output: what is done to the outputs first. `raw`: nothing; `leaky_relu`, slope 0.2; `tanh`, stretched over the
            bounds of a number.
    """

    def __init__(self, spec: EnvSpec, clip: bool, output: Output = "raw") -> None:
        self.numbers, self.clip, self.output = spec.continuous_actions, clip, output
        self.size = spec.n_actions if spec.continuous_actions is None else spec.continuous_actions.dim
        self.names = output_names(spec)
        if spec.continuous_actions is not None:
            self.low, self.high = np.array(spec.continuous_actions.low), np.array(spec.continuous_actions.high)

    def __call__(self, outputs: np.ndarray) -> np.ndarray:
        """Actions [n] int64 or [n, a] float64, of outputs [n, size]."""
        if self.output == "leaky_relu":
            outputs = leaky_relu(outputs)
        elif self.output == "tanh":
            outputs = np.tanh(outputs)
        if self.numbers is None:
            chosen: np.ndarray = outputs.argmax(axis=1)
            return chosen
        if self.output == "tanh":
            outputs = (self.high + self.low) / 2 + (self.high - self.low) / 2 * outputs
        whole = np.array(self.numbers.whole)
        outputs = np.where(whole, np.rint(outputs), outputs)
        return np.where(self.clip | whole, np.clip(outputs, self.low, self.high), outputs)

    @property
    def told(self) -> str:
        """The rule, in words, for outputs called output[0], output[1], ..."""
        squash = {"raw": "", "tanh": "tanh of ", "leaky_relu": f"leaky ReLU (slope {LEAK:g} below 0) of "}[self.output]
        if self.numbers is None:
            return f"The action taken is the one whose output is largest: {listed(self._numbered())}."
        bounds = [
            f"output[{j}] is {name}, from {low:g} to {high:g}"
            for j, (name, low, high) in enumerate(zip(self.names, self.low, self.high, strict=True))
        ]
        every, some = all(self.numbers.whole), any(self.numbers.whole)
        rule = {"raw": "", "tanh": ", stretched over its bounds"}.get(self.output, "")
        kept = "put inside these bounds" if self.clip or every else "given to the game as it is"
        whole = " rounded to a whole number and" if every else ""
        told = f"The action is {squash}the outputs{rule}: {listed(bounds)}; each is{whole} {kept}."
        if every or not some:
            return told
        names = [name for name, is_whole in zip(self.names, self.numbers.whole, strict=True) if is_whole]
        return f"{told} Rounded to a whole number inside the bounds: {listed(names)}."

    def _numbered(self) -> list[str]:
        return [f"output[{j}] is of action {name}" for j, name in enumerate(self.names)]


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0.0, x, LEAK * x)
