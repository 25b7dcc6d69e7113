"""Videos of an evaluation: one episode of each player or mechanism.

Beside the game, they show what a player and its teacher thought, or the payoffs and levels of a society. Several videos
can be shown side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from llmrl.core.frames import SIDE_BY_SIDE, LazyFrames, save_video
from llmrl.core.protocols import Policy
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.frame_recorder import MAX_AGENTS, FrameRecorder, Thoughts, Words
from llmrl.experiment.parts import Parts
from llmrl.rollout.collector import UNKNOWN_HORIZON, Collector
from llmrl.rollout.episode_accumulator import EpisodeAccumulator
from llmrl.rollout.episode_summaries import episode_welfare

COUNTS = 3
"""Maximum number of counts beside a picture; those of `PREFERRED_COUNTS` come first, in their order."""
PREFERRED_COUNTS = ("apples_eaten", "cleaning_shots", "incentives_paid", "tax_collected")
LEVELS = {"apples_live": "apples", "dirt": "dirt"}
"""Metrics of a step that are shown if the environment has them, with their names."""


def film(
    parts: Parts,
    policy: Policy,
    seeds: Seeds,
    steps: int | None,
    greedy: bool,
    objective: Objective,
    spending_cost: float,
    compared: bool = False,
) -> FrameRecorder:
    """Play one episode and return its frames.

    Beside the game, they show what the player and a teacher that plays thought; for a society, the payoffs of agents
    and the levels of its world.

    Args:
        parts: parts of the evaluation; mechanism and context are set.
        policy: policy that plays.
        seeds: seed node of the episode, the same for all videos that are compared.
        steps: maximum number of steps; None: the full episode.
        greedy: whether to take the most probable action.
        objective: welfare measure of a society.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        compared: whether the video is shown side by side with others: as a society, without the views of agents.
    """
    spec = parts.env.spec
    society = compared or spec.n_agents > MAX_AGENTS
    teacher = None if parts.teacher is None else parts.teacher.policy
    thoughts = None if society else Thoughts(policy, spec, teacher, parts.device)
    recorder = FrameRecorder(parts.env, views=not compared, thoughts=thoughts)
    collector = Collector(parts.env, policy, parts.device, observers=[recorder])
    # The other games are not played, because they are not shown.
    collector.reset(seeds.integer("video"), np.arange(spec.n_envs) == 0)
    horizon = spec.horizon or UNKNOWN_HORIZON
    remaining, generator = min(steps or horizon, horizon), seeds.torch("video")
    sums = RunningSums(spec, objective, spending_cost)
    while remaining > 0:
        if society:
            recorder.words.append(sums.words())
        rollout = collector.collect(1, generator, learn=False, greedy=greedy, restart=False)
        sums.add(rollout)
        remaining = 0 if any(episode.game == 0 for episode in rollout.episodes) else remaining - 1
    if society:
        recorder.words.append(sums.words())
    return recorder


class RunningSums:
    """Sums of game 0 over its episode so far.

    Args:
        spec: specification of the environment.
        objective: welfare measure of a society.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
    """

    def __init__(self, spec: EnvSpec, objective: Objective, spending_cost: float) -> None:
        self.spec, self.objective, self.spending_cost = spec, objective, spending_cost
        sums = [name for name, reduction in spec.per_step.items() if reduction == "sum"]
        preferred = [name for name in PREFERRED_COUNTS if name in sums]
        self._counts = list(dict.fromkeys([*preferred, *sums]))[:COUNTS]
        self._levels: dict[str, float] = {}
        # Metrics of full episodes only are neither shown nor recorded.
        self._running = EpisodeAccumulator(replace(spec, metrics=spec.per_step, device=None))

    def add(self, rollout: Rollout) -> None:
        """Add steps of the episode."""
        none = np.zeros(rollout.terminated.shape, dtype=bool)
        info = np.array([rollout.info[name] for name in self.spec.per_step]).reshape(-1, *none.shape)
        self._running.add(rollout.reward.cpu(), rollout.base_reward.cpu(), info, none, none[0])
        levels = {name: words for name, words in LEVELS.items() if name in self.spec.per_step}
        self._levels = {words: float(rollout.info[name][-1][0]) for name, words in levels.items()}

    def words(self) -> Words:
        """Return the state of the episode: step, objective as if it ended now, payoffs, counts and levels."""
        episode = self._running.so_far(0)
        if episode is None:
            return [("step", "0")]
        objective = float(episode_welfare([episode], self.objective, self.spending_cost)[0])
        before = "" if self.spec.mechanism is None else f", before {self.spec.mechanism.name}"
        counts = {name.replace("_", " "): episode.summaries[name] for name in self._counts}
        return [
            ("step", str(episode.length)),
            (f"objective: {self.objective.name.replace('_', ' ')} of the payoffs{before}", f"{objective:,.1f}"),
            ("payoff of each agent", ", ".join(f"{payoff:,.0f}" for payoff in episode.base_returns)),
            ("so far", ", ".join(f"{name} {value:,.0f}" for name, value in counts.items())),
            ("now", ", ".join(f"{name} {value:,.0f}" for name, value in self._levels.items())),
        ]


def save_side_by_side(videos: Sequence[FrameRecorder], headings: Sequence[Words], folder: Path, fps: int) -> list[Path]:
    """Write videos of one length side by side, each with its heading; return the files."""
    folder.mkdir(parents=True, exist_ok=True)

    def draw(i: int) -> np.ndarray:
        return np.hstack([video.picture(i, heading) for video, heading in zip(videos, headings, strict=True)])

    return save_video(LazyFrames(len(videos[0]), draw), folder, SIDE_BY_SIDE, fps)
