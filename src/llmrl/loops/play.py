"""The loop of agents that do not learn: their episodes are measured, recorded and filmed."""

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
from llmrl.loops.compute_requests import Begin, Call, Log, PlaySteps, Requests, SafePoint
from llmrl.loops.continuations import begin_games
from llmrl.loops.independent_games import EpisodePlan, IndependentGames
from llmrl.loops.loop_parts import LoopParts, describe_run
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import evaluation_metrics, write_results
from llmrl.rollout.run_observers import EpisodeLogger, EpisodeLogSettings, EpisodeProgress
from llmrl.rollout.trajectory_writers import EpisodeQueue, TrajectoryWriter, stored_text_channel
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.episode_files import VIDEO_TAG, EpisodeFiles
from llmrl.run.run import Run


@dataclass(frozen=True)
class PlaySettings:
    """Settings of play: the section `play` of the config.

    Attributes:
        episodes: number of episodes to play.
        videos: number of first episodes with a video.
        records: number of first episodes whose steps are recorded; None: all if the player reads texts (a language
            model), else those with a video.
        fps: frames per second of videos.
        trajectories: whether all steps are stored as arrays (`run.trajectories`).
        greedy: whether the most probable action is taken, if the agent provides it.
    """

    episodes: PositiveInt
    videos: NonNegativeInt = 0
    records: NonNegativeInt | None = None
    fps: PositiveFloat = 2.0
    trajectories: bool = False
    greedy: bool = False


class PlayLoop:
    """The loop of `principal=none` with an agent that does not learn: play a number of episodes.

    `env.n_envs` games are played at once. With a language model as the player, each game continues when it has its
    replies (`IndependentGames`), if games can be played separately and the user has no observers. Otherwise episodes
    are played in waves of `env.n_envs`; the last wave plays the remaining ones. Episode k starts from a seed that
    depends on the run's seed and k only, if the environment takes a seed for each game. So all agents play the same
    games.

    Args:
        parts: parts of the run, with one agent. Episode k starts from `episode/k` of the seeds; step i of the run
            draws from `step/i`.
        settings: number of episodes, videos and records.

    Raises:
        ConfigError: the agent is a function of parameters, and no parameters are set.
    """

    def __init__(self, parts: LoopParts, settings: PlaySettings) -> None:
        [self.agent] = parts.agents
        if not getattr(self.agent, "has_parameters", True):
            raise Incompatible(
                Misfit.ABSENT,
                "the agent needs parameters from a principal, and principal=none proposes none. Choose "
                "principal=cmaes, cem, random or llm to search them, or principal=fixed principal.values=[...]",
            )
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.welfare_measure, self.device = parts.welfare_measure, parts.device
        policy, self.observers = self.agent.policy, parts.observers
        self.played = EpisodeQueue(self.env.spec) if settings.trajectories else None
        self.trajectories: TrajectoryWriter | None = None  # writer of episodes that are played in waves
        self.collector = Collector(self.env, policy, parts.device, observers=parts.observers)
        # Names of states that the agent carries from one episode to the next.
        self._carried: tuple[str, ...] = getattr(self.agent, "carried", ())
        self.episodes = settings.episodes
        recorded = settings.episodes if "text" in policy.channels else settings.videos
        self.records = recorded if settings.records is None else settings.records
        self.independent = IndependentGames.can_play(self.env, policy) and not parts.observers
        self.games: IndependentGames | None = None
        self._pending_counts: dict[int, Any] = {}  # counts of finished episodes that follow an unfinished one
        self._n_counted = 0
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
        reason = "episodes may never end" if self.env.spec.endless else "the game decides when an episode ends"
        rows.append(("environment steps", f"unknown, because env.horizon=null and {reason}"))
        if isinstance(self.agent, EstimatesCalls):
            rows.append(("LLM calls", "unknown, one or more for each decision; llm.budget limits them"))
        return rows

    def estimate(self) -> CallEstimate | None:
        """Return the calls if every episode lasts as long as the horizon; None if that is unknown or no model plays."""
        horizon = self.env.spec.horizon
        if horizon is None or not isinstance(self.agent, EstimatesCalls):
            return None
        return self.agent.estimate(horizon, self.episodes)

    def requests(self, run: Run) -> Requests[float]:
        """Play; return the mean objective of the episodes (by default an agent's base return)."""
        yield from self._restore(run)
        run.metrics.attach_pictures(VIDEO_TAG, self.files.new_videos)
        if self.independent:
            yield from self._play_independently(run)
            return self._finish(run)
        assert self.log is not None
        writers = [self.log, *([] if self.trajectories is None else [self.trajectories])]
        with (
            run.progress(self.episodes, "episodes", "play", self._done) as progress,
            self.collector.observed(*writers, EpisodeProgress(progress)),
        ):
            while self.wave < self.waves:
                yield from self._begin_wave()
                while self._in_wave:
                    yield from self._step(run)
                    if self.env.spec.deterministic:
                        yield SafePoint(self.steps, self.state_dict)
                    else:
                        run.stop_after_grace(*self._resumable())
                counters = {"episodes": self._done, "env_steps": self.env_steps}
                yield Log("episode", "episodes", self._metrics(), counters)
                self._anchor = None
                yield SafePoint(self.steps, self.state_dict)
        yield SafePoint(self.steps, self.state_dict, always=True)
        for writer in writers:
            writer.close()
        self.collector.close()
        return self._finish(run)

    def _play_independently(self, run: Run) -> Requests[None]:
        """Play the games independently of each other."""
        with run.progress(self.episodes, "episodes", "play", self._done) as progress:
            games = self._make_games(run, [EpisodeProgress(progress)])
            try:
                while games.is_running:
                    with self._saved(run):
                        episodes = yield Call(games.advance, is_long=True)
                    self.steps = games.steps
                    for episode in episodes:
                        self._pending_counts[episode.number] = episode.counts
                    yield from self._count_episodes()
                    yield SafePoint(self.steps, self.state_dict)
            finally:
                games.close()
        yield SafePoint(self.steps, self.state_dict, always=True)
        self.files.close()
        if self.played is not None:
            self.played.close()

    def _make_games(self, run: Run, observers: Sequence[Observer]) -> IndependentGames:
        """Return the independent games, new or in their restored state."""
        writers: list[TrajectoryWriter] = []

        def make_observers(env: VecEnv, states: Sequence[State] | None) -> list[EpisodeLogger | TrajectoryWriter]:
            logger, *writer_states = [None] if states is None else states
            episode_logger = EpisodeLogger(env, self.files, logger, self._log_settings, *self.welfare_measure)
            if self.played is None:
                return [episode_logger]
            writers.append(self._make_writer(env, *writer_states))
            return [episode_logger, writers[-1]]

        self.games = IndependentGames(
            self.env,  # type: ignore[arg-type]
            self.agent.policy,  # type: ignore[arg-type]
            self.device,
            EpisodePlan(self.episodes, self.seeds.child("episode").integer, carried=bool(self._carried)),
            make_observers,
            observers,
            self._games_state,
        )
        if self._games_state is not None:
            for game in self.games.games:
                for observer in game.observers:
                    if isinstance(observer, EpisodeLogger) and game.episode is not None:
                        observer.render_frames()
        if self.played is not None:
            unfinished = {number for writer in writers for number in writer.open_episodes}
            self.played.open(run.folder, self._trajectories_state, self.games.started - unfinished)
        return self.games

    def _make_writer(self, env: VecEnv, state: State | None = None) -> TrajectoryWriter:
        """Return a writer of the steps of all games or of one."""
        text = stored_text_channel(self.env.spec, self.agent.policy)
        writer = TrajectoryWriter(env, text, self.played, self.env.spec.n_envs)
        if state is not None:
            writer.load_state_dict(state)
        return writer

    def _count_episodes(self) -> Requests[None]:
        """Count finished episodes in order, and log after as many episodes as waves have.

        So the logged rows do not depend on the order of replies.
        """
        while self._n_counted in self._pending_counts:
            self.agent.policy.add_counts(self._pending_counts.pop(self._n_counted))  # type: ignore[attr-defined]
            self._n_counted += 1
            k = self._n_counted
            if k % self.env.spec.n_envs and k < self.episodes:
                continue
            rows = self.files.finished[:k]
            self.env_steps = sum(int(row["length"]) for row in rows)
            # The model's totals depend on the order of replies, except costs and times, which vary anyway.
            totals = {} if self.meter is None else self.meter.metrics()
            reproducible = {
                name: x for name, x in totals.items() if k == self.episodes or name.startswith(("usage/", "time/"))
            }
            metrics = {**evaluation_metrics(rows), **self._player_metrics(), **reproducible}
            yield Log("episode", "episodes", metrics, {"episodes": k, "env_steps": self.env_steps})

    def state_dict(self) -> State:
        """Return everything that an exact resume needs (on engines that can be restored)."""
        # Independent games hold the state of their own writers.
        writer_state = {} if self.trajectories is None else self.trajectories.state_dict()
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "files": self.files.state_dict(),
            "log": None if self.log is None else self.log.state_dict(),
            "games": None if self.games is None else self.games.state_dict(),
            "over": [[k, counts] for k, counts in self._pending_counts.items()],
            "counted_episodes": self._n_counted,
            **({} if self.played is None else {"trajectories": writer_state | self.played.state_dict()}),
            "wave": self.wave,
            "steps": self.steps,
            "env_steps": self.env_steps,
            "in_wave": self._in_wave and self.env.spec.deterministic,
        }

    @property
    def _done(self) -> int:
        return len(self.files.finished)

    def _set_policy_episodes(self) -> range:
        """Tell a policy that numbers its episodes those of this wave, one per game; return them."""
        episodes = range(self.wave * self.env.spec.n_envs, (self.wave + 1) * self.env.spec.n_envs)
        if hasattr(self.agent.policy, "episodes"):
            self.agent.policy.episodes = list(episodes)
        return episodes

    def _begin_wave(self) -> Requests[None]:
        """Start a wave, unless one is in play."""
        if self._in_wave:
            return
        if not self.env.spec.deterministic:
            state = self.state_dict()
            self._anchor = self.steps, lambda: state
        episodes = self._set_policy_episodes()
        game_seeds = [self.seeds.child("episode").integer(episode) for episode in episodes]
        assert self.log is not None
        self.log.first_episode = episodes.start
        if self.trajectories is not None:
            self.trajectories.first_episode = episodes.start
        seed, is_needed = self.seeds.child("wave").integer(self.wave), np.array(episodes) < self.episodes
        yield from begin_games(self.collector, game_seeds, seed, is_needed)
        self._in_wave = True

    def _step(self, run: Run) -> Requests[None]:
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
            **self._player_metrics(),
            **({} if self.meter is None else self.meter.metrics()),
        }

    def _player_metrics(self) -> dict[str, float]:
        """Return the player's own counts; empty for most players."""
        return getattr(self.agent, "metrics", dict[str, float])()

    def _finish(self, run: Run) -> float:
        rows = self.files.finished
        metrics = evaluation_metrics(rows)
        description = describe_run(run, self.env.spec.name, self.agent)
        # Whether the episodes share something learned: trained weights, or plans that were drawn once.
        learned = bool(getattr(self.agent, "shares_learning", False))
        write_results(run.folder, rows, learned=learned, about=description, carried=self._carried)
        run.summary = {"episodes": len(rows), "env_steps": self.env_steps, **metrics, **self._player_metrics()}
        run.summary[RESULT_EPISODES] = [[row["objective"] for row in rows]]
        return metrics["evaluation/objective"]

    def _saved(self, run: Run) -> AbstractContextManager[None]:
        """Return a context that saves the work so far if a language model is used and cannot be reached."""
        if self.meter is None:
            return nullcontext()
        return run.save_on_llm_error(*self._resumable())

    def _resumable(self) -> tuple[int, Callable[[], State]]:
        """Return the safe point from which an interrupted run would resume now, and a function for its state."""
        return self._anchor or (self.steps, self.state_dict)

    def _restore(self, run: Run) -> Requests[None]:
        state = run.restored
        self._log_settings = EpisodeLogSettings(self.records, self.settings.videos, self.settings.fps)
        self._games_state: State | None = None if state is None else state["games"]
        self._trajectories_state: State | None = None if state is None else state.get("trajectories")
        if state is not None:
            # Observers are not part of the experiment, so they must not change the way of playing.
            self.independent = state["games"] is not None
            if self.independent and self.observers:
                raise ConfigError(
                    "this run plays its games independently of each other, which observers cannot follow. Continue it "
                    "without observers, or start it again with rerun=true"
                )
        self.files = EpisodeFiles(run.folder, None if state is None else self._files_of(state))
        self.log: EpisodeLogger | None = None
        if not self.independent:
            self.log = EpisodeLogger(
                self.env, self.files, None if state is None else state["log"], self._log_settings, *self.welfare_measure
            )
            if self.played is not None:
                self.trajectories = self._make_writer(self.env, self._trajectories_state)
                n_episodes = self.trajectories.first_episode
                if self._trajectories_state is None and state is not None:
                    n_episodes = (state["wave"] + state["in_wave"]) * self.env.spec.n_envs
                started = set(range(n_episodes)) - self.trajectories.open_episodes
                self.played.open(run.folder, self._trajectories_state, started)
        if state is None:
            return
        self.agent.load_state_dict(state["agents"][0])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
        self.wave, self.steps, self.env_steps = state["wave"], state["steps"], state["env_steps"]
        self._in_wave = state["in_wave"]
        self._pending_counts = {int(k): counts for k, counts in state["over"]}
        self._n_counted = int(state["counted_episodes"])
        if self._in_wave:
            assert self.log is not None
            self._set_policy_episodes()
            yield Begin(self.collector, state=state["collector"])
            self.log.render_frames()

    def _files_of(self, state: State) -> State:
        """Return the state of the episodes' files, without those of unfinished episodes that start again."""
        files: State = state["files"]
        if not self.independent or self.env.spec.deterministic:
            return files
        waiting = {episode for episode, *_ in files["waiting"]}
        return {**files, "open": [location for location in files["open"] if location[0] in waiting]}
