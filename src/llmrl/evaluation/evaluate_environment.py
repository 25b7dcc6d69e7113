"""Evaluation in one environment: each player plays in each mode under each mechanism, and is filmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.evaluation.evaluated_mechanisms import EvaluatedMechanism
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.evaluation.videos import film, save_side_by_side
from llmrl.experiment.parts import Parts
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.trajectory_writers import written_trajectories

Player = tuple[str, str]
"""A policy and the mode it plays in."""


@dataclass(frozen=True)
class EpisodeSettings:
    """Number, seeds and mode of the episodes to play.

    Attributes:
        n: number of episodes, >= 1; more are played if the games do not divide it, unless `exactly`.
        seeds: seed node of the episodes, the same for all players.
        greedy: whether to take the most probable action.
        exactly: whether to play `n` episodes and no more, for players whose calls cost money.
    """

    n: int
    seeds: Seeds
    greedy: bool = False
    exactly: bool = False


def evaluate_environment(
    env: VecEnv,
    policy: Policy,
    device: str,
    settings: EpisodeSettings,
    trajectories: Path | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Play episodes of one policy in one environment, and return them.

    Args:
        env: environment to play.
        policy: policy that plays.
        device: torch device of the policy.
        settings: number, seeds and mode of the episodes.
        trajectories: folder for every step as arrays; None: steps are not stored.
        prepare: function that is called before the games start, e.g. to set their mechanism.

    Raises:
        ConfigError: the environment does not provide the channels that the policy reads.
    """
    writers = [] if trajectories is None else [written_trajectories(env, policy, trajectories)]
    collector = Collector(env, policy, device, observers=writers)
    episodes = evaluate_policy(collector, settings.n, settings.seeds, settings.greedy, prepare, settings.exactly)
    collector.close()
    return episodes


@dataclass(frozen=True)
class Videos:
    """Files of videos.

    Attributes:
        by_mechanism: files of each mechanism, by its name.
        side_by_side: files of the video of all mechanisms side by side; empty with one mechanism.
    """

    by_mechanism: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    side_by_side: Sequence[Path] = ()


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation that is ready to be played.

    Attributes:
        settings: settings of the evaluation.
        parts: parts of the run.
        players: policies that play, by name; the first is filmed.
        mechanisms: mechanisms that are imposed one after the other.
        context: index of the context; None without contexts.
        seeds: seed node of the episodes, the same for all players and mechanisms.
        out: folder of the results.
        report: function that shows the progress.
    """

    settings: EvaluationSettings
    parts: Parts
    players: Mapping[str, Policy]
    mechanisms: Sequence[EvaluatedMechanism]
    context: int | None
    seeds: Seeds
    out: Path
    report: Reporter

    @property
    def is_comparison(self) -> bool:
        """True if several mechanisms are compared."""
        return len(self.mechanisms) > 1

    @property
    def carried(self) -> list[str]:
        """Names of states that the agents carry from one episode to the next."""
        return list(getattr(self.parts.agents[0], "carried", ())) if "student" in self.players else []

    def folder(self, mechanism: EvaluatedMechanism, below: str = "") -> Path:
        """Return the folder for files of one mechanism, in the subfolder `below` of the evaluation."""
        return self.out / below / mechanism.name if self.is_comparison else self.out / below

    def film(self, states: Sequence[State]) -> Videos:
        """Film the first player under each mechanism; return the files.

        Of several mechanisms, only the world is filmed, all videos have the same length, and one video shows them side
        by side.

        Args:
            states: state of the agents for each mechanism.
        """
        videos = []
        for mechanism, state in zip(self.mechanisms, states, strict=True):
            self._report_activity("filming", mechanism)
            self._impose(mechanism)
            self.parts.agents[0].load_state_dict(state)
            policy, greedy = next(iter(self.players.values())), self.settings.mode == "deterministic"
            objective_arguments = self.parts.objective, self.parts.spending_cost
            videos.append(
                film(
                    self.parts,
                    policy,
                    self.seeds,
                    self.settings.video_steps,
                    greedy,
                    *objective_arguments,
                    compared=self.is_comparison,
                )
            )
        files: dict[str, Sequence[Path]] = {}
        fps, headings = self.settings.fps, [[(m.heading, m.sentence)] for m in self.mechanisms]
        for mechanism, video, heading in zip(self.mechanisms, videos, headings, strict=True):
            video.hold(max(map(len, videos)))
            files[mechanism.name] = video.save(self.folder(mechanism, "videos"), fps, heading)
        if not self.is_comparison:
            return Videos(files)
        return Videos(files, save_side_by_side(videos, headings, self.out / "videos", fps))

    def play(self, states: Sequence[State], episodes: int, exactly: bool) -> list[dict[Player, list[Episode]]]:
        """Play with each player in each mode under each mechanism.

        Args:
            states: state of the agents for each mechanism.
            episodes: number of episodes, at least.
            exactly: whether to play no more than `episodes`.

        Returns:
            For each mechanism: the episodes of each player.
        """
        return [
            self._play_under(mechanism, state, episodes, exactly)
            for mechanism, state in zip(self.mechanisms, states, strict=True)
        ]

    def _play_under(
        self, mechanism: EvaluatedMechanism, state: State, episodes: int, exactly: bool
    ) -> dict[Player, list[Episode]]:
        self._report_activity(f"{episodes} episodes", mechanism)
        players = [(name, mode) for name in self.players for mode in self.settings.modes]
        folder, player_episodes = self.folder(mechanism), dict[Player, list[Episode]]()
        for name, mode in players:
            # Undo changes by a video or another mode.
            self.parts.agents[0].load_state_dict(state)
            trajectory_folder = (
                (folder if len(players) == 1 else folder / f"{name}_{mode}") if self.settings.trajectories else None
            )
            player_episodes[name, mode] = evaluate_environment(
                self.parts.env,
                self.players[name],
                self.parts.device,
                EpisodeSettings(episodes, self.seeds, mode == "deterministic", exactly),
                trajectory_folder,
                prepare=partial(self._impose, mechanism),
            )
        return player_episodes

    def _report_activity(self, activity: str, mechanism: EvaluatedMechanism) -> None:
        """Show an activity, if several mechanisms are compared, because that takes long."""
        if self.is_comparison:
            self.report(f"{activity}: {mechanism.title}")

    def _impose(self, mechanism: EvaluatedMechanism) -> None:
        if mechanism.vector is not None:
            self.parts.env.set_mechanism(mechanism.vector)
        if self.context is not None:
            self.parts.env.set_context(self.context)
