"""Policy of a society that is composed of several policies, each for the players in its own seats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from llmrl.core.model_protocols import (
    ChatModel,
    ConversationGenerator,
    ConversingPolicy,
    merge_conversations,
    run_conversation,
)
from llmrl.core.observers import StepObserver, Transition
from llmrl.core.protocols import Camera, NeedsCamera, Policy, fixed_weights
from llmrl.core.records import ChatReply, ChatRequest, Observation, PolicyOutput
from llmrl.core.rollouts import Rollout


@dataclass(frozen=True)
class SeatedPolicy:
    """Policy and the seats of its players in every game.

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

    Every kind observes the channels that it reads, of its own players. Kinds draw from one random stream, one after the
    other. Outputs that a kind does not have (such as log-probabilities of a chat model) are zeros.

    Args:
        parts: the kinds; together they fill every seat once.
        n_agents: number of players of a game.

    Attributes:
        widths: width of the memory of each kind that has one, by its index; known after the first `act`, and saved with
            the memory.
    """

    def __init__(self, parts: Sequence[SeatedPolicy], n_agents: int) -> None:
        self.parts, self.n_agents = tuple(parts), n_agents
        self.channels = tuple(dict.fromkeys(name for part in parts for name in part.policy.channels))
        self.widths: dict[int, int] = {}
        self._camera: Camera | None = None

    @property
    def llm(self) -> ChatModel | None:
        """Chat model of the kinds that have one, which all share; None if none has."""
        return next((part.policy.llm for part in self.parts if isinstance(part.policy, ConversingPolicy)), None)

    @property
    def camera(self) -> Camera | None:
        """Camera for all players of a game, for the kinds that observe frames; the collector sets it."""
        return self._camera

    @camera.setter
    def camera(self, camera: Camera | None) -> None:
        self._camera = camera
        for part in self.parts:
            if isinstance(part.policy, NeedsCamera):
                part.policy.camera = None if camera is None else _seat_camera(camera, part.seats)

    @property
    def episodes(self) -> Sequence[int] | None:
        """Numbers of the episodes in progress, for the kinds that include them in their requests."""
        return next((part.policy.episodes for part in self.parts if hasattr(part.policy, "episodes")), None)

    @episodes.setter
    def episodes(self, numbers: Sequence[int] | None) -> None:
        for part in self.parts:
            if hasattr(part.policy, "episodes"):
                part.policy.episodes = numbers

    def memory_width(self, name: str) -> int | None:
        """Return the width of the memory of a kind; None if it has none."""
        return next((self.widths.get(i) for i, part in enumerate(self.parts) if part.name == name), None)

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Promise that all kinds stay unchanged within the `with` block, as in `Memoizing`."""
        with ExitStack() as spans:
            for part in self.parts:
                spans.enter_context(fixed_weights(part.policy))
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        return run_conversation(self.act_as_conversation(observation, state, generator, greedy), self._chat)

    def act_as_conversation(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> ConversationGenerator[PolicyOutput]:
        acts: dict[int, PolicyOutput] = {}
        conversations: dict[int, ConversationGenerator[PolicyOutput]] = {}
        for i, part in enumerate(self.parts):
            part_state = None if state is None or i not in self.widths else state[:, part.seats, : self.widths[i]]
            inputs = self._slice_observation(observation, part), part_state, generator, greedy
            if isinstance(part.policy, ConversingPolicy):
                conversations[i] = part.policy.act_as_conversation(*inputs)
                continue
            acts[i] = act = part.policy.act(*inputs)
            if act.state is not None:
                self.widths[i] = act.state.shape[-1]
        return self._complete(acts, conversations)

    def _complete(
        self, acts: dict[int, PolicyOutput], conversations: dict[int, ConversationGenerator[PolicyOutput]]
    ) -> ConversationGenerator[PolicyOutput]:
        """Run the conversations of the kinds that ask a chat model; return the actions of all kinds."""
        outputs = yield from merge_conversations(list(conversations.values()))
        merged = acts | dict(zip(conversations, outputs, strict=True))
        return self._merge_acts([merged[i] for i in range(len(self.parts))])

    def _chat(self, requests: Sequence[ChatRequest]) -> Sequence[ChatReply]:
        assert self.llm is not None
        return self.llm.chat(requests)

    def _merge_acts(self, acts: Sequence[PolicyOutput]) -> PolicyOutput:
        return PolicyOutput(
            action=self._merge_tensors([act.action for act in acts]),
            log_prob=self._merge([act.log_prob for act in acts]),
            value=self._merge([act.value for act in acts]),
            features=self._merge([act.features for act in acts]),
            state=self._merge([act.state for act in acts]),
            logits=self._merge([act.logits for act in acts]),
            notes=self._notes([act.notes for act in acts]),
        )

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        part_values = []
        for i, part in enumerate(self.parts):
            part_state = None if state is None or i not in self.widths else state[:, part.seats, : self.widths[i]]
            part_values.append(part.policy.values(self._slice_observation(observation, part), part_state))
        return self._merge_tensors(part_values)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        for part in self.parts:
            if isinstance(part.policy, StepObserver):
                part.policy.on_reset(games, {name: x[:, list(part.seats)] for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        for part in self.parts:
            if isinstance(part.policy, StepObserver):
                part.policy.on_step(transition.select(slice(None), list(part.seats)))

    def _slice_observation(self, observation: dict[str, Any], part: SeatedPolicy) -> dict[str, Any]:
        return {name: observation[name][:, list(part.seats)] for name in part.policy.channels}

    def _merge_tensors(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor = self._merge(tensors)
        assert tensor is not None
        return tensor

    def _merge(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Merge the kinds' tensors into one, [n_envs, n_agents, ...]; None if no kind has one.

        Kinds without a tensor get zeros, and narrower tensors are padded with zeros.
        """
        present = [x for x in tensors if x is not None]
        if not present:
            return None
        first = present[0]
        widths = [x.shape[-1] for x in present if x.dim() > 2]
        shape = (first.shape[0], self.n_agents, *([max(widths)] if widths else []))
        output = torch.zeros(shape, dtype=first.dtype, device=first.device)
        for part, x in zip(self.parts, tensors, strict=True):
            if x is None:
                continue
            tensor = x.to(first.device)
            if widths and tensor.shape[-1] < max(widths):
                tensor = functional.pad(tensor, (0, max(widths) - tensor.shape[-1]))
            output[:, list(part.seats)] = tensor
        return output

    def _notes(self, part_notes: Sequence[list[list[dict[str, Any]]] | None]) -> list[list[dict[str, Any]]] | None:
        present = [notes for notes in part_notes if notes is not None]
        if not present:
            return None
        all_notes: list[list[dict[str, Any]]] = [[{} for _ in range(self.n_agents)] for _ in present[0]]
        for part, notes in zip(self.parts, part_notes, strict=True):
            for game, row in enumerate(notes or []):
                for seat, note in zip(part.seats, row, strict=True):
                    all_notes[game][seat] = note
        return all_notes


def slice_rollout(rollout: Rollout, seats: Sequence[int], channels: Sequence[str], width: int | None) -> Rollout:
    """Return the part of a rollout that the players in some seats learn from.

    Args:
        rollout: rollout of all players.
        seats: indices of these players.
        channels: channels that their policy reads.
        width: width of their policy's memory; None: it has none.
    """
    seat_indices = list(seats)
    observation = {name: x[:, :, seat_indices] for name, x in rollout.observation.items() if name in channels}
    episodes = [
        replace(
            episode,
            returns=episode.returns[seat_indices],
            base_returns=episode.base_returns[seat_indices],
            gains=episode.gains[seat_indices],
            gain_times=episode.gain_times[seat_indices],
        )
        for episode in rollout.episodes
    ]
    return replace(
        rollout,
        observation=observation,
        features=None if rollout.features is None else rollout.features[:, :, seat_indices],
        action=rollout.action[:, :, seat_indices],
        log_prob=rollout.log_prob[:, :, seat_indices],
        value=rollout.value[:, :, seat_indices],
        reward=rollout.reward[:, :, seat_indices],
        base_reward=rollout.base_reward[:, :, seat_indices],
        next_value=rollout.next_value[:, :, seat_indices],
        reward_jacobian=None if rollout.reward_jacobian is None else rollout.reward_jacobian[:, :, seat_indices],
        state=None if rollout.state is None or width is None else rollout.state[:, seat_indices, :width],
        episodes=episodes,
    )


def _seat_camera(camera: Camera, seats: Sequence[int]) -> Camera:
    def seat_frames(game: int) -> list[np.ndarray]:
        frames = camera(game)
        return [frames[seat] for seat in seats]

    return seat_frames
