"""Observers that write trajectories: every step of played episodes, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import Observation, State, to_numpy
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.run.trajectories import Trajectories, TrajectoryFiles

CHUNK_ROWS = 8192
"""Approximate number of rows (steps x agents) of a file; unwritten rows are held in memory and in checkpoints."""
PROMPT_CHANNEL, TEXT_CHANNEL = "prompt", "text"


@runtime_checkable
class HasTaskLabels(Protocol):
    """Protocol of environments whose episodes are labeled by kind of task and by mission (the text of the goal).

    Each property has one label per game, [n_envs], for the episode in progress or, after its end, the last one.
    """

    @property
    def kinds(self) -> Sequence[str]: ...

    @property
    def missions(self) -> Sequence[str]: ...


def choose_text_channel(spec: EnvSpec, policy: Policy) -> str | None:
    """Return the channel of texts to store: the complete prompt, else the text that the policy reads, else None."""
    if PROMPT_CHANNEL in spec.observation:
        return PROMPT_CHANNEL
    return TEXT_CHANNEL if TEXT_CHANNEL in policy.channels else None


class EpisodeQueue:
    """Queue that writes complete episodes to files in the order of their numbers, independent of when they end.

    Args:
        spec: specification of the environment.
        chunk_rows: number of rows after which a file is written.
    """

    def __init__(self, spec: EnvSpec, chunk_rows: int = CHUNK_ROWS) -> None:
        self.spec, self.chunk_rows = spec, chunk_rows
        self._next_number = 0  # lowest number that was neither added nor excluded
        self._ready_episodes: list[dict[str, Any]] = []  # episodes to write in the next file
        self._n_ready_rows = 0
        self._pending_episodes: dict[int, dict[str, Any]] = {}  # finished episodes with numbers above `_next_number`
        self._excluded_numbers: set[int] = set()  # numbers of episodes that will not be added
        self._files: TrajectoryFiles | None = None

    def open(self, folder: Path, state: State | None = None, excluded_numbers: Iterable[int] = ()) -> None:
        """Open the files in `folder`, or continue them from `state`.

        Args:
            folder: folder of the run or of the evaluation.
            state: state from the run's checkpoint; None: a new run, existing files are deleted.
            excluded_numbers: numbers of episodes that will not be added: finished episodes (those in `state` are
                written nevertheless), and episodes that began before trajectories were stored.
        """
        self._files = TrajectoryFiles(folder, None if state is None else state["files"])
        self._pending_episodes = (
            {} if state is None else {int(episode["episode"]): dict(episode) for episode in state["pending"]}
        )
        self._excluded_numbers = set(excluded_numbers) - set(self._pending_episodes)
        self._write_ready()

    def add(self, episode: dict[str, Any]) -> None:
        """Add a finished episode."""
        self._pending_episodes[episode["episode"]] = episode
        self._write_ready()

    def exclude(self, number: int) -> None:
        """Record that episode `number` will not be added."""
        self._excluded_numbers.add(number)
        self._write_ready()

    def close(self) -> None:
        """Write the remaining episodes."""
        self._ready_episodes += [self._pending_episodes[number] for number in sorted(self._pending_episodes)]
        self._pending_episodes = {}
        if self._ready_episodes:
            self._write()

    def state_dict(self) -> State:
        """Return the finished episodes that are in no file, and the state of the files."""
        assert self._files is not None
        unwritten_episodes = [*self._ready_episodes, *self._pending_episodes.values()]
        return {"files": self._files.state_dict(), "pending": [*map(dict, unwritten_episodes)]}

    def _write_ready(self) -> None:
        while self._next_number in self._pending_episodes or self._next_number in self._excluded_numbers:
            episode = self._pending_episodes.pop(self._next_number, None)
            self._excluded_numbers.discard(self._next_number)
            self._next_number += 1
            if episode is not None:
                self._ready_episodes.append(episode)
                self._n_ready_rows += len(episode["rows"])
            # Within the loop, so that the episodes of a file do not depend on the order in which episodes end.
            if self._n_ready_rows >= self.chunk_rows:
                self._write()

    def _write(self) -> None:
        assert self._files is not None
        text_indices: dict[str, int] = {}
        rows: list[tuple[Any, ...]] = []
        n_agents = self.spec.n_agents
        for episode in self._ready_episodes:
            for i, (text, *step_values, _) in enumerate(episode["rows"]):
                text_index = -1 if text is None else text_indices.setdefault(text, len(text_indices))
                identifiers = (episode["episode"], i // n_agents, episode["game"], i % n_agents, episode["success"])
                rows.append((text_index, *step_values, *identifiers, episode["kind"], episode["mission"]))
        columns = dict(zip(_COLUMN_NAMES, zip(*rows, strict=True), strict=True))
        self._files.write(_to_trajectories(list(text_indices), self.spec, columns))
        self._ready_episodes, self._n_ready_rows = [], 0


class TrajectoryWriter(StateFields, Observer):
    """Observer that collects the steps of complete episodes and adds the episodes to an `EpisodeQueue`.

    Args:
        env: environment that is played.
        text_channel: name of the channel whose texts are stored (`choose_text_channel`); None: no texts.
        queue: queue that receives the episodes, possibly shared by several writers; None: a new queue.
        n_games: number of games of the run; episode k is stored with game index k % `n_games`. None: the index of the
            game in `env` is stored.

    Attributes:
        first_episode: number of the next episode.
    """

    _state_fields = ("first_episode", "_open_rows", "_numbers")

    def __init__(
        self, env: VecEnv, text_channel: str | None, queue: EpisodeQueue | None = None, n_games: int | None = None
    ) -> None:
        self.env, self.spec, self.text_channel, self.n_games = env, env.spec, text_channel, n_games
        self.channels = () if text_channel is None else (text_channel,)
        self.queue = EpisodeQueue(self.spec) if queue is None else queue
        self.first_episode = 0
        # Rows of the episode in progress of each game (None: no such episode), and its number.
        self._open_rows: list[list[tuple[Any, ...]] | None] = [None] * self.spec.n_envs
        self._numbers = [0] * self.spec.n_envs

    @property
    def open_episodes(self) -> set[int]:
        """Numbers of the episodes in progress."""
        return {self._numbers[game] for game, rows in enumerate(self._open_rows) if rows is not None}

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Begin new episodes in `games`, a mask [n_envs] bool, and discard episodes in progress in these games."""
        for game in np.flatnonzero(games):
            if self._open_rows[game] is not None:
                self.queue.exclude(self._numbers[game])
            self._open_rows[game], self._numbers[game] = [], self.first_episode
            self.first_episode += 1

    def on_step(self, transition: Transition) -> None:
        """Record a step of all games whose episode is in progress."""
        act, step = transition.output, transition.step
        actions = to_numpy(act.action)
        log_prob, value = (None if x is None else to_numpy(x) for x in (act.log_prob, act.value))
        reward, base_reward = to_numpy(step.reward), to_numpy(step.base_reward)
        terminated = np.asarray(step.terminated)
        truncated = np.asarray(step.truncated) & ~terminated
        success = to_numpy(step.info["success"]) if "success" in self.spec.per_step else None
        texts = None if self.text_channel is None else transition.observation[self.text_channel]
        for game, rows in enumerate(self._open_rows):
            if rows is None:
                continue
            for agent in range(self.spec.n_agents):
                index = game, agent
                rows.append(
                    (  # text, then columns from `action` to `terminated`, `truncated`, and success of the step
                        None if texts is None else str(texts[index]),
                        actions[index].tolist(),
                        np.nan if log_prob is None else float(log_prob[index]),
                        np.nan if value is None else float(value[index]),
                        float(reward[index]),
                        float(base_reward[index]),
                        bool(terminated[game]),
                        bool(truncated[game]),
                        np.nan if success is None else float(success[game]),
                    )
                )
            if terminated[game] or truncated[game]:
                self._finish_episode(game)

    def close(self) -> None:
        """Write the remaining finished episodes."""
        self.queue.close()

    def _finish_episode(self, game: int) -> None:
        rows, self._open_rows[game] = self._open_rows[game], None
        assert rows is not None
        # One row per step, because all agents of a game have the same success.
        step_successes = np.array([row[-1] for row in rows[:: self.spec.n_agents]])
        aggregates = {"sum": step_successes.sum(), "mean": step_successes.mean(), "last": step_successes[-1]}
        number = self._numbers[game]
        self.queue.add(
            {
                "episode": number,
                "game": game if self.n_games is None else number % self.n_games,
                "success": float((aggregates | {None: np.nan})[self.spec.per_step.get("success")]),
                "kind": str(self.env.kinds[game]) if isinstance(self.env, HasTaskLabels) else "",
                "mission": str(self.env.missions[game]) if isinstance(self.env, HasTaskLabels) else "",
                "rows": rows,
            }
        )


def make_trajectory_writer(env: VecEnv, policy: Policy, folder: Path) -> TrajectoryWriter:
    """Return an observer that writes the episodes of `policy` in `env` into `folder`."""
    writer = TrajectoryWriter(env, choose_text_channel(env.spec, policy), n_games=env.spec.n_envs)
    writer.queue.open(folder)
    return writer


_COLUMN_NAMES = (
    *("prompt", "action", "log_prob", "value", "reward", "base_reward", "terminated", "truncated"),
    *("episode", "step", "game", "agent", "success", "kind", "mission"),
)
_DTYPE_BY_COLUMN: dict[str, Any] = {
    **dict.fromkeys(("prompt", "episode", "step", "game", "agent"), np.int64),
    **dict.fromkeys(("log_prob", "value", "reward", "base_reward", "success"), np.float32),
    **dict.fromkeys(("terminated", "truncated"), bool),
    **dict.fromkeys(("kind", "mission"), object),
}


def _to_trajectories(prompts: list[str], spec: EnvSpec, columns: Mapping[str, Any]) -> Trajectories:
    dtypes = {**_DTYPE_BY_COLUMN, "action": np.int64 if spec.continuous_actions is None else np.float32}
    names = [] if spec.continuous_actions is not None else list(spec.action_names)
    return Trajectories(prompts, names, **{n: np.array(columns[n], dtype=dtypes[n]) for n in _COLUMN_NAMES})
