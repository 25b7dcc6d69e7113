"""The entropy of a policy while it plays: over all agents, and over those who see something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from llmrl.core.records import Array, PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.core.summaries import Entropy

AT_ONCE = 2**18
"""Cells of maps that are looked at together at most."""


class Entropies:
    """The rows of the `Entropy` metrics of an environment, worked out for many steps at once, for little at a time.

    Where the policy does not tell its entropy they are NaN.

    Args:
        spec: of the environment.
        device: where the environment keeps its numbers.
    """

    def __init__(self, spec: EnvSpec, device: torch.device | None) -> None:
        self._asked = [how for how in spec.metrics.values() if isinstance(how, Entropy)]
        self._first = len(spec.per_step)
        self._device = device or torch.device("cpu")
        self._arrays = device is None
        self._facts = {  # channel, which number of a cell, lowest and highest code
            how: (how.channel, *spec.observation[how.channel].planes[how.plane])
            for how in self._asked
            if how.channel is not None and how.plane is not None
        }
        cells = sum(math.prod(spec.observation[channel].shape[:-1]) for channel, *_ in self._facts.values())
        self._most = max(1, AT_ONCE // (spec.n_envs * spec.n_agents * max(1, cells)))
        self._told: list[torch.Tensor | None] = []
        self._views: dict[Entropy, torch.Tensor] = {}

    def add(self, observation: Mapping[str, Any], act: PolicyOutput) -> None:
        """What was seen in a step, which may be written over later, and what the policy made of it."""
        if not self._asked:
            return
        for how, (channel, number, _, _) in self._facts.items():
            view = torch.as_tensor(observation[channel])[..., number]
            if how not in self._views:
                self._views[how] = view.new_empty((self._most, *view.shape))
            self._views[how][len(self._told)] = view
        self._told.append(act.entropy)

    def write(self, info: Array, stop: int, rest: bool = False) -> None:
        """Put what was added into the rows, `info` [rows, T, n_envs], of the steps before `stop`: as soon as there is
        enough of it, or the `rest`."""
        n = len(self._told)
        if not n or (n < self._most and not rest):
            return
        given = [x for x in self._told if x is not None]
        rows = info[self._first :, stop - n : stop]
        self._told = []
        if len(given) < n:
            rows[:] = torch.nan
            return
        entropy = torch.stack(given).to(self._device, non_blocking=self._device.type == "cuda")
        found = [x for how in self._asked for x in self._parts(how, entropy)]
        rows[:] = torch.stack(found).numpy() if self._arrays else torch.stack(found)

    def _parts(self, how: Entropy, entropy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums over the agents that count of `entropy` [n, n_envs, n_agents], and their number, each [n, n_envs]."""
        if how not in self._facts:
            return entropy.sum(-1), torch.full_like(entropy[..., 0], entropy.shape[-1])
        *_, low, high = self._facts[how]
        view = self._views[how][: len(entropy)].flatten(3)
        # In place, for on a processor comparing bytes into truth values costs ten times as much.
        holds = view.eq_(low) if low == high else view.clone().ge_(low).mul_(view.le_(high))
        counts = holds.sum(-1, dtype=torch.int32) > 0
        return (entropy * counts).sum(-1), counts.sum(-1, dtype=entropy.dtype)
