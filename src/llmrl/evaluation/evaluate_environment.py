"""One environment evaluated: played by each player, in each mode, under each mechanism; and filmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.evaluation.evaluated_mechanisms import EvaluatedMechanism
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.evaluation.videos import film, save_alone, save_side_by_side
from llmrl.experiment.parts import Parts
from llmrl.loops.independent_games import IndependentGames
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy
from llmrl.rollout.trajectory_writers import WriterOf, trajectory_observers

Player = tuple[str, str]
"""A policy and the mode it plays in."""


@dataclass(frozen=True)
class EpisodeSettings:
    """Which episodes are played, and how.

    Attributes:
        n: episodes, >= 1; at least so many, as all games play.
        seeds: of the episodes: the same ones for whoever plays them.
        greedy: the likeliest action is taken.
        exactly: `n` episodes and no more, for players that cost something.
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
    prepare: Callable[[VecEnv], None] = lambda env: None,
) -> list[Episode]:
    """Play episodes of one policy in one environment, and return them.

    Args:
        env: what is played.
        policy, device: who plays, and where.
        settings: which episodes.
        trajectories: folder to write every step into; None: steps are not kept.
        prepare: is given the games before they begin, all or one of them, e.g. to set their mechanism.

    Raises:
        ConfigError: the environment does not offer what the policy reads.
    """
    with trajectory_observers(env, policy, trajectories) as writers:
        if settings.exactly and IndependentGames.fit(env, policy):
            return _played_apart(env, policy, device, settings, prepare, writers)
        collector = Collector(env, policy, device, observers=writers(env))
        begin = partial(prepare, env)
        return evaluate_policy(collector, settings.n, settings.seeds, settings.greedy, begin, settings.exactly)


def _played_apart(
    env: Any,
    policy: Any,
    device: str,
    settings: EpisodeSettings,
    prepare: Callable[[VecEnv], None],
    writers: WriterOf,
) -> list[Episode]:
    """The episodes that `evaluate_policy` plays, each game by itself."""
    n = env.spec.n_envs
    games: IndependentGames[Any] = IndependentGames(
        env,
        policy,
        device,
        seeds=lambda episode: settings.seeds.integer(f"env {episode // n}"),
        episodes=settings.n,
        carried=bool(policy.carried),
        places=lambda episode: (episode % n, n),
        prepare=prepare,
        watched=lambda game, states: writers(game),
    )
    found: dict[int, Episode] = {}
    try:
        while games.going:
            for each in games.go_on():
                policy.add(each.counted)
                found[each.number] = each.episode
    finally:
        games.close()
    return [found[k] for k in sorted(found)]


@dataclass(frozen=True)
class Videos:
    """Files of videos.

    Attributes:
        own: of each mechanism.
        side_by_side: of all side by side, where there are several.
    """

    own: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    side_by_side: Sequence[Path] = ()


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation, ready to be played.

    Attributes:
        settings: what is asked.
        parts: of the run.
        players: who plays, by name; the first is filmed.
        mechanisms: that are imposed one after the other.
        context: index of the context; None where there is none.
        seeds: of the episodes: the same ones for whoever plays them, under whatever mechanism.
        out: folder of what is written.
        tell: is told what goes on.
    """

    settings: EvaluationSettings
    parts: Parts
    players: Mapping[str, Policy]
    mechanisms: Sequence[EvaluatedMechanism]
    context: int | None
    seeds: Seeds
    out: Path
    tell: Reporter

    @property
    def several(self) -> bool:
        """Whether mechanisms are compared."""
        return len(self.mechanisms) > 1

    @property
    def carried(self) -> list[str]:
        """What the agents take from episode to episode."""
        return list(getattr(self.parts.agents[0], "carried", ())) if "student" in self.players else []

    def folder(self, mechanism: EvaluatedMechanism, below: str = "") -> Path:
        """Of what is written of a mechanism alone, in a folder `below` that of the evaluation."""
        return self.out / below / mechanism.name if self.several else self.out / below

    def film(self, states: Sequence[State]) -> Videos:
        """Film the first player under each mechanism, the agents in the state that belongs to it; of several mechanisms
        only the world, all videos of one length, and one in which they run side by side."""
        made = []
        for mechanism, state in zip(self.mechanisms, states, strict=True):
            self._say("filming", mechanism)
            self._impose(mechanism, self.parts.env)
            self.parts.agents[0].load_state_dict(state)
            policy, greedy = next(iter(self.players.values())), self.settings.mode == "deterministic"
            judged = self.parts.objective, self.parts.spending_cost
            made.append(
                film(self.parts, policy, self.seeds, self.settings.video_steps, greedy, *judged, compared=self.several)
            )
        own: dict[str, Sequence[Path]] = {}
        fps, titles = self.settings.fps, [mechanism.shown for mechanism in self.mechanisms]
        sentences = [mechanism.sentence for mechanism in self.mechanisms]
        if not self.several:
            [mechanism], [alone], words = self.mechanisms, made, (titles[0], sentences[0])
            return Videos({mechanism.name: save_alone(alone, *words, self.folder(mechanism, "videos"), fps)})
        for mechanism, each in zip(self.mechanisms, made, strict=True):
            each.hold(max(map(len, made)))
            own[mechanism.name] = each.recorder.save(self.folder(mechanism, "videos"), fps)
        return Videos(own, save_side_by_side(made, titles, sentences, self.out / "videos", fps))

    def play(self, states: Sequence[State], episodes: int, exactly: bool) -> list[dict[Player, list[Episode]]]:
        """Play at least `episodes` with each player in each mode under each mechanism, the agents in the state that
        belongs to it; with `exactly` so many. Returns who played which episodes under each mechanism."""
        return [
            self._play_under(mechanism, state, episodes, exactly)
            for mechanism, state in zip(self.mechanisms, states, strict=True)
        ]

    def _play_under(
        self, mechanism: EvaluatedMechanism, state: State, episodes: int, exactly: bool
    ) -> dict[Player, list[Episode]]:
        self._say(f"{episodes} episodes", mechanism)
        players = [(name, mode) for name in self.players for mode in self.settings.modes]
        folder, found = self.folder(mechanism), dict[Player, list[Episode]]()
        for name, mode in players:
            # What a video or another mode left behind is none of its business.
            self.parts.agents[0].load_state_dict(state)
            kept = (folder if len(players) == 1 else folder / f"{name}_{mode}") if self.settings.trajectories else None
            found[name, mode] = evaluate_environment(
                self.parts.env,
                self.players[name],
                self.parts.device,
                EpisodeSettings(episodes, self.seeds, mode == "deterministic", exactly),
                kept,
                prepare=partial(self._impose, mechanism),
            )
        return found

    def _say(self, what: str, mechanism: EvaluatedMechanism) -> None:
        """Comparing takes its time."""
        if self.several:
            self.tell(f"{what}: {mechanism.title}")

    def _impose(self, mechanism: EvaluatedMechanism, env: VecEnv) -> None:
        if mechanism.vector is not None:
            env.set_mechanism(mechanism.vector)
        if self.context is not None:
            env.set_context(self.context)
