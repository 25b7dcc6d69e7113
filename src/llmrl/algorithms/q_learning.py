"""Q-learning from replay, for networks that read what an action is."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from llmrl.core.errors import Diverged
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.networks.vocabulary import padded


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


class QLearning:
    """One step of temporal differences (Watkins 1989) with Huber's loss, on transitions of any age.

    Args:
        network: what is trained; called with texts of states and of actions, each as `vocabulary.padded` gives them, it
            returns Q of every action in every state, [n, n_actions] (`DRRN`).
        settings: hyperparameters.
    """

    def __init__(self, network: nn.Module, settings: QSettings) -> None:
        self.network, self.settings = network, settings
        self.replay = ReplayBuffer(settings.capacity)
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


@dataclass(frozen=True)
class Transitions:
    """n of them.

    Attributes:
        prompt, next_prompt: texts, as `TaskText.read` gives them.
        action: [n] int64.
        reward: [n] float32.
        terminal: nothing follows: the game ended, [n] bool.
        legal: the actions that are legal in the next state, [n, n_actions] bool; None where all always are.
    """

    prompt: Sequence[bytes]
    action: np.ndarray
    reward: np.ndarray
    next_prompt: Sequence[bytes]
    terminal: np.ndarray
    legal: np.ndarray | None = None


class ReplayBuffer:
    """The newest `capacity` transitions, each drawn with equal probability. A text that many transitions share is held
    once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.added = 0
        self._columns: dict[str, np.ndarray] = {}
        self._texts: list[bytes] = []
        self._places: dict[bytes, int] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Keep them, in the place of the oldest where there is no room left."""
        new = {
            "prompt": self._interned(transitions.prompt),
            "action": np.asarray(transitions.action, dtype=np.int16),
            "reward": np.asarray(transitions.reward, dtype=np.float32),
            "next_prompt": self._interned(transitions.next_prompt),
            "terminal": np.asarray(transitions.terminal, dtype=bool),
        }
        if transitions.legal is not None:
            new["legal"] = np.asarray(transitions.legal, dtype=bool)
        n = len(new["action"])
        self._make_room(min(self.added + n, self.capacity), new)
        places = np.arange(self.added, self.added + n) % self.capacity
        for name, column in self._columns.items():
            # More than fit at once: the last ones stay.
            column[places[-self.capacity :]] = new[name][-self.capacity :]
        rounds = (self.added + n) // self.capacity - self.added // self.capacity
        self.added += n
        if rounds and self.added > self.capacity:
            self._drop_unused()

    def sample(self, n: int, generator: torch.Generator) -> Transitions:
        """`n` independent draws.

        Raises:
            ValueError: there is nothing to draw from.
        """
        if not self.added:
            raise ValueError("nothing has been added to this replay")
        chosen = torch.randint(len(self), (n,), generator=generator).numpy()
        found = {name: column[chosen] for name, column in self._columns.items()}
        return Transitions(
            prompt=[self._texts[i] for i in found["prompt"].tolist()],
            action=found["action"].astype(np.int64),
            reward=found["reward"],
            next_prompt=[self._texts[i] for i in found["next_prompt"].tolist()],
            terminal=found["terminal"],
            legal=found.get("legal"),
        )

    def state_dict(self) -> State:
        """Arrays and numbers; texts are compressed, because prompts differ in few words."""
        together = zlib.compress(b"".join(self._texts), level=1)
        return {
            "added": self.added,
            "columns": {name: column[: len(self)].copy() for name, column in self._columns.items()},
            "texts": np.frombuffer(together, dtype=np.uint8).copy(),
            "lengths": np.array([len(text) for text in self._texts], dtype=np.int32),
        }

    def load_state_dict(self, state: State) -> None:
        self.added = state["added"]
        self._columns = {name: np.array(column) for name, column in state["columns"].items()}
        together = zlib.decompress(state["texts"].tobytes())
        ends = np.cumsum(state["lengths"], dtype=np.int64).tolist()
        starts = [0, *ends][: len(ends)]
        self._texts = [together[a:b] for a, b in zip(starts, ends, strict=True)]
        self._places = {text: i for i, text in enumerate(self._texts)}

    def _interned(self, texts: Sequence[bytes]) -> np.ndarray:
        found = np.empty(len(texts), dtype=np.int32)
        for i, text in enumerate(texts):
            place = found[i] = self._places.setdefault(text, len(self._texts))
            if place == len(self._texts):
                self._texts.append(text)
        return found

    def _make_room(self, n: int, like: dict[str, np.ndarray]) -> None:
        """Columns of at least `n` rows, twice as long each time they do not suffice."""
        have = len(next(iter(self._columns.values()))) if self._columns else 0
        if n <= have:
            return
        rows = min(max(n, 2 * have, 1024), self.capacity)
        for name, new in like.items():
            column = np.zeros((rows, *new.shape[1:]), dtype=new.dtype)
            if have:
                column[:have] = self._columns[name]
            self._columns[name] = column

    def _drop_unused(self) -> None:
        """Forget the texts of transitions that have been replaced."""
        names = ("prompt", "next_prompt")
        used, places = np.unique(np.concatenate([self._columns[name] for name in names]), return_inverse=True)
        half = len(places) // 2
        for name, column in zip(names, (places[:half], places[half:]), strict=True):
            self._columns[name] = column.astype(np.int32)
        self._texts = [self._texts[i] for i in used.tolist()]
        self._places = {text: i for i, text in enumerate(self._texts)}


def _distinct(texts: Sequence[bytes]) -> tuple[list[bytes], torch.Tensor]:
    """The different texts, and which of them stands at each place, [n] int64."""
    table: dict[bytes, int] = {}
    places = [table.setdefault(text, len(table)) for text in texts]
    return list(table), torch.tensor(places)
