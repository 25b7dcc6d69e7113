"""What an evaluation plays and films, mechanism by mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmrl.core.objectives import Objective
from llmrl.core.protocols import Policy
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.evaluation.measuring import Columns, columns
from llmrl.evaluation.mechanisms import Imposed
from llmrl.evaluation.settings import EvaluationSettings, Teller
from llmrl.evaluation.videos import film, save_side_by_side
from llmrl.experiment.parts import Parts
from llmrl.learners.rollout import Collector
from llmrl.loops.playing import play_episodes
from llmrl.loops.trajectory_writers import written_down

Who = tuple[str, str]
"""A policy and the mode it plays in."""


@dataclass(frozen=True)
class Found:
    """What was played under one mechanism, by whom: the episodes, and what is told of them."""

    played: dict[Who, list[Episode]] = field(default_factory=dict)
    measured: dict[Who, Columns] = field(default_factory=dict)


@dataclass(frozen=True)
class Films:
    """Files of films.

    Attributes:
        own: of each mechanism.
        beside: of all side by side, where there are several.
    """

    own: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    beside: Sequence[Path] = ()


NO_FILMS = Films()


@dataclass(frozen=True)
class Stage:
    """An evaluation, ready to be played.

    Attributes:
        settings: what is asked.
        parts: of the run.
        players: who plays, by name; the first is filmed.
        modes: that each plays in.
        mechanisms: that are imposed one after the other.
        context: index of the context; None where there is none.
        objective, spending_cost: what a principal is judged on.
        seeds: of the episodes: the same ones for whoever plays them, under whatever mechanism.
        out: folder of what is written.
        tell: is told what goes on.
    """

    settings: EvaluationSettings
    parts: Parts
    players: Mapping[str, Policy]
    modes: Sequence[str]
    mechanisms: Sequence[Imposed]
    context: int | None
    objective: Objective
    spending_cost: float
    seeds: Seeds
    out: Path
    tell: Teller

    @property
    def several(self) -> bool:
        """Whether mechanisms are compared."""
        return len(self.mechanisms) > 1

    @property
    def carried(self) -> list[str]:
        """What the agents take from episode to episode."""
        return list(getattr(self.parts.agents[0], "carried", ())) if "student" in self.players else []

    def folder(self, mechanism: Imposed, below: str = "") -> Path:
        """Of what is written of a mechanism alone, in a folder `below` that of the evaluation."""
        return self.out / below / mechanism.name if self.several else self.out / below

    def film(self, states: Sequence[State]) -> Films:
        """Film the first player under each mechanism, the agents in the state that belongs to it; of several mechanisms
        only the world, all films of one length, and one in which they run side by side."""
        made = []
        for mechanism, state in zip(self.mechanisms, states, strict=True):
            self._say("filming", mechanism)
            self._impose(mechanism)
            self.parts.agents[0].load_state_dict(state)
            policy, greedy = next(iter(self.players.values())), self.settings.mode == "deterministic"
            judged = self.objective, self.spending_cost
            made.append(
                film(self.parts, policy, self.seeds, self.settings.video_steps, greedy, *judged, compared=self.several)
            )
        own: dict[str, Sequence[Path]] = {}
        for mechanism, each in zip(self.mechanisms, made, strict=True):
            each.hold(max(map(len, made)))
            own[mechanism.name] = each.recorder.save(self.folder(mechanism, "videos"), self.settings.fps)
        if not self.several:
            return Films(own)
        titles = [mechanism.title for mechanism in self.mechanisms]
        return Films(own, save_side_by_side(made, titles, self.out / "videos", self.settings.fps))

    def play(self, states: Sequence[State], episodes: int, exactly: bool) -> list[Found]:
        """Play at least `episodes` with each player in each mode under each mechanism, the agents in the state that
        belongs to it; with `exactly` so many."""
        return [
            self._under(mechanism, state, episodes, exactly)
            for mechanism, state in zip(self.mechanisms, states, strict=True)
        ]

    def _under(self, mechanism: Imposed, state: State, episodes: int, exactly: bool) -> Found:
        env, found, folder = self.parts.env, Found(), self.folder(mechanism)
        self._say(f"{episodes} episodes", mechanism)
        alone = len(self.players) * len(self.modes) == 1
        for name, policy in self.players.items():
            for mode in self.modes:
                # What a film or another mode left behind is none of its business.
                self.parts.agents[0].load_state_dict(state)
                kept = (folder if alone else folder / f"{name}_{mode}") if self.settings.trajectories else None
                greedy = mode == "deterministic"
                with written_down(env, policy, kept) as observers:
                    collector = Collector(env, policy, self.parts.device, observers=observers)
                    played = play_episodes(
                        collector, episodes, self.seeds, greedy, lambda: self._impose(mechanism), exactly
                    )
                found.played[name, mode] = played
                found.measured[name, mode] = columns(played, env.spec, self.objective, self.spending_cost)
        return found

    def _say(self, what: str, mechanism: Imposed) -> None:
        """Comparing takes its time."""
        if self.several:
            self.tell(f"{what}: {mechanism.title}")

    def _impose(self, mechanism: Imposed) -> None:
        if mechanism.vector is not None:
            self.parts.env.set_mechanism(mechanism.vector)
        if self.context is not None:
            self.parts.env.set_context(self.context)
