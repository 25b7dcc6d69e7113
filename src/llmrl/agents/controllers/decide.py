"""From the outputs of a policy to the actions of an environment."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.agents.controllers.words import listed, output_names
from llmrl.core.spaces import EnvSpec

Output = Literal["raw", "tanh", "leaky_relu"]

LEAK = 0.2
"""Slope of the leaky ReLU below zero (the published one)."""


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0.0, x, LEAK * x)


class Decision:
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
        self.numbers, self.clip, self.output = spec.numbers, clip, output
        self.size = spec.n_actions if spec.numbers is None else spec.numbers.dim
        self.names = output_names(spec)
        if spec.numbers is not None:
            self.low, self.high = np.array(spec.numbers.low), np.array(spec.numbers.high)

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
        if self.numbers.whole:
            outputs = np.rint(outputs)
        if self.clip or self.numbers.whole:
            outputs = np.clip(outputs, self.low, self.high)
        return outputs

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
        rule = {"raw": "", "tanh": ", stretched over its bounds"}.get(self.output, "")
        kept = "put inside these bounds" if self.clip or self.numbers.whole else "given to the game as it is"
        whole = " rounded to a whole number and" if self.numbers.whole else ""
        return f"The action is {squash}the outputs{rule}: {listed(bounds)}; each is{whole} {kept}."

    def _numbered(self) -> list[str]:
        return [f"output[{j}] is of action {name}" for j, name in enumerate(self.names)]
