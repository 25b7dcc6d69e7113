"""Q-learning from a replay buffer, for networks that read the texts of actions."""

from __future__ import annotations

import copy
import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from llmrl.algorithms.adam import Adam
from llmrl.core.errors import Diverged
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.networks.drrn import pad_texts


@dataclass(frozen=True)
class QSettings:
    """Hyperparameters; meanings, units and ranges are in `conf/agent/drrn.yaml`."""

    learning_rate: PositiveFloat
    gamma: UnitInterval
    batch_size: PositiveInt
    updates_per_step: PositiveFloat
    capacity: PositiveInt
    warmup: NonNegativeInt
    target_update_interval: PositiveInt | None
    huber: PositiveFloat
    max_grad_norm: PositiveFloat
    bootstrap_truncation: bool


class QLearning:
    """Learner with one-step temporal differences (Watkins 1989) and Huber loss on transitions of a replay buffer.

    Args:
        network: network to train. Given texts of states and of actions (results of `pad_texts`), it returns Q of every
            action in every state, [n, n_actions] (`DRRN`).
        settings: hyperparameters.
    """

    def __init__(self, network: nn.Module, settings: QSettings) -> None:
        self.network, self.settings = network, settings
        self.replay_buffer = ReplayBuffer(settings.capacity)
        self.optimizer = Adam(network.parameters(), lr=settings.learning_rate, fused=True)
        self.target_network: nn.Module | None = None
        if settings.target_update_interval is not None:
            self.target_network = copy.deepcopy(network).requires_grad_(False)
        self.n_updates = 0
        self._n_updates_due = 0.0

    def learn(
        self, transitions: Transitions, n_env_steps: int, actions: Sequence[bytes], generator: torch.Generator
    ) -> dict[str, float]:
        """Store the transitions of `n_env_steps` steps of all games, and take the corresponding gradient steps.

        `actions`: encoded texts of the actions. Metrics are means over the gradient steps.

        Raises:
            Diverged: a loss, a Q or a gradient is not finite.
        """
        s = self.settings
        self.replay_buffer.add(transitions)
        metrics = {"replay/transitions": float(len(self.replay_buffer))}
        if len(self.replay_buffer) < max(s.warmup, 1):
            return metrics
        self._n_updates_due += n_env_steps * s.updates_per_step
        n_steps = int(self._n_updates_due + 1e-9)
        self._n_updates_due -= n_steps
        action_inputs = pad_texts(actions)
        batches = (self.replay_buffer.sample(s.batch_size, generator) for _ in range(n_steps))
        records = [self._take_gradient_step(batch, action_inputs) for batch in batches]
        if records:
            names = ("q", "mean_q", "grad_norm")
            means = torch.stack(records).mean(0).tolist()
            metrics |= {f"loss/{name}": value for name, value in zip(names, means, strict=True)}
            if not all(math.isfinite(value) for value in means):
                losses_text = ", ".join(f"{name} {value:g}" for name, value in zip(names, means, strict=True))
                raise Diverged(
                    f"gradient step {self.n_updates}: not finite (means of the last {n_steps} steps: {losses_text}). "
                    "Earlier checkpoints are intact: resume from one with a smaller agent.q.learning_rate or "
                    "agent.q.max_grad_norm"
                )
        return {**metrics, "loss/updates": float(n_steps)}

    def state_dict(self) -> State:
        return {
            "optimizer": self.optimizer.state_dict(),
            "target": None if self.target_network is None else dict(self.target_network.state_dict()),
            "replay": self.replay_buffer.state_dict(),
            "updates": self.n_updates,
            "updates_due": self._n_updates_due,
        }

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.target_network is not None:
            self.target_network.load_state_dict(state["target"])
        self.replay_buffer.load_state_dict(state["replay"])
        self.n_updates, self._n_updates_due = state["updates"], state["updates_due"]

    def _take_gradient_step(self, batch: Transitions, action_inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Take one gradient step; return the loss, the mean Q of the actions taken, and the gradient norm, [3]."""
        s = self.settings
        target = self._compute_targets(batch, action_inputs)
        device = target.device
        prompts, prompt_indices = _index_unique_texts(batch.prompt)
        q = self.network(pad_texts(prompts), action_inputs)
        action_values = q[prompt_indices.to(device), torch.from_numpy(batch.action).to(device)]
        loss = nn.functional.huber_loss(action_values, target, delta=s.huber)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = nn.utils.clip_grad_norm_(self.network.parameters(), s.max_grad_norm)
        self.optimizer.step()
        self.n_updates += 1
        if self.target_network is not None and self.n_updates % (s.target_update_interval or 1) == 0:
            self.target_network.load_state_dict(self.network.state_dict())
        return torch.stack([loss, action_values.mean(), grad_norm]).detach()

    @torch.no_grad()
    def _compute_targets(self, batch: Transitions, action_inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return r + gamma max Q of the next state, [n]."""
        network = self.network if self.target_network is None else self.target_network
        device = next(network.parameters()).device
        reward = torch.from_numpy(batch.reward).to(device)
        nonterminal = np.flatnonzero(~batch.terminal)
        if not len(nonterminal):
            return reward
        prompts, prompt_indices = _index_unique_texts([batch.next_prompt[i] for i in nonterminal.tolist()])
        q = network(pad_texts(prompts), action_inputs)[prompt_indices.to(device)]
        if batch.next_action_mask is not None:
            q = q.masked_fill(~torch.from_numpy(batch.next_action_mask[nonterminal]).to(device), -torch.inf)
        return reward.index_add(0, torch.from_numpy(nonterminal).to(device), self.settings.gamma * q.amax(1))


@dataclass(frozen=True)
class Transitions:
    """Batch of n transitions.

    Attributes:
        prompt, next_prompt: texts of states, encoded by `Vocabulary.encode`.
        action: actions taken, [n] int64.
        reward: rewards, [n] float32.
        terminal: whether the episode ended with the step, [n] bool.
        next_action_mask: legal actions in the next state, [n, n_actions] bool; None: all actions are always legal.
    """

    prompt: Sequence[bytes]
    action: np.ndarray
    reward: np.ndarray
    next_prompt: Sequence[bytes]
    terminal: np.ndarray
    next_action_mask: np.ndarray | None = None


class ReplayBuffer:
    """Buffer of the newest `capacity` transitions, sampled uniformly."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.n_added = 0
        self._columns: dict[str, Any] = {}

    def __len__(self) -> int:
        return min(self.n_added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Store transitions; the oldest are overwritten when the buffer is full."""
        columns = {name: column for name, column in vars(transitions).items() if column is not None}
        columns |= {name: np.array(columns[name], dtype=object) for name in ("prompt", "next_prompt")}
        if not self._columns:
            self._columns = {name: np.empty((self.capacity, *x.shape[1:]), x.dtype) for name, x in columns.items()}
        positions = np.arange(self.n_added, self.n_added + len(transitions.action)) % self.capacity
        for name, column in self._columns.items():
            # If there are more transitions than fit, only the last are stored.
            column[positions[-self.capacity :]] = columns[name][-self.capacity :]
        self.n_added += len(positions)

    def sample(self, n: int, generator: torch.Generator) -> Transitions:
        """Return `n` independent samples.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self.n_added:
            raise ValueError("the replay buffer is empty; call add() before sample()")
        indices = torch.randint(len(self), (n,), generator=generator).numpy()
        return Transitions(**{name: column[indices] for name, column in self._columns.items()})

    def state_dict(self) -> State:
        """Return arrays and numbers; texts are compressed, because prompts differ in few words."""
        columns = {name: column[: len(self)].copy() for name, column in self._columns.items()}
        texts = [text for name in ("prompt", "next_prompt") for text in columns.pop(name, ())]
        return {
            "added": self.n_added,
            "columns": columns,
            "texts": np.frombuffer(zlib.compress(b"".join(texts), level=1), dtype=np.uint8),
            "lengths": np.array([len(text) for text in texts], dtype=np.int32),
        }

    def load_state_dict(self, state: State) -> None:
        self.n_added, self._columns = 0, {}
        joined_texts = zlib.decompress(state["texts"].tobytes())
        ends = np.cumsum(state["lengths"], dtype=np.int64).tolist()
        texts = [joined_texts[start:end] for start, end in itertools.pairwise([0, *ends])]
        if state["columns"]:
            n = len(texts) // 2
            self.add(Transitions(prompt=texts[:n], next_prompt=texts[n:], **state["columns"]))
        self.n_added = state["added"]


def _index_unique_texts(texts: Sequence[bytes]) -> tuple[list[bytes], torch.Tensor]:
    """Return the distinct texts, and the index of each text among them, [n] int64."""
    unique_texts: dict[bytes, int] = {}
    indices = [unique_texts.setdefault(text, len(unique_texts)) for text in texts]
    return list(unique_texts), torch.tensor(indices)
