"""Q-learning from replay, for networks that read what an action is."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from llmrl.core.errors import Diverged
from llmrl.core.limits import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.learners.replay import Replay, Transitions
from llmrl.networks.words import padded


@dataclass(frozen=True)
class QSettings:
    """Hyperparameters; meanings, units and ranges are in `conf/agent/drrn.yaml`."""

    learning_rate: PositiveFloat
    gamma: UnitInterval
    batch_size: PositiveInt
    updates_per_step: PositiveFloat
    capacity: PositiveInt
    warmup: NonNegativeInt
    target_every: PositiveInt | None
    huber: PositiveFloat
    max_grad_norm: PositiveFloat
    bootstrap_truncation: bool


class Reader(Protocol):
    """Q of every action in every state, [n, n_actions], for texts as `words.padded` gives them."""

    def __call__(
        self, prompts: tuple[torch.Tensor, torch.Tensor], actions: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor: ...


class QLearning:
    """One step of temporal differences (Watkins 1989) with Huber's loss, on transitions of any age.

    Args:
        network: `Reader` that is trained.
        settings: hyperparameters.
    """

    def __init__(self, network: nn.Module, settings: QSettings) -> None:
        self.network, self.settings = network, settings
        self.replay = Replay(settings.capacity)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
        self.target: nn.Module | None = None
        if settings.target_every is not None:
            self.target = copy.deepcopy(network).requires_grad_(False)
        self.updates = 0
        self._owed = 0.0

    def learn(
        self, transitions: Transitions, steps: int, actions: Sequence[bytes], generator: torch.Generator
    ) -> dict[str, float]:
        """Remember what happened in `steps` steps of all games, and take the gradient steps that are due; `actions` are
        the texts of the actions. Returns means over these steps.

        Raises:
            Diverged: a loss, a Q or a gradient is no number any more.
        """
        s = self.settings
        self.replay.add(transitions)
        metrics = {"replay/transitions": float(len(self.replay))}
        if len(self.replay) < max(s.warmup, 1):
            return metrics
        self._owed += steps * s.updates_per_step
        due = int(self._owed + 1e-9)
        self._owed -= due
        choices = padded(actions)
        records = [self._step(self.replay.sample(s.batch_size, generator), choices) for _ in range(due)]
        if records:
            names = ("q", "mean_q", "grad_norm")
            means = torch.stack(records).mean(0).tolist()
            metrics |= {f"loss/{name}": value for name, value in zip(names, means, strict=True)}
            if not all(math.isfinite(value) for value in means):
                told = ", ".join(f"{name} {value:g}" for name, value in zip(names, means, strict=True))
                raise Diverged(
                    f"gradient step {self.updates}: what is learned from is no number any more (means of the last "
                    f"{due}: {told}). What was saved before is intact; begin from there with a smaller "
                    "agent.q.learning_rate or agent.q.max_grad_norm"
                )
        return {**metrics, "loss/updates": float(due)}

    def state_dict(self) -> State:
        return {
            "optimizer": self.optimizer.state_dict(),
            "target": None if self.target is None else dict(self.target.state_dict()),
            "replay": self.replay.state_dict(),
            "updates": self.updates,
            "owed": self._owed,
        }

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])
        self.replay.load_state_dict(state["replay"])
        self.updates, self._owed = state["updates"], state["owed"]

    def _step(self, batch: Transitions, actions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """One gradient step; loss, mean Q of what was done, and norm of the gradient, [3]."""
        s = self.settings
        goal = self._targets(batch, actions)
        device = goal.device
        prompts, places = _distinct(batch.prompt)
        q = self.network(padded(prompts), actions)
        chosen = q[places.to(device), torch.from_numpy(batch.action).to(device)]
        loss = nn.functional.huber_loss(chosen, goal, delta=s.huber)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), s.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.target is not None and self.updates % (s.target_every or 1) == 0:
            self.target.load_state_dict(self.network.state_dict())
        return torch.stack([loss, chosen.mean(), norm]).detach()

    @torch.no_grad()
    def _targets(self, batch: Transitions, actions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """r + gamma max Q of the next state, [n]."""
        network = self.network if self.target is None else self.target
        device = next(network.parameters()).device
        reward = torch.from_numpy(batch.reward).to(device)
        going_on = np.flatnonzero(~batch.terminal)
        if not len(going_on):
            return reward
        prompts, places = _distinct([batch.next_prompt[i] for i in going_on.tolist()])
        q = network(padded(prompts), actions)[places.to(device)]
        if batch.legal is not None:
            q = q.masked_fill(~torch.from_numpy(batch.legal[going_on]).to(device), -torch.inf)
        return reward.index_add(0, torch.from_numpy(going_on).to(device), self.settings.gamma * q.amax(1))


def _distinct(texts: Sequence[bytes]) -> tuple[list[bytes], torch.Tensor]:
    """The different texts, and which of them stands at each place, [n] int64."""
    table: dict[bytes, int] = {}
    places = [table.setdefault(text, len(table)) for text in texts]
    return list(table), torch.tensor(places)
