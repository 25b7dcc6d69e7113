"""Trajectories of sampled replies with their rewards, and the token sequences that a model is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from llmrl.core.records import State, TokenSample


@dataclass
class Turn:
    """One reply of a trajectory.

    Attributes:
        sample: tokens of prompt and reply, as they were sampled.
        observation: text that identifies the observation, for advantages that compare turns with equal ones.
        is_valid: whether the reply could be parsed.
        step: step of the episode in which the reply was given.
        reward: sum of the rewards from this reply to the next one.
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
    """Replies of one player in one episode, in their order.

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

    A trajectory can be learned from when its episode has ended.

    Args:
        n_envs, n_agents: numbers of games, and of players of each.
    """

    def __init__(self, n_envs: int, n_agents: int) -> None:
        self._shape = n_envs, n_agents
        self._is_paused = False
        self.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside a `with` block."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def clear(self) -> None:
        """Discard all trajectories."""
        n_envs, n_agents = self._shape
        self._open = {(i, k): Trajectory([], i, k) for i in range(n_envs) for k in range(n_agents)}
        self._complete: list[Trajectory] = []

    def begin(self, games: Iterable[int]) -> None:
        """Discard the trajectories of unfinished episodes of `games`, which begin new ones."""
        for game in () if self._is_paused else games:
            for agent in range(self._shape[1]):
                self._open[game, agent] = Trajectory([], game, agent)

    def add_reply(
        self, game: int, agent: int, sample: TokenSample, observation: str, is_valid: bool, step: int
    ) -> None:
        """Append a reply to a player's trajectory (`Turn`)."""
        if not self._is_paused:
            self._open[game, agent].turns.append(Turn(sample, observation, is_valid, step))

    def add_reward(self, game: int, agent: int, reward: float) -> None:
        """Add a reward to a player's newest reply; rewards before its first reply are not due to any reply."""
        turns = self._open[game, agent].turns
        if turns and not self._is_paused:
            turns[-1].reward += reward

    def end(self, game: int) -> None:
        """Complete the trajectories of a game whose episode has ended."""
        if self._is_paused:
            return
        for agent in range(self._shape[1]):
            trajectory = self._open[game, agent]
            if trajectory.turns:
                self._complete.append(trajectory)
            self._open[game, agent] = Trajectory([], game, agent)

    def set_values(self, values: np.ndarray) -> None:
        """Set the values of the turns of complete trajectories from those of states, [n_steps, n_envs, n_agents]."""
        for trajectory in self._complete:
            for turn in trajectory.turns:
                turn.value = float(values[turn.step, trajectory.game, trajectory.agent])

    def take(self) -> list[Trajectory]:
        """Return the complete trajectories ordered by game and player, and remove them."""
        complete, self._complete = self._complete, []
        return sorted(complete, key=lambda trajectory: (trajectory.game, trajectory.agent))

    def state_dict(self) -> State:
        trajectories = [*self._complete, *(trajectory for trajectory in self._open.values() if trajectory.turns)]
        return {"n_complete": len(self._complete), "trajectories": [_plain(trajectory) for trajectory in trajectories]}

    def load_state_dict(self, state: State) -> None:
        self.clear()
        trajectories = [_trajectory(content) for content in state["trajectories"]]
        self._complete = trajectories[: state["n_complete"]]
        self._open |= {(t.game, t.agent): t for t in trajectories[state["n_complete"] :]}


def _plain(trajectory: Trajectory) -> State:
    """Return a trajectory as arrays and plain data."""
    turns = [
        {
            "prompt": np.array(turn.sample.prompt),
            "tokens": np.array(turn.sample.tokens),
            "log_probs": turn.sample.log_probs.copy(),
            "observation": turn.observation,
            "is_valid": turn.is_valid,
            "step": turn.step,
            "reward": turn.reward,
        }
        for turn in trajectory.turns
    ]
    return {"game": trajectory.game, "agent": trajectory.agent, "turns": turns}


def _trajectory(content: State) -> Trajectory:
    """Invert `_plain`."""

    def turn(fields: State) -> Turn:
        prompt, tokens, log_probs = fields["prompt"].tolist(), fields["tokens"].tolist(), fields["log_probs"]
        sample = TokenSample(tuple(prompt), tuple(tokens), np.array(log_probs, dtype=np.float32))
        return Turn(sample, fields["observation"], fields["is_valid"], fields["step"], fields["reward"])

    return Trajectory([turn(fields) for fields in content["turns"]], content["game"], content["agent"])


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Tokens that a model reads at once, with the sampled ones among them.

    Attributes:
        tokens: token ids.
        positions: positions of the sampled tokens in `tokens`, [n_sampled] int64, increasing, >= 1.
        replies: index of the reply that each sampled token is part of, [n_sampled] int64.
        log_probs: log-probabilities of the sampled tokens when they were sampled, [n_sampled] float32.
        old_log_probs: the same under the trained policy before its update, if another computation has sampled the
            tokens; None: `log_probs`.
    """

    tokens: tuple[int, ...]
    positions: np.ndarray
    replies: np.ndarray
    log_probs: np.ndarray
    old_log_probs: np.ndarray | None = None


def merge_turns(samples: Sequence[TokenSample]) -> list[list[int]]:
    """Return runs of indices of successive turns that are one sequence of tokens.

    Turns are merged as long as the prompt of the next turn begins with prompt and reply of the previous one, token for
    token. This depends on the chat template: some drop earlier reasoning, and a limited history drops earlier turns.

    Args:
        samples: turns of one trajectory, in their order.
    """
    runs: list[list[int]] = []
    previous: tuple[int, ...] = ()
    for i, sample in enumerate(samples):
        if runs and sample.prompt[: len(previous)] == previous:
            runs[-1].append(i)
        else:
            runs.append([i])
        previous = (*sample.prompt, *sample.tokens)
    return runs


def token_sequences(samples: Sequence[TokenSample], first_reply: int = 0) -> list[TokenSequence]:
    """Return the sequences of a trajectory; its replies are numbered from `first_reply`.

    Args:
        samples: turns of one trajectory, in their order.
        first_reply: index of the first reply.
    """
    sequences = []
    for indices in merge_turns(samples):
        last = samples[indices[-1]]
        parts = [np.arange(len(samples[i].tokens)) + len(samples[i].prompt) for i in indices]
        sequences.append(
            TokenSequence(
                tokens=(*last.prompt, *last.tokens),
                positions=np.concatenate(parts),
                replies=np.repeat(np.array(indices) + first_reply, [len(part) for part in parts]),
                log_probs=np.concatenate([samples[i].log_probs for i in indices]).astype(np.float32),
            )
        )
    return sequences
