"""Several policies as the policy of one society: each acts for the players in its own seats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from llmrl.core.observers import StepObserver, Transition
from llmrl.core.protocols import Camera, NeedsCamera, Policy, unchanged
from llmrl.core.records import Observation, PolicyOutput
from llmrl.core.rollouts import Rollout


@dataclass(frozen=True)
class Seated:
    """A policy and the seats of its players in every game.

    Attributes:
        name: kind of these players, for metrics.
        policy: policy of `len(seats)` agents.
        seats: indices of these agents in the game, in increasing order.
    """

    name: str
    policy: Policy
    seats: tuple[int, ...]


class MixedPolicy:
    """Policy of a society whose players are of several kinds.

    Every kind sees the channels that it reads, of its own players. Kinds draw from one random stream, one after the
    other. Numbers that a kind does not have (log-probabilities of a chat model, say) are zeros, and its entropy NaN.

    Args:
        parts: the kinds; together they fill every seat once.
        n_agents: players of a game.

    Attributes:
        widths: width of the memory of each kind that has one, by its index; known after the first `act`, and saved
            with what is remembered.
    """

    def __init__(self, parts: Sequence[Seated], n_agents: int) -> None:
        self.parts, self.n_agents = tuple(parts), n_agents
        self.channels = tuple(dict.fromkeys(name for part in parts for name in part.policy.channels))
        self.widths: dict[int, int] = {}
        self._camera: Camera | None = None

    @property
    def camera(self) -> Camera | None:
        """Frames of a game for all its players; set by whoever plays, for the kinds that are shown frames."""
        return self._camera

    @camera.setter
    def camera(self, camera: Camera | None) -> None:
        self._camera = camera
        for part in self.parts:
            if isinstance(part.policy, NeedsCamera):
                part.policy.camera = None if camera is None else _own_frames(camera, part.seats)

    @property
    def episodes(self) -> Sequence[int] | None:
        """Numbers of the episodes in play, for the kinds that name them in their requests."""
        return next((part.policy.episodes for part in self.parts if hasattr(part.policy, "episodes")), None)

    @episodes.setter
    def episodes(self, numbers: Sequence[int] | None) -> None:
        for part in self.parts:
            if hasattr(part.policy, "episodes"):
                part.policy.episodes = numbers

    def memory_of(self, name: str) -> int | None:
        """Return the width of the memory of a kind; None if it has none."""
        return next((self.widths.get(i) for i, part in enumerate(self.parts) if part.name == name), None)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Promise that all kinds stay unchanged within the `with` block, as in `Memoizing`."""
        with ExitStack() as spans:
            for part in self.parts:
                spans.enter_context(unchanged(part.policy))
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        acts = []
        for i, part in enumerate(self.parts):
            own = None if state is None or i not in self.widths else state[:, part.seats, : self.widths[i]]
            act = part.policy.act(self._seen(observation, part), own, generator, greedy)
            if act.state is not None:
                self.widths[i] = act.state.shape[-1]
            acts.append(act)
        return PolicyOutput(
            action=self._required([act.action for act in acts]),
            log_prob=self._joined([act.log_prob for act in acts]),
            value=self._joined([act.value for act in acts]),
            features=self._joined([act.features for act in acts]),
            state=self._joined([act.state for act in acts]),
            logits=self._joined([act.logits for act in acts]),
            entropy=self._joined([act.entropy for act in acts], blank=float("nan")),
            notes=self._notes([act.notes for act in acts]),
        )

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        found = []
        for i, part in enumerate(self.parts):
            own = None if state is None or i not in self.widths else state[:, part.seats, : self.widths[i]]
            found.append(part.policy.values(self._seen(observation, part), own))
        return self._required(found)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        for part in self.parts:
            if isinstance(part.policy, StepObserver):
                part.policy.on_reset(games, {name: x[:, list(part.seats)] for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        for part in self.parts:
            if isinstance(part.policy, StepObserver):
                part.policy.on_step(transition.part(slice(None), list(part.seats)))

    def _seen(self, observation: dict[str, Any], part: Seated) -> dict[str, Any]:
        return {name: observation[name][:, list(part.seats)] for name in part.policy.channels}

    def _required(self, found: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = self._joined(found)
        assert joined is not None
        return joined

    def _joined(self, found: Sequence[torch.Tensor | None], blank: float = 0.0) -> torch.Tensor | None:
        """Return one tensor [n_envs, n_agents, ...] of those of the kinds, with `blank` where a kind has none; rows of
        different widths are filled up. None if no kind has one."""
        given = [x for x in found if x is not None]
        if not given:
            return None
        first = given[0]
        widths = [x.shape[-1] for x in given if x.dim() > 2]
        shape = (first.shape[0], self.n_agents, *([max(widths)] if widths else []))
        whole = torch.full(shape, blank, dtype=first.dtype, device=first.device)
        for part, x in zip(self.parts, found, strict=True):
            if x is None:
                continue
            own = x.to(first.device)
            if widths and own.shape[-1] < max(widths):
                own = functional.pad(own, (0, max(widths) - own.shape[-1]), value=blank)
            whole[:, list(part.seats)] = own
        return whole

    def _notes(self, found: Sequence[list[list[dict[str, Any]]] | None]) -> list[list[dict[str, Any]]] | None:
        given = [notes for notes in found if notes is not None]
        if not given:
            return None
        whole: list[list[dict[str, Any]]] = [[{} for _ in range(self.n_agents)] for _ in given[0]]
        for part, notes in zip(self.parts, found, strict=True):
            for game, row in enumerate(notes or []):
                for seat, note in zip(part.seats, row, strict=True):
                    whole[game][seat] = note
        return whole


def rollout_of(rollout: Rollout, seats: Sequence[int], channels: Sequence[str], width: int | None) -> Rollout:
    """Return the part of a rollout that the players in some seats learn from.

    Args:
        rollout: of all players.
        seats: indices of these players.
        channels: channels that their policy reads.
        width: width of their policy's memory; None: it has none.
    """
    own = list(seats)
    observed = {name: x[:, :, own] for name, x in rollout.observation.items() if name in channels}
    episodes = [
        replace(
            each,
            returns=each.returns[own],
            base_returns=each.base_returns[own],
            gains=each.gains[own],
            gain_times=each.gain_times[own],
        )
        for each in rollout.episodes
    ]
    return replace(
        rollout,
        observation=observed,
        features=None if rollout.features is None else rollout.features[:, :, own],
        action=rollout.action[:, :, own],
        log_prob=rollout.log_prob[:, :, own],
        value=rollout.value[:, :, own],
        reward=rollout.reward[:, :, own],
        base_reward=rollout.base_reward[:, :, own],
        next_value=rollout.next_value[:, :, own],
        reward_jacobian=None if rollout.reward_jacobian is None else rollout.reward_jacobian[:, :, own],
        state=None if rollout.state is None or width is None else rollout.state[:, own, :width],
        episodes=episodes,
    )


def _own_frames(camera: Camera, seats: Sequence[int]) -> Camera:
    def own(game: int) -> list[np.ndarray]:
        frames = camera(game)
        return [frames[seat] for seat in seats]

    return own
