"""Observers that write trajectories: of players as they play, and of rollouts that a learner learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import Observation, State, on_host
from llmrl.core.rollouts import Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.core.text_array import TextArray
from llmrl.run.trajectories import Trajectories, TrajectoryFiles

CHUNK = 8192
"""Rows of a file of played episodes, about: as much as is held in memory and in a checkpoint."""
PROMPT, TEXT = "prompt", "text"
_LABELS = ("kind", "mission")
_LONG_AGO = -(2**62)


@runtime_checkable
class HasTaskLabels(Protocol):
    """An environment whose episodes have names: of the kind of task, and of the mission; [n_envs] each, of the episode
    a game is in, or was in last."""

    @property
    def kinds(self) -> Sequence[str]: ...

    @property
    def missions(self) -> Sequence[str]: ...


def _labels(env: VecEnv) -> dict[str, list[str]]:
    return {"kind": list(env.kinds), "mission": list(env.missions)} if isinstance(env, HasTaskLabels) else {}


def kept_text(spec: EnvSpec, policy: Policy) -> str | None:
    """The channel of texts that trajectories keep: the whole prompt where there is one, else the text that is read."""
    if PROMPT in spec.observation:
        return PROMPT
    return TEXT if TEXT in policy.channels else None


class PlayedEpisodes:
    """Whole episodes of a player on their way into files, in the order of their numbers, whichever ended first.

    Args:
        spec: of the environment.
        chunk: rows after which a file is written.
    """

    def __init__(self, spec: EnvSpec, chunk: int = CHUNK) -> None:
        self.spec, self.chunk = spec, chunk
        self._next = self._rows = 0  # episodes before this one are written, ready or not to come; rows that are ready
        self._ready: list[dict[str, Any]] = []
        self._waiting: dict[int, dict[str, Any]] = {}
        self._gone: set[int] = set()
        self._files: TrajectoryFiles | None = None

    def open(self, folder: Path, state: State | None = None, begun: Iterable[int] = ()) -> None:
        """Begin to write into `folder`, or go on from where `state` says.

        Args:
            folder: of the run or the evaluation.
            state: of the run's checkpoint; None: nothing was kept so far.
            begun: numbers of episodes that will not be added any more, unless `state` has them.
        """
        self._files = TrajectoryFiles(folder, None if state is None else state["files"])
        self._waiting = {} if state is None else {int(each["episode"]): dict(each) for each in state["over"]}
        self._gone = set(begun) - set(self._waiting)
        self._go_on()

    def add(self, episode: dict[str, Any]) -> None:
        """Keep an episode that is over."""
        self._waiting[episode["episode"]] = episode
        self._go_on()

    def drop(self, number: int) -> None:
        """Wait no more for an episode that was given up."""
        self._gone.add(number)
        self._go_on()

    def close(self) -> None:
        """Write what is left."""
        self._ready += [self._waiting[number] for number in sorted(self._waiting)]
        self._waiting = {}
        if self._ready:
            self._write()

    def state_dict(self) -> State:
        """What is in no file yet, and which files there are."""
        assert self._files is not None
        return {"files": self._files.state_dict(), "over": [*map(dict, [*self._ready, *self._waiting.values()])]}

    def _go_on(self) -> None:
        while self._next in self._waiting or self._next in self._gone:
            episode = self._waiting.pop(self._next, None)
            self._gone.discard(self._next)
            self._next += 1
            if episode is not None:
                self._ready.append(episode)
                self._rows += len(episode["rows"])
            if self._rows >= self.chunk:  # whatever else is ready: files do not depend on what ended when
                self._write()

    def _write(self) -> None:
        assert self._files is not None
        places: dict[str, int] = {}
        columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
        n_agents = self.spec.n_agents
        for episode in self._ready:
            for i, (text, action, log_prob, value, reward, base, terminated, truncated, _) in enumerate(
                episode["rows"]
            ):
                place = -1 if text is None else places.setdefault(text, len(places))
                row = (place, action, log_prob, value, reward, base, terminated, truncated)
                ids = (episode["episode"], i // n_agents, episode["game"], i % n_agents, episode["success"])
                for name, x in zip(_FIELDS, (*row, *ids, episode["kind"], episode["mission"]), strict=True):
                    columns[name].append(x)
        self._files.write(_table(list(places), self.spec, columns))
        self._ready, self._rows = [], 0


class TrajectoryWriter(Observer):
    """Writes down the episodes of a player, whole ones, in the order of their numbers.

    Args:
        env: what is played.
        text: channel of texts that is kept; None: none is.
        episodes: where they go, which may be those of several writers; None: its own.
        games: that the run has, episode k being of game k % games; None: those of `env`, which need not be in order.

    Attributes:
        first_episode: number of the next episode that begins.
    """

    def __init__(
        self, env: VecEnv, text: str | None, episodes: PlayedEpisodes | None = None, games: int | None = None
    ) -> None:
        self.env, self.spec, self.text, self.games = env, env.spec, text, games
        self.channels = () if text is None else (text,)
        self.episodes = PlayedEpisodes(self.spec) if episodes is None else episodes
        self.first_episode = 0
        self._open: list[list[tuple[Any, ...]] | None] = [None] * self.spec.n_envs
        self._numbers = [0] * self.spec.n_envs

    def load_state_dict(self, state: State) -> None:
        """Go on with the episodes in progress."""
        self.first_episode = state["next_episode"]
        self._open = [None if rows is None else [tuple(row) for row in rows] for rows in state["open"]]
        self._numbers = list(state["numbers"])

    @property
    def going(self) -> set[int]:
        """Numbers of the episodes in progress that are written down."""
        return {self._numbers[game] for game, rows in enumerate(self._open) if rows is not None}

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """New episodes begin in `games` [n_envs] bool, numbered in the order of the games; what was not over in them is
        not kept."""
        for game in np.flatnonzero(games):
            if self._open[game] is not None:
                self.episodes.drop(self._numbers[game])
            self._open[game], self._numbers[game] = [], self.first_episode
            self.first_episode += 1

    def on_step(self, transition: Transition) -> None:
        """What was seen, done and led to in all games; those whose episode is over are passed by."""
        act, step = transition.output, transition.step
        actions = on_host(act.action)
        log_prob, value = (None if x is None else on_host(x) for x in (act.log_prob, act.value))
        reward, base = on_host(step.reward), on_host(step.base_reward)
        terminated = np.asarray(step.terminated)
        truncated = np.asarray(step.truncated) & ~terminated
        success = on_host(step.info["success"]) if "success" in self.spec.per_step else None
        texts = None if self.text is None else transition.observation[self.text]
        for game, rows in enumerate(self._open):
            if rows is None:
                continue
            for agent in range(self.spec.n_agents):
                place = game, agent
                rows.append(
                    (
                        None if texts is None else str(texts[place]),
                        actions[place].tolist(),
                        np.nan if log_prob is None else float(log_prob[place]),
                        np.nan if value is None else float(value[place]),
                        float(reward[place]),
                        float(base[place]),
                        bool(terminated[game]),
                        bool(truncated[game]),
                        np.nan if success is None else float(success[game]),
                    )
                )
            if terminated[game] or truncated[game]:
                self._end(game)

    def close(self) -> None:
        """Write what is left; episodes that are not over are not kept."""
        self.episodes.close()

    def state_dict(self) -> State:
        """The episodes in progress."""
        return {
            "next_episode": self.first_episode,
            "open": [None if rows is None else list(rows) for rows in self._open],
            "numbers": list(self._numbers),
        }

    def _end(self, game: int) -> None:
        labels = _labels(self.env)
        rows, self._open[game] = self._open[game], None
        assert rows is not None
        # One agent's rows tell the game's.
        per_step = np.array([row[-1] for row in rows[:: self.spec.n_agents]])
        aggregate = self.spec.per_step.get("success")
        success = {"sum": per_step.sum(), "mean": per_step.mean(), "last": per_step[-1], None: np.nan}[aggregate]
        named = {name: str(labels[name][game]) if name in labels else "" for name in _LABELS}
        number = self._numbers[game]
        played_in = game if self.games is None else number % self.games
        self.episodes.add({"episode": number, "game": played_in, "success": float(success), **named, "rows": rows})


WriterOf = Callable[[VecEnv], list[TrajectoryWriter]]
"""The writers, one or none, for an environment: all games of a player or one."""


@contextmanager
def trajectory_observers(env: VecEnv, policy: Policy, folder: Path | None) -> Iterator[WriterOf]:
    """What makes the writers with which the episodes of `policy` in `env`, or in single games of it, go into `folder`;
    None: nobody writes."""
    if folder is None:
        yield lambda env: []
        return
    episodes, text, games = PlayedEpisodes(env.spec), kept_text(env.spec, policy), env.spec.n_envs
    episodes.open(folder)
    yield lambda env: [TrajectoryWriter(env, text, episodes, games)]
    episodes.close()


class RolloutWriter(Observer):
    """Writes down every k-th rollout of a learner, one file each, named by the number of the update it is for.

    Args:
        env: what is played.
        every: k, >= 1.

    It must observe every rollout of the learner, and no other: episodes are counted.
    """

    def __init__(self, env: VecEnv, every: int) -> None:
        self.env, self.spec, self.every = env, env.spec, every
        self.number = 0
        self._started = 0
        self._episode = np.full(self.spec.n_envs, -1, dtype=np.int64)
        self._length = np.zeros(self.spec.n_envs, dtype=np.int64)
        self._labels: list[Mapping[str, Sequence[str]]] = []
        self._files: TrajectoryFiles | None = None

    def open(self, folder: Path, number: int, state: State | None = None) -> None:
        """Begin to write into `folder` after `number` updates, or go on from where `state` says."""
        self._files = TrajectoryFiles(folder, None if state is None else state["files"])
        self.number = number
        if state is not None:
            self._started = state["started"]
            self._episode, self._length = np.array(state["episode"]), np.array(state["length"])

    def on_step(self, transition: Transition) -> None:
        """What the games' episodes are called."""
        if self._wanted:
            self._labels.append(_labels(self.env))

    def on_rollout(self, rollout: Rollout) -> None:
        """The rollout of the next update."""
        first, ends = rollout.episode_start.cpu().numpy(), (rollout.terminated | rollout.truncated).cpu().numpy()
        steps = np.arange(len(first))[:, None]
        order = self._started + np.cumsum(first.ravel()).reshape(first.shape) - 1
        # Of each game the newest start so far; before it, the episode that was going on.
        episode = np.maximum.accumulate(np.vstack([self._episode, np.where(first, order, -1)]))[1:]
        began = np.maximum.accumulate(np.vstack([-self._length, np.where(first, steps, _LONG_AGO)]))[1:]
        step = steps - began
        if self._wanted:
            self._write(rollout, episode, step, ends)
        self._started += int(first.sum())
        self._episode, self._length = episode[-1].copy(), step[-1] + 1
        self._labels = []
        self.number += 1

    def state_dict(self) -> State:
        assert self._files is not None
        return {
            "files": self._files.state_dict(),
            "started": self._started,
            "episode": self._episode.copy(),
            "length": self._length.copy(),
        }

    @property
    def _wanted(self) -> bool:
        return (self.number + 1) % self.every == 0

    def _write(self, rollout: Rollout, episode: np.ndarray, step: np.ndarray, ends: np.ndarray) -> None:
        assert self._files is not None
        shape = (*ends.shape, self.spec.n_agents)
        success = np.full(ends.shape, np.nan)
        # Episodes are told in the order of their ends.
        for (t, game), told in zip(np.argwhere(ends), rollout.episodes, strict=True):
            of_it = (episode[:, game] == episode[t, game]) & (np.arange(len(ends)) <= t)
            success[of_it, game] = told.summaries.get("success", np.nan)
        read = next((x for n in (PROMPT, TEXT) if isinstance(x := rollout.observation.get(n), TextArray)), None)
        prompts, places = ([], np.full(shape, -1)) if read is None else _placed(read)
        games = {"terminated": rollout.terminated, "truncated": rollout.truncated}
        numbers = {name: getattr(rollout, name) for name in ("action", "log_prob", "value", "reward", "base_reward")}
        columns: dict[str, Any] = {name: x.cpu().numpy() for name, x in numbers.items()}
        columns |= {name: x.cpu().numpy()[:, :, None] for name, x in games.items()}
        columns |= {"prompt": places, "episode": episode[:, :, None], "step": step[:, :, None]}
        columns |= {"game": np.arange(shape[1])[None, :, None], "agent": np.arange(shape[2])[None, None, :]}
        columns["success"] = success[:, :, None]
        for name in _LABELS:
            texts = [labels[name] for labels in self._labels if name in labels]
            known = np.array(texts, dtype=object) if texts else np.full(shape[:2], "", dtype=object)
            columns[name] = known[:, :, None]
        flat = {
            name: np.broadcast_to(x, (*shape, *x.shape[3:])).reshape(-1, *x.shape[3:]) for name, x in columns.items()
        }
        self._files.write(_table(prompts, self.spec, flat), self.number + 1)


_FIELDS = (
    *("prompt", "action", "log_prob", "value", "reward", "base_reward", "terminated", "truncated"),
    *("episode", "step", "game", "agent", "success", "kind", "mission"),
)
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("prompt", "episode", "step", "game", "agent"), np.int64),
    **dict.fromkeys(("log_prob", "value", "reward", "base_reward", "success"), np.float32),
    **dict.fromkeys(("terminated", "truncated"), bool),
    **dict.fromkeys(("kind", "mission"), object),
}


def _placed(texts: TextArray) -> tuple[list[str], np.ndarray]:
    prompts, places = texts.distinct()
    return prompts, places.cpu().numpy()


def _table(prompts: list[str], spec: EnvSpec, columns: Mapping[str, Any]) -> Trajectories:
    types = {**_TYPES, "action": np.int64 if spec.continuous_actions is None else np.float32}
    names = [] if spec.continuous_actions is not None else list(spec.action_names)
    return Trajectories(prompts, names, **{n: np.array(columns[n], dtype=types[n]) for n in _FIELDS})
