"""The loop of agents that do not learn: it plays episodes and writes their metrics, step records and videos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.observers import Observer
from llmrl.core.protocols import EstimatesCalls, VecEnv
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.loops.compute_requests import Begin, Call, Log, PlaySteps, Requests, SafePoint
from llmrl.loops.continuations import begin_games
from llmrl.loops.independent_games import IndependentGames
from llmrl.loops.loop_parts import LoopParts, describe_run
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_logger import EpisodeLogger, EpisodeLogSettings
from llmrl.rollout.episode_summaries import average_episode_rows, write_results
from llmrl.rollout.run_observers import EpisodeProgress
from llmrl.rollout.trajectory_writers import EpisodeQueue, TrajectoryWriter, choose_text_channel
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.episode_files import VIDEO_TAG, EpisodeFiles
from llmrl.run.run import Run


@dataclass(frozen=True)
class PlaySettings:
    """Settings of play: the section `play` of the config.

    Attributes:
        episodes: number of episodes to play.
        videos: number of episodes with a video: episodes 0 to `videos` - 1.
        records: number of episodes whose steps are recorded as text, from episode 0; None: all if the player reads
            texts (a language model), else those with a video.
        fps: frames per second of videos.
        trajectories: whether all steps are stored as arrays (`run.trajectories`).
        greedy: whether agents that compute action probabilities take the most probable action instead of sampling.
    """

    episodes: PositiveInt
    videos: NonNegativeInt = 0
    records: NonNegativeInt | None = None
    fps: PositiveFloat = 2.0
    trajectories: bool = False
    greedy: bool = False


class PlayLoop:
    """The loop of `principal=none` with an agent that does not learn: play a number of episodes.

    `env.n_envs` games are played at once. If a language model plays, games can be played separately and there are no
    user-defined observers, a game takes its next step as soon as its own replies have arrived (`IndependentGames`).
    Otherwise episodes are played in waves of `env.n_envs` synchronized games; the last wave may be smaller. If the
    environment takes a seed for each game, the seed of episode k depends only on the run's seed and k, so different
    agents play episodes with equal starts.

    Args:
        parts: parts of the run, with one agent. Episode k starts from `episode/k` of the seeds, or wave w from `wave/w`
            if games take no seeds of their own; step i of the run draws from `step/i`.
        settings: number of episodes, videos and records.

    Raises:
        ConfigError: the agent is a function of parameters, and no parameters are set.
    """

    def __init__(self, parts: LoopParts, settings: PlaySettings) -> None:
        [self.agent] = parts.agents
        if not getattr(self.agent, "has_parameters", True):
            raise Incompatible(
                IncompatibilityReason.MISSING_PART,
                "the agent needs parameters from a principal, and principal=none proposes none. Choose "
                "principal=cmaes, cem, random or llm to search them, or principal=fixed principal.values=[...]",
            )
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.welfare_measure, self.device = parts.welfare_measure, parts.device
        policy, self.observers = self.agent.policy, parts.observers
        self.trajectory_queue = EpisodeQueue(self.env.spec) if settings.trajectories else None
        self.trajectory_writer: TrajectoryWriter | None = None  # writer of episodes that are played in waves
        self.collector = Collector(self.env, policy, parts.device, observers=parts.observers)
        # Names of the states that the agent keeps from one episode to the next.
        self._carried_states: tuple[str, ...] = getattr(self.agent, "carried_states", ())
        self.n_episodes = settings.episodes
        default_n_recorded = settings.episodes if "text" in policy.channels else settings.videos
        self.n_recorded_episodes = default_n_recorded if settings.records is None else settings.records
        self.plays_independently = IndependentGames.can_play(self.env, policy) and not parts.observers
        self.games: IndependentGames | None = None
        # The player's counts of finished episodes by number, until all episodes with lower numbers have finished.
        self._pending_counts: dict[int, Any] = {}
        self._n_counted_episodes = 0
        self.wave_index = self.steps = self.env_steps = 0
        self._is_wave_in_progress = False
        self._wave_start_checkpoint: tuple[int, Callable[[], State]] | None = None

    @property
    def n_waves(self) -> int:
        """Number of waves of `env.n_envs` episodes."""
        return -(-self.n_episodes // self.env.spec.n_envs)

    def plan(self) -> list[tuple[str, str]]:
        games, horizon = self.env.spec.n_envs, self.env.spec.horizon
        rows = [("  episodes", f"{self.n_episodes:,}, {min(games, self.n_episodes)} at once")]
        if horizon is not None:
            return [*rows, ("environment steps", f"at most {self.n_episodes * horizon:,}")]
        reason = "episodes may never end" if self.env.spec.endless else "the game decides when an episode ends"
        rows.append(("environment steps", f"unknown, because env.horizon=null and {reason}"))
        if isinstance(self.agent, EstimatesCalls):
            rows.append(("LLM calls", "unknown, one or more for each decision; llm.budget limits them"))
        return rows

    def estimate(self) -> CallEstimate | None:
        """Return the calls if every episode reaches the horizon; None without a horizon or a language model."""
        horizon = self.env.spec.horizon
        if horizon is None or not isinstance(self.agent, EstimatesCalls):
            return None
        return self.agent.estimate(horizon, self.n_episodes)

    def requests(self, run: Run) -> Requests[float]:
        """Play all episodes; return their mean objective (by default the mean base return of an agent)."""
        yield from self._restore(run)
        run.metrics.attach_pictures(VIDEO_TAG, self.files.list_new_videos)
        if self.plays_independently:
            yield from self._play_independently(run)
            return self._write_results(run)
        assert self.episode_logger is not None
        writers = [self.episode_logger, *([] if self.trajectory_writer is None else [self.trajectory_writer])]
        with (
            run.progress(self.n_episodes, "episodes", "play", self._n_finished_episodes) as progress,
            self.collector.add_observers(*writers, EpisodeProgress(progress)),
        ):
            while self.wave_index < self.n_waves:
                yield from self._begin_wave()
                while self._is_wave_in_progress:
                    yield from self._step(run)
                    if self.env.spec.deterministic:
                        yield SafePoint(self.steps, self.state_dict)
                    else:
                        run.stop_after_grace(*self._get_checkpoint())
                counters = {"episodes": self._n_finished_episodes, "env_steps": self.env_steps}
                metrics = average_episode_rows(self.files.finished_lines) | self._get_player_metrics()
                metrics |= {} if self.meter is None else self.meter.metrics()
                yield Log("episode", "episodes", metrics, counters)
                self._wave_start_checkpoint = None
                yield SafePoint(self.steps, self.state_dict)
        yield SafePoint(self.steps, self.state_dict, always=True)
        for writer in writers:
            writer.close()
        self.collector.close()
        return self._write_results(run)

    def _play_independently(self, run: Run) -> Requests[None]:
        """Play the games without waiting for each other (`IndependentGames`)."""
        with run.progress(self.n_episodes, "episodes", "play", self._n_finished_episodes) as progress:
            games = self._make_games(run, [EpisodeProgress(progress)])
            try:
                while games.is_running:
                    with self._save_on_llm_error(run):
                        finished_counts = yield Call(games.advance, is_long=True)
                    self.steps = games.steps
                    self._pending_counts |= finished_counts
                    yield from self._count_episodes()
                    yield SafePoint(self.steps, self.state_dict)
            finally:
                games.close()
        yield SafePoint(self.steps, self.state_dict, always=True)
        self.files.close()
        if self.trajectory_queue is not None:
            self.trajectory_queue.close()

    def _make_games(self, run: Run, observers: Sequence[Observer]) -> IndependentGames:
        """Return the independent games, new or in their restored state."""
        writers: list[TrajectoryWriter] = []

        def make_observers(env: VecEnv, states: Sequence[State] | None) -> list[EpisodeLogger | TrajectoryWriter]:
            logger_state, *writer_states = [None] if states is None else states
            episode_logger = EpisodeLogger(env, self.files, logger_state, self._log_settings, *self.welfare_measure)
            if self.trajectory_queue is None:
                return [episode_logger]
            writers.append(self._make_writer(env, *writer_states))
            return [episode_logger, writers[-1]]

        self.games = IndependentGames(
            self.env,  # type: ignore[arg-type]
            self.agent.policy,  # type: ignore[arg-type]
            self.device,
            self.n_episodes,
            get_seed=self.seeds.child("episode").integer,
            carries_state=bool(self._carried_states),
            make_observers=make_observers,
            shared_observers=observers,
            state=self._restored_games_state,
        )
        if self._restored_games_state is not None:
            for game in self.games.games:
                for observer in game.observers:
                    if isinstance(observer, EpisodeLogger) and game.episode is not None:
                        observer.render_frames()
        if self.trajectory_queue is not None:
            excluded_episodes = self.games.started_episodes.difference(*(writer.open_episodes for writer in writers))
            self.trajectory_queue.open(run.folder, self._restored_trajectories_state, excluded_episodes)
        return self.games

    def _make_writer(self, env: VecEnv, state: State | None = None) -> TrajectoryWriter:
        """Return a writer of the steps of `env`, which has all games or, if they are independent, one."""
        text = choose_text_channel(self.env.spec, self.agent.policy)
        writer = TrajectoryWriter(env, text, self.trajectory_queue, self.env.spec.n_envs)
        if state is not None:
            writer.load_state_dict(state)
        return writer

    def _count_episodes(self) -> Requests[None]:
        """Count and log finished episodes by ascending number, so that rows do not depend on the order of replies."""
        while self._n_counted_episodes in self._pending_counts:
            self.agent.policy.add_counts(self._pending_counts.pop(self._n_counted_episodes))  # type: ignore[attr-defined]
            self._n_counted_episodes += 1
            n_counted = self._n_counted_episodes
            if n_counted % self.env.spec.n_envs and n_counted < self.n_episodes:
                continue
            rows = self.files.finished_lines[:n_counted]
            self.env_steps = sum(int(row["length"]) for row in rows)
            # Totals of the language model depend on the order of replies, so they are logged after the last episode
            # only. Costs and times differ between repeated runs in any case, so they are always logged.
            llm_metrics = {} if self.meter is None else self.meter.metrics()
            logs_all, prefixes = n_counted == self.n_episodes, ("usage/", "time/")
            logged_llm_metrics = {name: x for name, x in llm_metrics.items() if logs_all or name.startswith(prefixes)}
            metrics = {**average_episode_rows(rows), **self._get_player_metrics(), **logged_llm_metrics}
            yield Log("episode", "episodes", metrics, {"episodes": n_counted, "env_steps": self.env_steps})

    def state_dict(self) -> State:
        """Return the state for a bit-equal resume (on engines that can be restored)."""
        trajectories_state: State = {}
        if self.trajectory_queue is not None:
            # The writers of independent games are saved in the state of the games.
            writer_state = {} if self.trajectory_writer is None else self.trajectory_writer.state_dict()
            trajectories_state = {"trajectories": writer_state | self.trajectory_queue.state_dict()}
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "files": self.files.state_dict(),
            "log": None if self.episode_logger is None else self.episode_logger.state_dict(),
            "games": None if self.games is None else self.games.state_dict(),
            "pending_counts": [[k, counts] for k, counts in self._pending_counts.items()],
            "counted_episodes": self._n_counted_episodes,
            **trajectories_state,
            "wave": self.wave_index,
            "steps": self.steps,
            "env_steps": self.env_steps,
            "is_wave_in_progress": self._is_wave_in_progress and self.env.spec.deterministic,
        }

    @property
    def _n_finished_episodes(self) -> int:
        return len(self.files.finished_lines)

    def _set_policy_episodes(self) -> range:
        """Return the episode number of each game of this wave; set `episodes` of a policy that has this attribute."""
        episodes = range(self.wave_index * self.env.spec.n_envs, (self.wave_index + 1) * self.env.spec.n_envs)
        if hasattr(self.agent.policy, "episodes"):
            self.agent.policy.episodes = list(episodes)
        return episodes

    def _begin_wave(self) -> Requests[None]:
        """Start the episodes of the next wave; do nothing while a wave is in progress."""
        if self._is_wave_in_progress:
            return
        if not self.env.spec.deterministic:
            state = self.state_dict()
            self._wave_start_checkpoint = self.steps, lambda: state
        episodes = self._set_policy_episodes()
        game_seeds = [self.seeds.child("episode").integer(episode) for episode in episodes]
        assert self.episode_logger is not None
        self.episode_logger.first_episode = episodes.start
        if self.trajectory_writer is not None:
            self.trajectory_writer.first_episode = episodes.start
        seed, game_mask = self.seeds.child("wave").integer(self.wave_index), np.array(episodes) < self.n_episodes
        yield from begin_games(self.collector, game_seeds, seed, game_mask)
        self._is_wave_in_progress = True

    def _step(self, run: Run) -> Requests[None]:
        """Play one step of all games of the wave."""
        assert self.episode_logger is not None
        n_playing = int(self.episode_logger.playing.sum())
        with self._save_on_llm_error(run):
            yield PlaySteps(
                collector=self.collector,
                steps=1,
                action_seeds=[self.seeds.child("step").integer(self.steps)],
                learn=False,
                greedy=self.settings.greedy,
                restart=False,
            )
        self.steps += 1
        self.env_steps += n_playing
        if not self.episode_logger.playing.any():
            self._is_wave_in_progress = False
            self.wave_index += 1

    def _get_player_metrics(self) -> dict[str, float]:
        """Return the metrics that the agent counts itself; empty for most agents."""
        return getattr(self.agent, "metrics", dict[str, float])()

    def _write_results(self, run: Run) -> float:
        rows = self.files.finished_lines
        metrics = average_episode_rows(rows)
        description = describe_run(run, self.env.spec.name, self.agent)
        # Whether all episodes use the same trained weights or sampled plans, and so are not independent.
        shares_learning = bool(getattr(self.agent, "shares_learning", False))
        write_results(
            run.folder, rows, learned=shares_learning, extra_fields=description, carried_states=self._carried_states
        )
        run.summary = {"episodes": len(rows), "env_steps": self.env_steps, **metrics, **self._get_player_metrics()}
        run.summary[RESULT_EPISODES] = [[row["objective"] for row in rows]]
        return metrics["evaluation/objective"]

    def _save_on_llm_error(self, run: Run) -> AbstractContextManager[None]:
        """Return a context that saves the run if the language model cannot be reached; a null context without one."""
        return nullcontext() if self.meter is None else run.save_on_llm_error(*self._get_checkpoint())

    def _get_checkpoint(self) -> tuple[int, Callable[[], State]]:
        """Return the step from which a run interrupted now would resume, and a function that returns its state."""
        return self._wave_start_checkpoint or (self.steps, self.state_dict)

    def _restore(self, run: Run) -> Requests[None]:
        state = run.restored_state
        self._log_settings = EpisodeLogSettings(self.n_recorded_episodes, self.settings.videos, self.settings.fps)
        self._restored_games_state: State | None = None if state is None else state["games"]
        self._restored_trajectories_state: State | None = None if state is None else state.get("trajectories")
        if state is not None:
            # The original run decides how episodes are played: observers must not change results.
            self.plays_independently = state["games"] is not None
            if self.plays_independently and self.observers:
                raise ConfigError(
                    "this run plays its games independently of each other, which observers cannot follow. Continue it "
                    "without observers, or start it again with rerun=true"
                )
        self.files = EpisodeFiles(run.folder, None if state is None else self._get_resumable_files_state(state))
        self.episode_logger: EpisodeLogger | None = None
        if not self.plays_independently:
            self.episode_logger = EpisodeLogger(
                self.env, self.files, None if state is None else state["log"], self._log_settings, *self.welfare_measure
            )
            if self.trajectory_queue is not None:
                self.trajectory_writer = self._make_writer(self.env, self._restored_trajectories_state)
                n_episodes = self.trajectory_writer.first_episode
                if self._restored_trajectories_state is None and state is not None:
                    n_episodes = (state["wave"] + state["is_wave_in_progress"]) * self.env.spec.n_envs
                excluded_episodes = set(range(n_episodes)) - self.trajectory_writer.open_episodes
                self.trajectory_queue.open(run.folder, self._restored_trajectories_state, excluded_episodes)
        if state is None:
            return
        self.agent.load_state_dict(state["agents"][0])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
        self.wave_index, self.steps, self.env_steps = state["wave"], state["steps"], state["env_steps"]
        self._is_wave_in_progress = state["is_wave_in_progress"]
        self._pending_counts = {int(k): counts for k, counts in state["pending_counts"]}
        self._n_counted_episodes = int(state["counted_episodes"])
        if self._is_wave_in_progress:
            assert self.episode_logger is not None
            self._set_policy_episodes()
            yield Begin(self.collector, state=state["collector"])
            self.episode_logger.render_frames()

    def _get_resumable_files_state(self, state: State) -> State:
        """Return the state of the episode files, without files of unfinished episodes that are played again."""
        files: State = state["files"]
        if not self.plays_independently or self.env.spec.deterministic:
            return files
        waiting_episodes = {episode for episode, *_ in files["waiting"]}
        return {**files, "open": [location for location in files["open"] if location[0] in waiting_episodes]}
