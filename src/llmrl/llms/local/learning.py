"""Trajectories of replies, their token sequences, and the interface of learners that train a local chat model on them.

`TrajectoryBuffer` records the replies of players; a `ChatLearner` trains the model on complete trajectories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.records import State, TokenSample
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import Stateful

if TYPE_CHECKING:
    import torch


@dataclass
class Turn:
    """One reply of a trajectory.

    Attributes:
        sample: tokens of prompt and reply, with the log-probabilities of the reply.
        observation: text that identifies the observation, for advantages that compare turns with equal observations.
        is_valid: whether the reply could be parsed.
        step: step of the episode in which the reply was given.
        reward: sum of the player's rewards from this reply until its next one.
        value: estimated value of the state in which the reply was given; NaN: unknown.
    """

    sample: TokenSample
    observation: str
    is_valid: bool
    step: int = 0
    reward: float = 0.0
    value: float = float("nan")


@dataclass
class Trajectory:
    """Replies of one player in one episode, in chronological order.

    Attributes:
        turns: the replies.
        game: index of the game.
        agent: index of the player in the game.
    """

    turns: list[Turn] = field(default_factory=list)
    game: int = 0
    agent: int = 0


class TrajectoryBuffer:
    """Buffer of the trajectories of all players of all games.

    A trajectory is complete, and can be used for training, when its episode has ended.

    Args:
        is_paused: whether the buffer initially ignores replies, rewards and ends of episodes.
    """

    def __init__(self, is_paused: bool = False) -> None:
        self._is_paused = is_paused
        self._unfinished: dict[tuple[int, int], Trajectory] = {}  # by game and player, at least one reply each
        self._complete: list[Trajectory] = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore replies, rewards and ends of episodes inside a `with` block."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def begin_episodes(self, games: Collection[int]) -> None:
        """Discard the unfinished trajectories of `games`, in which new episodes begin."""
        if not self._is_paused:
            self._unfinished = {key: trajectory for key, trajectory in self._unfinished.items() if key[0] not in games}

    def add_reply(
        self, game: int, agent: int, sample: TokenSample, observation: str, is_valid: bool, step: int
    ) -> None:
        """Append a reply to a player's trajectory (`Turn`)."""
        if not self._is_paused:
            trajectory = self._unfinished.setdefault((game, agent), Trajectory([], game, agent))
            trajectory.turns.append(Turn(sample, observation, is_valid, step))

    def add_reward(self, game: int, agent: int, reward: float) -> None:
        """Add a reward to a player's last reply; ignore rewards before its first reply in the episode."""
        if (game, agent) in self._unfinished and not self._is_paused:
            self._unfinished[game, agent].turns[-1].reward += reward

    def end_episode(self, game: int) -> None:
        """Complete the trajectories of a game whose episode has ended."""
        if not self._is_paused:
            self._complete += [self._unfinished.pop(key) for key in sorted(self._unfinished) if key[0] == game]

    def set_state_values(self, values: np.ndarray) -> None:
        """Set `Turn.value` of all turns of complete trajectories; `values` is [n_steps, n_envs, n_agents]."""
        for trajectory in self._complete:
            for turn in trajectory.turns:
                turn.value = float(values[turn.step, trajectory.game, trajectory.agent])

    def pop_complete(self) -> list[Trajectory]:
        """Remove the complete trajectories from the buffer, and return them ordered by game and player."""
        complete, self._complete = self._complete, []
        return sorted(complete, key=lambda trajectory: (trajectory.game, trajectory.agent))

    def state_dict(self) -> State:
        trajectories = [*self._complete, *(self._unfinished[key] for key in sorted(self._unfinished))]
        return {
            "n_complete": len(self._complete),
            "trajectories": [_trajectory_to_state(trajectory) for trajectory in trajectories],
        }

    def load_state_dict(self, state: State) -> None:
        trajectories = [_trajectory_from_state(trajectory_state) for trajectory_state in state["trajectories"]]
        self._complete = trajectories[: state["n_complete"]]
        self._unfinished = {(t.game, t.agent): t for t in trajectories[state["n_complete"] :]}


_STORED_FIELDS = ("observation", "is_valid", "step", "reward")
"""Fields of a turn that `_trajectory_to_state` stores without conversion."""


def _trajectory_to_state(trajectory: Trajectory) -> State:
    """Convert a trajectory into arrays, numbers, texts and containers of these, for a checkpoint."""
    turns = [
        {
            "prompt": np.array(turn.sample.prompt),
            "tokens": np.array(turn.sample.tokens),
            "log_probs": turn.sample.log_probs.copy(),
            **{name: getattr(turn, name) for name in _STORED_FIELDS},
        }
        for turn in trajectory.turns
    ]
    return {"game": trajectory.game, "agent": trajectory.agent, "turns": turns}


def _trajectory_from_state(state: State) -> Trajectory:
    """Return the trajectory from which `_trajectory_to_state` computed `state`."""
    turns = []
    for turn in state["turns"]:
        prompt, tokens = tuple(turn["prompt"].tolist()), tuple(turn["tokens"].tolist())
        sample = TokenSample(prompt, tokens, np.array(turn["log_probs"], dtype=np.float32))
        turns.append(Turn(sample, **{name: turn[name] for name in _STORED_FIELDS}))
    return Trajectory(turns, state["game"], state["agent"])


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Token sequence for one forward pass, some of whose tokens were sampled.

    Attributes:
        tokens: token ids.
        positions: positions of the sampled tokens in `tokens`, [n_sampled] int64, increasing, >= 1.
        reply_indices: index of the reply that contains each sampled token, [n_sampled] int64.
        log_probs: log-probabilities with which the tokens were sampled, [n_sampled] float32.
        old_log_probs: log-probabilities of the sampled tokens under the trained policy before the update, [n_sampled]
            float32, for tokens sampled by a server; None: equal to `log_probs`.
    """

    tokens: tuple[int, ...]
    positions: np.ndarray
    reply_indices: np.ndarray
    log_probs: np.ndarray
    old_log_probs: np.ndarray | None = None


def group_mergeable_turns(samples: Sequence[TokenSample]) -> list[list[int]]:
    """Return groups of indices of consecutive turns that form one token sequence.

    A turn belongs to the group of the previous turn if its prompt begins with the tokens of the previous prompt and
    reply. This is not so if the chat template omits earlier reasoning or a limited history omits earlier turns.

    Args:
        samples: turns of one trajectory, in chronological order.
    """
    groups: list[list[int]] = []
    previous_tokens: tuple[int, ...] = ()
    for i, sample in enumerate(samples):
        if groups and sample.prompt[: len(previous_tokens)] == previous_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
        previous_tokens = (*sample.prompt, *sample.tokens)
    return groups


def build_token_sequences(samples: Sequence[TokenSample], first_reply_index: int = 0) -> list[TokenSequence]:
    """Return the token sequences of a trajectory, each with the turns of one group of `group_mergeable_turns`.

    Args:
        samples: turns of one trajectory, in chronological order.
        first_reply_index: value of `TokenSequence.reply_indices` for the first reply.
    """
    sequences = []
    for indices in group_mergeable_turns(samples):
        last_sample = samples[indices[-1]]
        positions_by_turn = [np.arange(len(samples[i].tokens)) + len(samples[i].prompt) for i in indices]
        sequences.append(
            TokenSequence(
                tokens=(*last_sample.prompt, *last_sample.tokens),
                positions=np.concatenate(positions_by_turn),
                reply_indices=np.repeat(np.array(indices) + first_reply_index, list(map(len, positions_by_turn))),
                log_probs=np.concatenate([samples[i].log_probs for i in indices]).astype(np.float32),
            )
        )
    return sequences


AdapterSharing = Literal["shared", "per_player", "per_member"]
"""Adapters of a society: one for all players, one for each player, or one for each member of `agent=mixed`."""


class ChatLearner(Stateful, Protocol):
    """Learner of all weights or of one adapter of a local chat model."""

    def update(self, trajectories: Sequence[Trajectory], generator: torch.Generator) -> dict[str, float]:
        """Train on complete trajectories, with random numbers of `generator`; return metrics."""
        ...

    def reset(self) -> None:
        """Restore the initial weights and the initial state of the optimizer."""
        ...

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter in peft's format; do nothing if all weights are trained."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return a description of the learner for the summary of a run."""
        ...


class ChatLearners(Protocol):
    """Learners of one local chat model: one for each adapter.

    Attributes:
        sharing: which players share an adapter.
        group_size, n_continuations, gamma: see `llmrl.core.agent_interfaces.LearnsFromEpisodeGroups`.
    """

    sharing: AdapterSharing
    group_size: int
    n_continuations: int
    gamma: float

    def learner(self, adapter: str, seeds: Seeds | None = None) -> ChatLearner:
        """Return the learner of an adapter; the first call creates it.

        Args:
            adapter: name of the adapter.
            seeds: seed tree for sampling replies with this adapter; None: the seed tree of the model.

        Raises:
            ConfigError: all weights are trained, and there is already a learner with another name.
        """
        ...

    def seeds(self, adapter: str) -> Seeds:
        """Return the seed tree for sampling replies with an adapter."""
        ...

    def use_adapters(self, adapters: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which sequence i of a batch uses `adapters[i]`."""
        ...


@runtime_checkable
class LearnerFactory(Protocol):
    """Settings of learners, an option of `llm/learn`."""

    def learners(self, chat: Any, seeds: Seeds) -> ChatLearners:
        """Return learners that train the weights of `chat`, a `LocalChat`, with the seed tree `seeds`."""
        ...
