"""Videos of an evaluation: one episode of each player or mechanism.

In addition to the game, they show what a player and its teacher thought, or the payoffs and levels of a society.
Several videos can be shown side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from llmrl.core.frames import SIDE_BY_SIDE, LazyFrames, save_video
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.frame_recorder import MAX_AGENTS, FrameRecorder, Thoughts
from llmrl.evaluation.society_pictures import LEVELS, Moment, PictureSettings, ShownSociety, SocietyPictures
from llmrl.experiment.parts import Parts
from llmrl.rollout.collector import UNKNOWN_HORIZON, Collector
from llmrl.rollout.episode_accumulator import EpisodeAccumulator
from llmrl.rollout.episode_summaries import episode_welfare

COUNTS = 3
"""Maximum number of counts in a picture; those of `PREFERRED_COUNTS` come first, in their order."""
PREFERRED_COUNTS = ("apples_eaten", "cleaning_shots", "incentives_paid", "tax_collected")


@dataclass
class EpisodeVideo:
    """Video of an episode of game 0.

    Attributes:
        recorder: recorder of the pictures, one more than steps.
        setting: settings of the pictures of a society; None: thoughts of the players are shown instead.
        moments: moments of a society, one for each picture.
    """

    recorder: FrameRecorder
    setting: PictureSettings | None = None
    moments: list[Moment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.recorder.frames["world"])

    def hold(self, length: int) -> None:
        """Repeat the last picture until there are `length` pictures."""
        self.recorder.hold(length)
        self.moments += self.moments[-1:] * (length - len(self.moments))

    def shown(self, title: str, sentence: str) -> ShownSociety:
        """Return the society to draw, with a title and a sentence about the mechanism."""
        return ShownSociety(title, sentence, self.recorder.frames["world"], self.moments)


def film(
    parts: Parts,
    policy: Policy,
    seeds: Seeds,
    steps: int | None,
    greedy: bool,
    compared: bool = False,
) -> EpisodeVideo:
    """Play one episode and return its video.

    In addition to the game, it shows what the player and a teacher that plays thought; for a society, the payoffs of
    agents and the levels of its world.

    Args:
        parts: parts of the evaluation; mechanism and context are set.
        policy: policy that plays.
        seeds: seed node of the episode, the same for all videos that are compared.
        steps: maximum number of steps; None: the full episode.
        greedy: whether to take the most probable action.
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
    sums = RunningSums(spec, parts.objective, parts.spending_cost)
    video = EpisodeVideo(recorder)
    if society:
        video = EpisodeVideo(recorder, _setting(parts.env, parts.objective), [sums.moment()])
    while remaining > 0:
        rollout = collector.collect(1, generator, learn=False, greedy=greedy, restart=False)
        if society:
            sums.add(rollout)
            video.moments.append(sums.moment())
        remaining = 0 if any(episode.game == 0 for episode in rollout.episodes) else remaining - 1
    return video


def _setting(env: VecEnv, objective: Objective) -> PictureSettings:
    spec, colors = env.spec, getattr(env, "agent_colors", None)
    mechanism_suffix = "" if spec.mechanism is None else f", before {spec.mechanism.name}"
    return PictureSettings(
        spec.horizon,
        f"{objective.name.replace('_', ' ')} of the agents' payoffs{mechanism_suffix}",
        dict(spec.about).get("reward", ""),
        None if colors is None else colors(),
    )


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
        self._levels = {name: float(rollout.info[name][-1][0]) for name in LEVELS if name in self.spec.per_step}

    def moment(self) -> Moment:
        """Return the state of the episode to show."""
        episode = self._running.so_far(0)
        if episode is None:
            return Moment(0, 0.0, np.zeros(self.spec.n_agents), dict.fromkeys(map(_words, self._counts), 0.0), {})
        objective = float(episode_welfare([episode], self.objective, self.spending_cost)[0])
        counts = {_words(name): episode.summaries[name] for name in self._counts}
        return Moment(episode.length, objective, episode.base_returns, counts, self._levels)


def _words(name: str) -> str:
    return name.replace("_", " ")


def save_alone(video: EpisodeVideo, title: str, sentence: str, folder: Path, fps: int) -> list[Path]:
    """Write a video by itself, and the view of each agent in it; return the files."""
    pictures = None if video.setting is None else SocietyPictures([video.shown(title, sentence)], video.setting)
    return video.recorder.save(folder, fps, pictures)


MAX_PICTURES = 400
"""Maximum number of pictures of a video of several societies, because drawing is slow; it suffices for 20 seconds."""


def save_side_by_side(
    videos: Sequence[EpisodeVideo], titles: Sequence[str], sentences: Sequence[str], folder: Path, fps: int
) -> list[Path]:
    """Write videos of one length side by side; return the files.

    Long videos skip steps at equal intervals, so that there are at most `MAX_PICTURES` pictures.

    Args:
        videos: videos of societies.
        titles: title of each video.
        sentences: effect of the mechanism of each video.
        folder: folder of the files.
        fps: frames per second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    setting = videos[0].setting
    assert setting is not None
    societies = [video.shown(*words) for video, *words in zip(videos, titles, sentences, strict=True)]
    all_frames = SocietyPictures(societies, setting)
    stride = -(-len(all_frames) // MAX_PICTURES)
    frame_indices = [*range(0, len(all_frames) - 1, stride), len(all_frames) - 1]
    pictures = LazyFrames(len(frame_indices), lambda i: np.asarray(all_frames[frame_indices[i]]))
    return save_video(pictures, folder, SIDE_BY_SIDE, fps)
