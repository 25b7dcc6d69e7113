"""Agents that do not learn: they play, and what they do is measured, written down and filmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer
from llmrl.core.protocols import Estimating, VecEnv
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.core.run_context import RunContext
from llmrl.loops.independent_games import IndependentGames
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.requests import Begin, Log, PlayIndependently, PlaySteps, Requests, SafePoint
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_logger import EpisodeLogger, EpisodeLogSettings
from llmrl.rollout.episode_results import evaluation_metrics, write_results
from llmrl.rollout.observers import EpisodeProgress
from llmrl.rollout.trajectory_writers import TrajectoryWriter, kept_text
from llmrl.run.content import RESULT_EPISODES
from llmrl.run.episodes import FILM, EpisodeFiles, Films


@runtime_checkable
class PerGameSeeding(Protocol):
    """An environment each of whose games can be given a seed of its own."""

    def seed_games(self, seeds: np.ndarray) -> None:
        """Begin game i of the next reset as `seeds[i]`, [n_envs] int64, has it."""
        ...


@dataclass(frozen=True)
class PlaySettings:
    """How many episodes are played, and what is kept of them: the section `play` of the config.

    Attributes:
        episodes: to be played.
        videos: the first episodes, of which videos are made.
        records: the first episodes, whose steps are written down; None: all if the player reads texts (a language
            model), else those with a video.
        fps: frames a second of videos.
        trajectories: all steps are kept as arrays (`run.trajectories`).
        greedy: the likeliest action is taken where the agent knows it.
    """

    episodes: PositiveInt
    videos: NonNegativeInt = 0
    records: NonNegativeInt | None = None
    fps: PositiveFloat = 2.0
    trajectories: bool = False
    greedy: bool = False


class PlayLoop:
    """`principal=none` with an agent that does not learn: play a number of episodes.

    `env.n_envs` games are played at once. Where a language model plays, each game goes on when its replies are there,
    and its next episode begins when one ends (`IndependentGames`), if the environment's games can be played apart and
    nobody watches all of them step by step. Otherwise episodes are played in waves; the last wave has as many as are
    missing, and nobody is asked for the others. Episode k starts from a seed that depends on the run's seed and k
    alone, where the environment takes one a game, so whoever plays, plays the same games.

    Args:
        parts: of the run; one agent. Episode k starts from `episode/k` of the seeds, and step i of the run draws from
            `step/i`.
        settings: how many episodes, and what is kept of them.

    Raises:
        ConfigError: the agent's policy is a function of numbers that nobody has given it.
    """

    def __init__(self, parts: LoopParts, settings: PlaySettings) -> None:
        [self.agent] = parts.agents
        if not getattr(self.agent, "given", True):
            raise ConfigError(
                "the agent plays by numbers that a principal proposes, and principal=none proposes none: choose "
                "principal=cmaes, cem, random or llm to search them, or principal=fixed principal.values=[...]"
            )
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.judged, self.device = parts.judged, parts.device
        policy = self.agent.policy
        self.trajectories = (
            TrajectoryWriter(self.env, kept_text(self.env.spec, policy)) if settings.trajectories else None
        )
        self.collector = Collector(self.env, policy, parts.device, observers=parts.observers)
        self.episodes = settings.episodes
        recorded = settings.episodes if "text" in policy.channels else settings.videos
        self.records = recorded if settings.records is None else settings.records
        self.apart = IndependentGames.fit(self.env, policy) and not parts.observers and self.trajectories is None
        self.games: IndependentGames[EpisodeLogger] | None = None
        self._over: dict[int, Any] = {}  # what was counted in episodes that are over, if earlier ones are not
        self._counted_episodes = 0
        self.wave = self.steps = self.env_steps = 0
        self._in_wave = False
        self._anchor: tuple[int, Callable[[], State]] | None = None

    @property
    def waves(self) -> int:
        return -(-self.episodes // self.env.spec.n_envs)

    def plan(self) -> list[tuple[str, str]]:
        games, horizon = self.env.spec.n_envs, self.env.spec.horizon
        rows = [("  episodes", f"{self.episodes:,}, {min(games, self.episodes)} at once")]
        if horizon is not None:
            return [*rows, ("environment steps", f"at most {self.episodes * horizon:,}")]
        why = "nothing is known to end an episode" if self.env.spec.endless else "only the game knows when it ends"
        rows.append(("environment steps", f"unknown, as env.horizon=null: {why}"))
        if isinstance(self.agent, Estimating):
            rows.append(("LLM calls", "unknown, as many as there are decisions; llm.budget limits them"))
        return rows

    def estimate(self) -> CallEstimate | None:
        """If every episode lasts as long as it may."""
        horizon = self.env.spec.horizon
        if horizon is None or not isinstance(self.agent, Estimating):
            return None
        return self.agent.estimate(horizon, self.episodes)

    def requests(self, run: RunContext) -> Requests[float]:
        """Play; returns what a principal would be judged on, mean over episodes (by default the base return of an
        agent)."""
        yield from self._restore(run)
        run.metrics.attach_pictures(FILM, Films(self.files))
        if self.apart:
            yield from self._play_apart(run)
            return self._finish(run)
        assert self.log is not None
        writers = [self.log, *([] if self.trajectories is None else [self.trajectories])]
        with (
            run.progress(self.episodes, "episodes", "play", self._done) as progress,
            self.collector.observed(*writers, EpisodeProgress(progress)),
        ):
            while self.wave < self.waves:
                yield from self._begin()
                while self._in_wave:
                    yield from self._step(run)
                    if self.env.spec.deterministic:
                        yield SafePoint(self.steps, self.state_dict)
                    else:
                        run.within_grace(*self._resumable())
                counters = {"episodes": self._done, "env_steps": self.env_steps}
                yield Log("episode", "episodes", self._metrics(), counters)
                self._anchor = None
                yield SafePoint(self.steps, self.state_dict)
        yield SafePoint(self.steps, self.state_dict, always=True)
        for each in writers:
            each.close()
        self.collector.close()
        return self._finish(run)

    def _play_apart(self, run: RunContext) -> Requests[None]:
        """Play games each of which goes on by itself."""
        with run.progress(self.episodes, "episodes", "play", self._done) as progress:
            games = self._separated([EpisodeProgress(progress)])
            try:
                while games.going:
                    with self._saved(run):
                        ended = yield PlayIndependently(games)
                    self.steps = games.steps
                    for each in ended:
                        self._over[each.number] = each.counted
                    yield from self._count_episodes()
                    yield SafePoint(self.steps, self.state_dict)
            finally:
                games.close()
        yield SafePoint(self.steps, self.state_dict, always=True)
        self.files.close()

    def _separated(self, others: Sequence[Observer]) -> IndependentGames[EpisodeLogger]:
        """The games, where they stand."""
        episodes = self.seeds.child("episode")

        def logger(env: VecEnv, state: State | None) -> EpisodeLogger:
            return EpisodeLogger(env, self.files, state, self._how, *self.judged)

        self.games = IndependentGames(
            self.env,  # type: ignore[arg-type]
            self.agent.policy,  # type: ignore[arg-type]
            self.device,
            episodes.integer,
            self.episodes,
            carried=bool(self._carried),
            watched=logger,
            others=others,
            state=self._standing,
        )
        if self._standing is not None:
            for lane in self.games.lanes:
                if lane.observer is not None and lane.episode is not None:
                    lane.observer.look()
        return self.games

    def _count_episodes(self) -> Requests[None]:
        """Count what is over in the order of the episodes, and log as often as waves would; so rows are the same
        whichever reply came first."""
        while self._counted_episodes in self._over:
            self.agent.policy.add(self._over.pop(self._counted_episodes))  # type: ignore[attr-defined]
            self._counted_episodes += 1
            k = self._counted_episodes
            if k % self.env.spec.n_envs and k < self.episodes:
                continue
            rows = self.files.finished[:k]
            self.env_steps = sum(int(row["length"]) for row in rows)
            # Of the model's totals only what was really paid, which is a matter of the clock in any case.
            totals = {} if self.meter is None else self.meter.metrics()
            known = {
                name: x for name, x in totals.items() if k == self.episodes or name.startswith(("spent/", "time/"))
            }
            metrics = {**evaluation_metrics(rows), **self._counted(), **known}
            yield Log("episode", "episodes", metrics, {"episodes": k, "env_steps": self.env_steps})

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly (on engines that can be restored)."""
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "files": self.files.state_dict(),
            "log": None if self.log is None else self.log.state_dict(),
            "games": None if self.games is None else self.games.state_dict(),
            "over": [[k, counted] for k, counted in self._over.items()],
            "counted_episodes": self._counted_episodes,
            **({} if self.trajectories is None else {"trajectories": self.trajectories.state_dict()}),
            "wave": self.wave,
            "steps": self.steps,
            "env_steps": self.env_steps,
            "in_wave": self._in_wave and self.env.spec.deterministic,
        }

    @property
    def _done(self) -> int:
        return len(self.files.finished)

    @property
    def _games(self) -> np.ndarray:
        """Games of this wave that are needed, [n_envs] bool."""
        n = self.env.spec.n_envs
        return np.arange(n) < self.episodes - self.wave * n

    def _begin(self) -> Requests[None]:
        """Start a wave, unless one goes on."""
        if self._in_wave:
            return
        if not self.env.spec.deterministic:
            state = self.state_dict()
            self._anchor = self.steps, lambda: state
        first, n = self.wave * self.env.spec.n_envs, self.env.spec.n_envs
        episodes = self.seeds.child("episode")
        seeds = np.array([episodes.integer(first + i) for i in range(n)], dtype=np.int64)
        if isinstance(self.env, PerGameSeeding):
            self.env.seed_games(seeds)
        assert self.log is not None
        self.log.first_episode = first
        if hasattr(self.agent.policy, "episodes"):
            self.agent.policy.episodes = [first + i for i in range(n)]
        if self.trajectories is not None:
            self.trajectories.next_episode = first
        yield Begin(self.collector, self.seeds.child("wave").integer(self.wave), self._games)
        self._in_wave = True

    def _step(self, run: RunContext) -> Requests[None]:
        """One step of all games that are played."""
        assert self.log is not None
        playing = int(self.log.playing.sum())
        with self._saved(run):
            yield PlaySteps(
                collector=self.collector,
                steps=1,
                actions=[self.seeds.child("step").integer(self.steps)],
                learn=False,
                greedy=self.settings.greedy,
                restart=False,
            )
        self.steps += 1
        self.env_steps += playing
        if not self.log.playing.any():
            self._in_wave = False
            self.wave += 1

    def _metrics(self) -> dict[str, float]:
        """Means over the episodes so far, and what the player and the model's client count."""
        return {
            **evaluation_metrics(self.files.finished),
            **self._counted(),
            **({} if self.meter is None else self.meter.metrics()),
        }

    @property
    def _learned(self) -> bool:
        """Whether the run's episodes share what was learned: trained weights, or plans that were drawn once."""
        return bool(getattr(self.agent, "shares_learning", False))

    @property
    def _carried(self) -> tuple[str, ...]:
        """What goes from episode to episode."""
        carried: tuple[str, ...] = getattr(self.agent, "carried", ())
        return carried

    def _counted(self) -> dict[str, float]:
        """What the player itself counts; most count nothing."""
        counted: dict[str, float] = getattr(self.agent, "metrics", dict[str, float])()
        return counted

    def _finish(self, run: RunContext) -> float:
        rows = self.files.finished
        found = evaluation_metrics(rows)
        about = {"env": self.env.spec.name, "agent": self.agent.describe(), "llm": run.status.llm, "seed": run.seed}
        write_results(run.folder, rows, learned=self._learned, about=about, carried=self._carried)
        run.summary = {"episodes": len(rows), "env_steps": self.env_steps, **found, **self._counted()}
        run.summary[RESULT_EPISODES] = [[row["objective"] for row in rows]]
        return found["evaluation/objective"]

    def _saved(self, run: RunContext) -> AbstractContextManager[None]:
        """Keeps the work so far if a language model, where one is used, cannot be reached."""
        if self.meter is None:
            return nullcontext()
        return run.saved_if_refused(*self._resumable())

    def _resumable(self) -> tuple[int, Callable[[], State]]:
        """The place to go on from after an interruption now, and what makes its state."""
        return self._anchor or (self.steps, self.state_dict)

    def _restore(self, run: RunContext) -> Requests[None]:
        state = run.restored
        self._how = EpisodeLogSettings(self.records, self.settings.videos, self.settings.fps)
        self.files = EpisodeFiles(run.folder, None if state is None else state["files"])
        self._standing: State | None = None if state is None else state["games"]
        self.log: EpisodeLogger | None = None
        if not self.apart:
            self.log = EpisodeLogger(
                self.env, self.files, None if state is None else state["log"], self._how, *self.judged
            )
        if self.trajectories is not None:
            self.trajectories.open(run.folder, None if state is None else state.get("trajectories"))
        if state is None:
            return
        self.agent.load_state_dict(state["agents"][0])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
        self.wave, self.steps, self.env_steps = state["wave"], state["steps"], state["env_steps"]
        self._in_wave = state["in_wave"]
        self._over = {int(k): counted for k, counted in state["over"]}
        self._counted_episodes = int(state["counted_episodes"])
        if self._in_wave:
            assert self.log is not None
            if hasattr(self.agent.policy, "episodes"):
                first = self.wave * self.env.spec.n_envs
                self.agent.policy.episodes = [first + i for i in range(self.env.spec.n_envs)]
            yield Begin(self.collector, state=state["collector"])
            self.log.look()
