"""Play of agents that do not learn: their episodes are measured, recorded and filmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.observers import Observer
from llmrl.core.protocols import EstimatesCalls, VecEnv
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.core.run_context import RunContext
from llmrl.loops.compute_requests import Begin, Log, PlayIndependently, PlaySteps, Requests, SafePoint
from llmrl.loops.independent_games import IndependentGames, PerGameSeeding, separable
from llmrl.loops.loop_parts import LoopParts
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_logger import EpisodeLogger, EpisodeLogSettings
from llmrl.rollout.episode_results import evaluation_metrics, write_results
from llmrl.rollout.progress_observers import EpisodeProgress
from llmrl.rollout.trajectory_writers import PlayedEpisodes, TrajectoryWriter, kept_text
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.episode_files import FILM, EpisodeFiles, EpisodeVideos


@dataclass(frozen=True)
class PlaySettings:
    """Settings of play: the section `play` of the config.

    Attributes:
        episodes: number of episodes to play.
        videos: number of first episodes with a video.
        records: number of first episodes whose steps are recorded; None: all if the player reads texts (a language
            model), else those with a video.
        fps: frames per second of videos.
        trajectories: whether all steps are kept as arrays (`run.trajectories`).
        greedy: whether the most probable action is taken, if the agent knows it.
    """

    episodes: PositiveInt
    videos: NonNegativeInt = 0
    records: NonNegativeInt | None = None
    fps: PositiveFloat = 2.0
    trajectories: bool = False
    greedy: bool = False


class PlayLoop:
    """The loop of `principal=none` with an agent that does not learn: play a number of episodes.

    `env.n_envs` games are played at once. With a language model as the player, each game goes on when it has its
    replies (`IndependentGames`), if games can be played separately and the user has no observers. Otherwise episodes
    are played in waves; the last wave only plays those missing. Episode k starts from a seed that depends on the run's
    seed and k only, if the environment takes a seed for each game. So all agents play the same games.

    Args:
        parts: parts of the run, with one agent. Episode k starts from `episode/k` of the seeds; step i of the run
            draws from `step/i`.
        settings: number of episodes, and what is kept of them.

    Raises:
        ConfigError: the agent is a function of parameters, and it was given none.
    """

    def __init__(self, parts: LoopParts, settings: PlaySettings) -> None:
        [self.agent] = parts.agents
        if not getattr(self.agent, "given", True):
            raise Incompatible(
                Misfit.ABSENT,
                "the agent plays by numbers that a principal proposes, and principal=none proposes none: choose "
                "principal=cmaes, cem, random or llm to search them, or principal=fixed principal.values=[...]",
            )
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.judged, self.device = parts.judged, parts.device
        policy, self.observers = self.agent.policy, parts.observers
        self.played = PlayedEpisodes(self.env.spec) if settings.trajectories else None
        self.trajectories: TrajectoryWriter | None = None  # of waves
        self.collector = Collector(self.env, policy, parts.device, observers=parts.observers)
        self.episodes = settings.episodes
        recorded = settings.episodes if "text" in policy.channels else settings.videos
        self.records = recorded if settings.records is None else settings.records
        self.apart = IndependentGames.fit(self.env, policy) and not parts.observers
        self.games: IndependentGames[EpisodeLogger | TrajectoryWriter] | None = None
        self._over: dict[int, Any] = {}  # what was counted in episodes that are over, if earlier ones are not
        self._counted_episodes = 0
        self.wave = self.steps = self.env_steps = 0
        self._in_wave = False
        self._anchor: tuple[int, Callable[[], State]] | None = None

    @property
    def waves(self) -> int:
        """Number of waves of `env.n_envs` episodes."""
        return -(-self.episodes // self.env.spec.n_envs)

    def plan(self) -> list[tuple[str, str]]:
        games, horizon = self.env.spec.n_envs, self.env.spec.horizon
        rows = [("  episodes", f"{self.episodes:,}, {min(games, self.episodes)} at once")]
        if horizon is not None:
            return [*rows, ("environment steps", f"at most {self.episodes * horizon:,}")]
        why = "nothing is known to end an episode" if self.env.spec.endless else "only the game knows when it ends"
        rows.append(("environment steps", f"unknown, as env.horizon=null: {why}"))
        if isinstance(self.agent, EstimatesCalls):
            rows.append(("LLM calls", "unknown, as many as there are decisions; llm.budget limits them"))
        return rows

    def estimate(self) -> CallEstimate | None:
        """Return the calls if every episode lasts as long as the horizon; None if that is unknown or no model plays."""
        horizon = self.env.spec.horizon
        if horizon is None or not isinstance(self.agent, EstimatesCalls):
            return None
        return self.agent.estimate(horizon, self.episodes)

    def requests(self, run: RunContext) -> Requests[float]:
        """Play; return the mean objective of the episodes (by default an agent's base return)."""
        yield from self._restore(run)
        run.metrics.attach_pictures(FILM, EpisodeVideos(self.files))
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
        """Play the games independently of each other."""
        with run.progress(self.episodes, "episodes", "play", self._done) as progress:
            games = self._separated(run, [EpisodeProgress(progress)])
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
        if self.played is not None:
            self.played.close()

    def _separated(self, run: RunContext, others: Sequence[Observer]) -> IndependentGames[Any]:
        """Return the independent games, new or in their restored state."""
        episodes = self.seeds.child("episode")
        writers: list[TrajectoryWriter] = []

        def watching(env: VecEnv, states: Sequence[State] | None) -> list[EpisodeLogger | TrajectoryWriter]:
            logger, *written = [None] if states is None else states
            watched = EpisodeLogger(env, self.files, logger, self._how, *self.judged)
            if self.played is None:
                return [watched]
            writers.append(self._writer(env, *written))
            return [watched, writers[-1]]

        self.games = IndependentGames(
            self.env,  # type: ignore[arg-type]
            self.agent.policy,  # type: ignore[arg-type]
            self.device,
            episodes.integer,
            self.episodes,
            carried=bool(self._carried),
            watched=watching,
            others=others,
            state=self._standing,
        )
        if self._standing is not None:
            for lane in self.games.lanes:
                for each in lane.observers:
                    if isinstance(each, EpisodeLogger) and lane.episode is not None:
                        each.look()
        if self.played is not None:
            going = {number for writer in writers for number in writer.going}
            self.played.open(run.folder, self._kept(run), self.games.begun - going)
        return self.games

    def _writer(self, env: VecEnv, state: State | None = None) -> TrajectoryWriter:
        """Return a writer of the steps of all games or of one."""
        text = kept_text(self.env.spec, self.agent.policy)
        writer = TrajectoryWriter(env, text, self.played, self.env.spec.n_envs)
        if state is not None:
            writer.load_state_dict(state)
        return writer

    @staticmethod
    def _kept(run: RunContext) -> State | None:
        """Return the restored state of the trajectories; None without one."""
        kept: State | None = None if run.restored is None else run.restored.get("trajectories")
        return kept

    def _count_episodes(self) -> Requests[None]:
        """Count finished episodes in order, and log as often as waves would; so rows do not depend on the order of
        replies."""
        while self._counted_episodes in self._over:
            self.agent.policy.add(self._over.pop(self._counted_episodes))  # type: ignore[attr-defined]
            self._counted_episodes += 1
            k = self._counted_episodes
            if k % self.env.spec.n_envs and k < self.episodes:
                continue
            rows = self.files.finished[:k]
            self.env_steps = sum(int(row["length"]) for row in rows)
            # The model's totals depend on the order of replies, except costs and times, which vary anyway.
            totals = {} if self.meter is None else self.meter.metrics()
            known = {
                name: x for name, x in totals.items() if k == self.episodes or name.startswith(("spent/", "time/"))
            }
            metrics = {**evaluation_metrics(rows), **self._counted(), **known}
            yield Log("episode", "episodes", metrics, {"episodes": k, "env_steps": self.env_steps})

    def state_dict(self) -> State:
        """Return everything that an exact resume needs (on engines that can be restored)."""
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "files": self.files.state_dict(),
            "log": None if self.log is None else self.log.state_dict(),
            "games": None if self.games is None else self.games.state_dict(),
            "over": [[k, counted] for k, counted in self._over.items()],
            "counted_episodes": self._counted_episodes,
            **({} if self.played is None else {"trajectories": self._written()}),
            "wave": self.wave,
            "steps": self.steps,
            "env_steps": self.env_steps,
            "in_wave": self._in_wave and self.env.spec.deterministic,
        }

    def _written(self) -> State:
        """Return the state of the trajectories; independent games hold that of their own writers."""
        assert self.played is not None
        waves = {} if self.trajectories is None else self.trajectories.state_dict()
        return {**waves, **self.played.state_dict()}

    @property
    def _done(self) -> int:
        return len(self.files.finished)

    @property
    def _games(self) -> np.ndarray:
        """Games of this wave that are needed, [n_envs] bool."""
        n = self.env.spec.n_envs
        return np.arange(n) < self.episodes - self.wave * n

    def _begin(self) -> Requests[None]:
        """Start a wave, unless one is in play."""
        if self._in_wave:
            return
        if not self.env.spec.deterministic:
            state = self.state_dict()
            self._anchor = self.steps, lambda: state
        first, n = self.wave * self.env.spec.n_envs, self.env.spec.n_envs
        episodes = self.seeds.child("episode")
        own = [episodes.integer(first + i) for i in range(n)]
        seed: int | Sequence[int] = self.seeds.child("wave").integer(self.wave)
        if isinstance(self.env, PerGameSeeding):
            self.env.seed_games(np.array(own, dtype=np.int64))
        elif separable(self.env):
            seed = own
        assert self.log is not None
        self.log.first_episode = first
        if hasattr(self.agent.policy, "episodes"):
            self.agent.policy.episodes = [first + i for i in range(n)]
        if self.trajectories is not None:
            self.trajectories.first_episode = first
        yield Begin(self.collector, seed, self._games)
        self._in_wave = True

    def _step(self, run: RunContext) -> Requests[None]:
        """Play one step of all games of the wave."""
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
        """Return means over the episodes so far, and the counts of the player and of the model's client."""
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
        """Names of what the agent carries from one episode to the next."""
        carried: tuple[str, ...] = getattr(self.agent, "carried", ())
        return carried

    def _counted(self) -> dict[str, float]:
        """Return the player's own counts; empty for most players."""
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
        """Return a context that saves the work so far if a language model is used and cannot be reached."""
        if self.meter is None:
            return nullcontext()
        return run.saved_if_refused(*self._resumable())

    def _resumable(self) -> tuple[int, Callable[[], State]]:
        """Return the safe point from which an interrupted run would resume now, and a function for its state."""
        return self._anchor or (self.steps, self.state_dict)

    def _restore(self, run: RunContext) -> Requests[None]:
        state = run.restored
        self._how = EpisodeLogSettings(self.records, self.settings.videos, self.settings.fps)
        self._standing: State | None = None if state is None else state["games"]
        if state is not None:
            self._go_on_as_begun(state)
        self.files = EpisodeFiles(run.folder, None if state is None else self._files_of(state))
        self.log: EpisodeLogger | None = None
        if not self.apart:
            self.log = EpisodeLogger(
                self.env, self.files, None if state is None else state["log"], self._how, *self.judged
            )
            if self.played is not None:
                kept = self._kept(run)
                self.trajectories = self._writer(self.env, kept)
                waves = 0 if state is None else state["wave"] + state["in_wave"]
                begun = waves * self.env.spec.n_envs if kept is None else self.trajectories.first_episode
                self.played.open(run.folder, kept, set(range(begun)) - self.trajectories.going)
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

    def _go_on_as_begun(self, state: State) -> None:
        """Keep playing in waves or independently, as the run has so far; observers, which are not part of the
        experiment, must not change that.

        Raises:
            ConfigError: the games are independent, and there are observers.
        """
        apart = state["games"] is not None
        if apart and self.observers:
            raise ConfigError(
                "the games of this run go on by themselves, where observers cannot watch, and it was begun so: run it "
                "without observers, or anew with rerun=true"
            )
        self.apart = apart and IndependentGames.fit(self.env, self.agent.policy)

    def _files_of(self, state: State) -> State:
        """Return the state of the episodes' files, without those of unfinished episodes that begin anew."""
        files: State = state["files"]
        if not self.apart or self.env.spec.deterministic:
            return files
        over = {episode for episode, *_ in files["waiting"]}
        return {**files, "open": [where for where in files["open"] if where[0] in over]}
