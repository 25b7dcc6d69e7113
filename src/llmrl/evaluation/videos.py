"""Films of an evaluation: one episode of each player or mechanism, and several of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from llmrl.core.objectives import Objective
from llmrl.core.pictures import Drawn, caption_rows, captioned, enlarge, save_film, save_picture
from llmrl.core.protocols import Policy
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.envs.frame_recorder import FrameRecorder
from llmrl.evaluation.captions import ThoughtCaptions
from llmrl.experiment.parts import Parts
from llmrl.learners.episodes import Running
from llmrl.learners.rollout import Collector
from llmrl.loops.playing import UNKNOWN_HORIZON
from llmrl.loops.welfare import episode_welfare

SIDE_BY_SIDE = "side_by_side"
COUNTS = 3
"""Metrics in a caption, at most: of those that an episode sums up, first the ones that are here, in this order."""
SOUGHT = ("apples_eaten", "cleaning_shots", "incentives_paid", "tax_collected")
WIDTH = 360
"""Least width of a world with its caption, pixels."""
_RULE = 4
"""Width of what divides worlds, pixels."""


@dataclass
class Film:
    """An episode of game 0.

    Attributes:
        recorder: has the pictures, one more than steps.
        told: of each picture, what to say of the episode so far; empty where nothing is.
    """

    recorder: FrameRecorder
    told: list[list[str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.recorder.frames["world"])

    def hold(self, length: int) -> None:
        """Let the last picture stand until there are `length`."""
        self.recorder.hold(length)
        self.told += self.told[-1:] * (length - len(self.told))


def film(
    parts: Parts,
    policy: Policy,
    seeds: Seeds,
    steps: int | None,
    greedy: bool,
    objective: Objective,
    spending_cost: float,
    compared: bool = False,
) -> Film:
    """Play one episode, with what the player and a teacher that plays thought beside the picture.

    Args:
        parts: of the evaluation; mechanism and context are set.
        policy: who plays.
        seeds: of the episode: the same ones for all that are compared.
        steps: most steps; None: the whole episode.
        greedy: take the likeliest action.
        objective, spending_cost: what is told of the episode so far.
        compared: it will be seen beside others: what agents see is left out, and the episode so far is told of.
    """
    spec = parts.env.spec
    captions = ThoughtCaptions(policy, spec, None if parts.teacher is None else parts.teacher.policy, parts.device)
    recorder = FrameRecorder(parts.env, views=not compared, captions=captions)
    collector = Collector(parts.env, policy, parts.device, observers=[recorder])
    # The other games are not played: nobody looks at them.
    collector.reset(seeds.integer("video"), np.arange(spec.n_envs) == 0)
    horizon = spec.horizon or UNKNOWN_HORIZON
    left, generator = min(steps or horizon, horizon), seeds.torch("video")
    sums = SoFar(spec, objective, spending_cost)
    made = Film(recorder, [sums.told()] if compared else [])
    while left > 0:
        rollout = collector.collect(1, generator, learn=False, greedy=greedy, restart=False)
        if compared:
            sums.add(rollout)
            made.told.append(sums.told())
        left = 0 if any(episode.game == 0 for episode in rollout.episodes) else left - 1
    return made


class SoFar:
    """What game 0 came to so far in its episode.

    Args:
        spec: of the environment.
        objective, spending_cost: what a principal is judged on.
    """

    def __init__(self, spec: EnvSpec, objective: Objective, spending_cost: float) -> None:
        self.spec, self.objective, self.spending_cost = spec, objective, spending_cost
        sums = [name for name, how in spec.per_step.items() if how == "sum"]
        sought = [name for name in SOUGHT if name in sums]
        self._counts = list(dict.fromkeys([*sought, *sums]))[:COUNTS]
        # What follows from whole episodes only is not shown, and not recorded of single steps.
        self._running = Running(replace(spec, metrics=spec.per_step, device=None))

    def add(self, rollout: Rollout) -> None:
        """Take in steps of the episode."""
        none = np.zeros(rollout.terminated.shape, dtype=bool)
        info = np.array([rollout.info[name] for name in self.spec.per_step]).reshape(-1, *none.shape)
        self._running.add(rollout.reward.cpu(), rollout.base_reward.cpu(), info, none, none[0])

    def told(self) -> list[str]:
        """Lines of a caption: the step and the objective, then what is counted in the game."""
        episode = self._running.so_far(0)
        of = "" if self.spec.horizon is None else f" of {self.spec.horizon}"
        if episode is None:
            return [f"step 0{of}", ""]
        objective = float(episode_welfare([episode], self.objective, self.spending_cost)[0])
        counts = [f"{name.replace('_', ' ')}: {episode.summaries[name]:,.0f}" for name in self._counts]
        return [f"step {episode.length}{of}, objective: {objective:,.1f}", ", ".join(counts)]


def side_by_side(films: Sequence[Film], titles: Sequence[str]) -> Drawn:
    """The pictures of films of one length beside one another, each with its title and what is told of it above."""
    worlds = [each.recorder.frames["world"] for each in films]
    widths = [max(WIDTH, enlarge(frames[0]).shape[1]) for frames in worlds]
    rows = max(
        caption_rows(title, lines, width)
        for each, title, width in zip(films, titles, widths, strict=True)
        for lines in each.told
    )

    def draw(i: int) -> np.ndarray:
        shown = [
            captioned(enlarge(frames[i]), title, each.told[i], width, rows)
            for each, frames, title, width in zip(films, worlds, titles, widths, strict=True)
        ]
        rule = np.full((shown[0].shape[0], _RULE, 3), 200, dtype=np.uint8)
        return np.hstack([part for picture in shown for part in (rule, picture)][1:])

    return Drawn(len(films[0]), draw)


def save_side_by_side(films: Sequence[Film], titles: Sequence[str], folder: Path, fps: int) -> list[Path]:
    """Write films of one length side by side, MP4 and GIF, and the pictures in their middle and at their end, PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = side_by_side(films, titles)
    files = save_film(pictures, folder, SIDE_BY_SIDE, fps)
    stills = {"middle": len(pictures) // 2, "last": len(pictures) - 1}
    return [*files, *(save_picture(pictures[i], folder / f"{SIDE_BY_SIDE}_{name}.png") for name, i in stills.items())]
