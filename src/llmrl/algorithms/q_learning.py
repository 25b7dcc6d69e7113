"""Q-learning from replayed transitions, for networks that read the text of an action."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Learner with one-step temporal differences (Watkins 1989) and Huber loss on replayed transitions.

    Args:
        network: trained network. Called with texts of states and of actions, each as returned by `pad_texts`, it
            returns Q of every action in every state, [n, n_actions] (`DRRN`).
        settings: hyperparameters.
    """

    def __init__(self, network: nn.Module, settings: QSettings) -> None:
        self.network, self.settings = network, settings
        self.replay = ReplayBuffer(settings.capacity)
        self.optimizer = Adam(network.parameters(), lr=settings.learning_rate, fused=True)
        self.target: nn.Module | None = None
        if settings.target_update_interval is not None:
            self.target = copy.deepcopy(network).requires_grad_(False)
        self.updates = 0
        self._updates_due = 0.0

    def learn(
        self, transitions: Transitions, steps: int, actions: Sequence[bytes], generator: torch.Generator
    ) -> dict[str, float]:
        """Store the transitions of `steps` steps of all games, take the due gradient steps, and return their means.

        `actions` are the texts of the actions.

        Raises:
            Diverged: a loss, a Q or a gradient is not finite.
        """
        s = self.settings
        self.replay.add(transitions)
        metrics = {"replay/transitions": float(len(self.replay))}
        if len(self.replay) < max(s.warmup, 1):
            return metrics
        self._updates_due += steps * s.updates_per_step
        n_updates = int(self._updates_due + 1e-9)
        self._updates_due -= n_updates
        choices = pad_texts(actions)
        records = [self._step(self.replay.sample(s.batch_size, generator), choices) for _ in range(n_updates)]
        if records:
            names = ("q", "mean_q", "grad_norm")
            means = torch.stack(records).mean(0).tolist()
            metrics |= {f"loss/{name}": value for name, value in zip(names, means, strict=True)}
            if not all(math.isfinite(value) for value in means):
                losses_text = ", ".join(f"{name} {value:g}" for name, value in zip(names, means, strict=True))
                raise Diverged(
                    f"gradient step {self.updates}: not finite (means of the last {n_updates} steps: {losses_text}). "
                    "Earlier checkpoints are intact: resume from one with a smaller agent.q.learning_rate or "
                    "agent.q.max_grad_norm"
                )
        return {**metrics, "loss/updates": float(n_updates)}

    def state_dict(self) -> State:
        return {
            "optimizer": self.optimizer.state_dict(),
            "target": None if self.target is None else dict(self.target.state_dict()),
            "replay": self.replay.state_dict(),
            "updates": self.updates,
            "owed": self._updates_due,
        }

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.target is not None:
            self.target.load_state_dict(state["target"])
        self.replay.load_state_dict(state["replay"])
        self.updates, self._updates_due = state["updates"], state["owed"]

    def _step(self, batch: Transitions, actions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Take one gradient step; return the loss, the mean Q of the actions taken, and the gradient norm, [3]."""
        s = self.settings
        target = self._targets(batch, actions)
        device = target.device
        prompts, prompt_indices = _unique_texts(batch.prompt)
        q = self.network(pad_texts(prompts), actions)
        action_values = q[prompt_indices.to(device), torch.from_numpy(batch.action).to(device)]
        loss = nn.functional.huber_loss(action_values, target, delta=s.huber)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), s.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.target is not None and self.updates % (s.target_update_interval or 1) == 0:
            self.target.load_state_dict(self.network.state_dict())
        return torch.stack([loss, action_values.mean(), norm]).detach()

    @torch.no_grad()
    def _targets(self, batch: Transitions, actions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return r + gamma max Q of the next state, [n]."""
        network = self.network if self.target is None else self.target
        device = next(network.parameters()).device
        reward = torch.from_numpy(batch.reward).to(device)
        nonterminal = np.flatnonzero(~batch.terminal)
        if not len(nonterminal):
            return reward
        prompts, prompt_indices = _unique_texts([batch.next_prompt[i] for i in nonterminal.tolist()])
        q = network(pad_texts(prompts), actions)[prompt_indices.to(device)]
        if batch.legal is not None:
            q = q.masked_fill(~torch.from_numpy(batch.legal[nonterminal]).to(device), -torch.inf)
        return reward.index_add(0, torch.from_numpy(nonterminal).to(device), self.settings.gamma * q.amax(1))


@dataclass(frozen=True)
class Transitions:
    """Batch of n transitions.

    Attributes:
        prompt, next_prompt: texts, as returned by `Vocabulary.encode`.
        action: [n] int64.
        reward: [n] float32.
        terminal: whether the episode ended with the step, [n] bool.
        legal: legal actions in the next state, [n, n_actions] bool; None where all actions are always legal.
    """

    prompt: Sequence[bytes]
    action: np.ndarray
    reward: np.ndarray
    next_prompt: Sequence[bytes]
    terminal: np.ndarray
    legal: np.ndarray | None = None


class ReplayBuffer:
    """Buffer of the newest `capacity` transitions, sampled uniformly. Equal texts are stored once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.added = 0
        self._columns: dict[str, np.ndarray] = {}
        self._texts: list[bytes] = []
        self._text_indices: dict[bytes, int] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Store transitions; the oldest are overwritten when the buffer is full."""
        new = {
            "prompt": self._to_text_indices(transitions.prompt),
            "action": np.asarray(transitions.action, dtype=np.int16),
            "reward": np.asarray(transitions.reward, dtype=np.float32),
            "next_prompt": self._to_text_indices(transitions.next_prompt),
            "terminal": np.asarray(transitions.terminal, dtype=bool),
        }
        if transitions.legal is not None:
            new["legal"] = np.asarray(transitions.legal, dtype=bool)
        n = len(new["action"])
        self._grow(min(self.added + n, self.capacity), new)
        slots = np.arange(self.added, self.added + n) % self.capacity
        for name, column in self._columns.items():
            # If there are more transitions than fit, only the last are stored.
            column[slots[-self.capacity :]] = new[name][-self.capacity :]
        rounds = (self.added + n) // self.capacity - self.added // self.capacity
        self.added += n
        if rounds and self.added > self.capacity:
            self._drop_unused()

    def sample(self, n: int, generator: torch.Generator) -> Transitions:
        """Return `n` independent samples.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self.added:
            raise ValueError("the replay buffer is empty; call add() before sample()")
        indices = torch.randint(len(self), (n,), generator=generator).numpy()
        columns = {name: column[indices] for name, column in self._columns.items()}
        return Transitions(
            prompt=[self._texts[i] for i in columns["prompt"].tolist()],
            action=columns["action"].astype(np.int64),
            reward=columns["reward"],
            next_prompt=[self._texts[i] for i in columns["next_prompt"].tolist()],
            terminal=columns["terminal"],
            legal=columns.get("legal"),
        )

    def state_dict(self) -> State:
        """Return arrays and numbers; texts are compressed, because prompts differ in few words."""
        payload = zlib.compress(b"".join(self._texts), level=1)
        return {
            "added": self.added,
            "columns": {name: column[: len(self)].copy() for name, column in self._columns.items()},
            "texts": np.frombuffer(payload, dtype=np.uint8).copy(),
            "lengths": np.array([len(text) for text in self._texts], dtype=np.int32),
        }

    def load_state_dict(self, state: State) -> None:
        self.added = state["added"]
        self._columns = {name: np.array(column) for name, column in state["columns"].items()}
        payload = zlib.decompress(state["texts"].tobytes())
        ends = np.cumsum(state["lengths"], dtype=np.int64).tolist()
        starts = [0, *ends][: len(ends)]
        self._texts = [payload[start:end] for start, end in zip(starts, ends, strict=True)]
        self._text_indices = {text: i for i, text in enumerate(self._texts)}

    def _to_text_indices(self, texts: Sequence[bytes]) -> np.ndarray:
        indices = np.empty(len(texts), dtype=np.int32)
        for i, text in enumerate(texts):
            index = indices[i] = self._text_indices.setdefault(text, len(self._texts))
            if index == len(self._texts):
                self._texts.append(text)
        return indices

    def _grow(self, n: int, like: dict[str, np.ndarray]) -> None:
        """Resize columns to at least `n` elements, doubling their size each time."""
        size = len(next(iter(self._columns.values()))) if self._columns else 0
        if n <= size:
            return
        new_size = min(max(n, 2 * size, 1024), self.capacity)
        for name, new in like.items():
            added = np.zeros((new_size - size, *new.shape[1:]), dtype=new.dtype)
            self._columns[name] = np.concatenate([self._columns.get(name, new[:0]), added])

    def _drop_unused(self) -> None:
        """Remove the texts of overwritten transitions."""
        names = ("prompt", "next_prompt")
        used, indices = np.unique(np.concatenate([self._columns[name] for name in names]), return_inverse=True)
        half = len(indices) // 2
        for name, column in zip(names, (indices[:half], indices[half:]), strict=True):
            self._columns[name] = column.astype(np.int32)
        self._texts = [self._texts[i] for i in used.tolist()]
        self._text_indices = {text: i for i, text in enumerate(self._texts)}


def _unique_texts(texts: Sequence[bytes]) -> tuple[list[bytes], torch.Tensor]:
    """Return the distinct texts, and the index of each text among them, [n] int64."""
    unique_texts: dict[bytes, int] = {}
    indices = [unique_texts.setdefault(text, len(unique_texts)) for text in texts]
    return list(unique_texts), torch.tensor(indices)
