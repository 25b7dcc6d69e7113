"""Videos of an evaluation: an episode of game 0, alone or side by side with the same game under other mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.frames import LazyFrames, add_text_column, enlarge, save_video
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import Observation, PolicyOutput, to_numpy
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.society_pictures import (
    LEVEL_STYLES,
    EpisodeMoment,
    PictureSettings,
    SocietyEpisode,
    SocietyPictures,
)
from llmrl.experiment.parts import Parts
from llmrl.rollout.collector import UNKNOWN_HORIZON, Collector
from llmrl.rollout.episode_summaries import compute_objective
from llmrl.rollout.rollout_buffer import EpisodeAccumulator

if TYPE_CHECKING:
    import torch

TEXT_WIDTH = 480
"""Width of the text column, in pixels; even, because video codecs require even sizes."""
MAX_DESCRIBED_AGENTS = 3
"""Maximum number of agents whose decisions are described in the text column; more agents are shown as a society."""
MAX_DISPLAYED_ACTIONS = 5
"""Maximum number of actions whose probabilities are shown for an agent; the most probable ones are selected."""

Captions = list[tuple[str, str]]
"""Pairs of a heading and a text."""


class DecisionDescriber:
    """Describer of decisions in game 0: actions, reflections, and action probabilities of policy and teacher.

    Args:
        policy: policy that plays.
        spec: specification of the environment.
        teacher: policy of the teacher, whose action probabilities and plans (`thoughts`) are also described, or None.
        device: torch device of the teacher.
    """

    def __init__(self, policy: Policy, spec: EnvSpec, teacher: Policy | None, device: str) -> None:
        self.policy, self.spec, self.teacher, self.device = policy, spec, teacher, device
        self.channels = () if teacher is None else teacher.channels
        self._teacher_state: torch.Tensor | None = None

    def describe_step(self, transition: Transition) -> Captions:
        """Return headings and texts on the decisions of the first `MAX_DESCRIBED_AGENTS` agents in a transition."""
        output = transition.output
        output_by_policy: dict[str, PolicyOutput] = {"teacher" if self.policy is self.teacher else "policy": output}
        if self.teacher is not None and self.teacher is not self.policy:
            output_by_policy["teacher"] = self._act_as_teacher(self.teacher, transition.observation)
        agents = range(min(self.spec.n_agents, MAX_DESCRIBED_AGENTS))
        return [caption for agent in agents for caption in self._describe_agent(agent, output, output_by_policy)]

    def _act_as_teacher(self, teacher: Policy, observation: Observation) -> PolicyOutput:
        """Return the teacher's output in game 0 only, because it may call a language model."""
        import torch

        policy_inputs = {
            name: observation[name][:1]
            if self.spec.observation[name].dtype == "object"
            else torch.as_tensor(observation[name][:1]).to(self.device)
            for name in teacher.channels
        }
        # A separate generator, so that the random numbers of the game do not depend on whether a video is recorded.
        output = teacher.act(policy_inputs, self._teacher_state, torch.Generator().manual_seed(0), greedy=True)
        self._teacher_state = output.state
        return output

    def _describe_agent(self, agent: int, output: PolicyOutput, output_by_policy: dict[str, PolicyOutput]) -> Captions:
        """Return an agent's action, the action probabilities of each policy, its reflection and the teacher's plans."""
        prefix = "" if self.spec.n_agents == 1 else f"agent {agent}, "
        action = output.action[0, agent]
        if self.spec.continuous_actions is None:
            action_text = self.spec.action_names[int(action)]
        else:
            named_numbers = zip(self.spec.continuous_action_names, action.tolist(), strict=True)
            action_text = ", ".join(f"{name} = {value:.3g}" for name, value in named_numbers)
        captions = [(f"{prefix}action", action_text)]
        for name, policy_output in output_by_policy.items():
            if policy_output.logits is not None:
                probabilities = policy_output.logits[0, agent].softmax(-1).tolist()
                actions = zip(probabilities, self.spec.action_names, strict=True)
                most_probable = sorted(actions, key=lambda pair: -pair[0])[:MAX_DISPLAYED_ACTIONS]
                text = ", ".join(f"{action_name} {probability:.2f}" for probability, action_name in most_probable)
                captions.append((f"{prefix}probabilities of the {name}", text))
        notes = {} if output.notes is None else output.notes[0][agent]
        describe_plans = getattr(self.teacher, "thoughts", None)  # only teachers that plan have this method
        plans = [] if describe_plans is None else describe_plans(0, agent)
        return [*captions, (f"{prefix}reflection", notes.get("reflection", "")), (f"{prefix}plans", "\n".join(plans))]


class FrameRecorder(Observer):
    """Recorder of frames of the world and of each agent's view in game 0, before the first and after every step.

    Args:
        env: environment whose game 0 is recorded.
        records_views: whether each agent's view is recorded in addition to the world.
        describer: describer of decisions, whose texts are shown next to the world; None: no texts.
    """

    def __init__(self, env: VecEnv, records_views: bool = True, describer: DecisionDescriber | None = None) -> None:
        self.env, self.records_views, self.describer = env, records_views, describer
        self.channels = () if describer is None else describer.channels
        self.frames: dict[str, list[np.ndarray]] = {}
        self._captions: list[Captions] = []

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        if games[0]:
            self._record_frames(observation)

    def on_step(self, transition: Transition) -> None:
        if self.describer is not None:
            self._captions.append(self.describer.describe_step(transition))
        self._record_frames(transition.step.observation)

    def pad_to(self, length: int) -> None:
        """Repeat the last frame of the world and of each view until there are `length` frames."""
        for frames in self.frames.values():
            frames += [frames[-1]] * (length - len(frames))

    def save(self, folder: Path, fps: int, world: Sequence[np.ndarray] | None = None) -> list[Path]:
        """Write the videos `world` and `agent_<i>` as MP4 and GIF; return the paths of the files.

        Args:
            folder: folder of the files.
            fps: frames per second.
            world: frames to write instead of the recorded frames of the world; None: recorded frames with texts.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name in self.frames:
            frames = world if name == "world" and world is not None else self._compose_frames(name)
            files += save_video(frames, folder, name, fps)
        return files

    def _compose_frames(self, name: str) -> LazyFrames:
        """Return enlarged frames; frames of the world have a column with texts on the decision in their state."""
        frames, has_text_column = self.frames[name], name == "world" and self.describer is not None

        def draw(i: int) -> np.ndarray:
            frame = enlarge(frames[i])
            if not has_text_column:
                return frame
            captions = self._captions[i] if i < len(self._captions) else []  # no decision in the final state
            return add_text_column(frame, captions, frame.shape[0], TEXT_WIDTH)

        return LazyFrames(len(frames), draw)

    def _record_frames(self, observation: Observation) -> None:
        self.frames.setdefault("world", []).append(np.array(self.env.render(0)))
        pixels: Any = None
        if not self.records_views:
            return
        if "pixels" in observation:
            pixels = to_numpy(observation["pixels"][0])
        elif hasattr(self.env, "render_players"):
            pixels = self.env.render_players(0)
        if pixels is not None:
            for i in range(self.env.spec.n_agents):
                self.frames.setdefault(f"agent_{i}", []).append(pixels[i].copy())


MAX_DISPLAYED_SUMS = 3
"""Maximum number of metrics whose sums are shown in a picture; `PREFERRED_SUMS` are selected first."""
PREFERRED_SUMS = ("apples_eaten", "cleaning_shots", "incentives_paid", "tax_collected")


@dataclass
class EpisodeVideo:
    """Video of an episode of game 0.

    Attributes:
        recorder: recorder of the frames.
        setting: settings of the pictures of a society; None: texts on the decisions of agents are shown instead.
        moments: state of the society at each frame of the world; empty without `setting`.
    """

    recorder: FrameRecorder
    setting: PictureSettings | None = None
    moments: list[EpisodeMoment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.recorder.frames["world"])

    def pad_to(self, length: int) -> None:
        """Repeat the last frames and the last moment until there are `length` of each."""
        self.recorder.pad_to(length)
        self.moments += self.moments[-1:] * (length - len(self.moments))

    def to_society(self, title: str, sentence: str) -> SocietyEpisode:
        """Return the recorded society, with a title and a sentence about the mechanism."""
        return SocietyEpisode(title, sentence, self.recorder.frames["world"], self.moments)


def record_video(
    parts: Parts, policy: Policy, seeds: Seeds, max_steps: int | None, greedy: bool, is_compared: bool = False
) -> EpisodeVideo:
    """Play one episode and return its video.

    In addition to the game, the video shows decisions and the teacher's advice for up to `MAX_DESCRIBED_AGENTS` agents.
    For more agents, or if `is_compared`, it shows a society: payoffs of agents, metrics of its world and the objective.

    Args:
        parts: parts of the evaluation; mechanism and context have been set in the environment.
        policy: policy that plays.
        seeds: seed node of the episode, equal for all videos of a comparison.
        max_steps: maximum number of steps; None: the full episode.
        greedy: whether to take the most probable actions.
        is_compared: whether the video will be shown side by side with others; agents' views are then not recorded.
    """
    spec = parts.env.spec
    is_society = is_compared or spec.n_agents > MAX_DESCRIBED_AGENTS
    teacher = None if parts.teacher is None else parts.teacher.policy
    describer = None if is_society else DecisionDescriber(policy, spec, teacher, parts.device)
    recorder = FrameRecorder(parts.env, records_views=not is_compared, describer=describer)
    collector = Collector(parts.env, policy, parts.device, observers=[recorder])
    # Only game 0 is played, because the others are not shown.
    collector.reset(seeds.integer("video"), np.arange(spec.n_envs) == 0)
    horizon = spec.horizon or UNKNOWN_HORIZON
    n_remaining_steps, generator = min(max_steps or horizon, horizon), seeds.torch("video")
    running_episode = RunningEpisode(spec, parts.objective, parts.spending_cost)
    video = EpisodeVideo(recorder)
    if is_society:
        setting = _build_picture_settings(parts.env, parts.objective)
        video = EpisodeVideo(recorder, setting, [running_episode.to_moment()])
    while n_remaining_steps > 0:
        rollout = collector.collect(1, generator, learn=False, greedy=greedy, restart=False)
        if is_society:
            running_episode.add_rollout(rollout)
            video.moments.append(running_episode.to_moment())
        n_remaining_steps = 0 if any(episode.game == 0 for episode in rollout.episodes) else n_remaining_steps - 1
    return video


def _build_picture_settings(env: VecEnv, objective: Objective) -> PictureSettings:
    spec, find_colors = env.spec, getattr(env, "agent_colors", None)
    mechanism_suffix = "" if spec.mechanism is None else f", before {spec.mechanism.name}"
    return PictureSettings(
        spec.horizon,
        objective=f"{objective.name.replace('_', ' ')} of the agents' payoffs{mechanism_suffix}",
        payoff=dict(spec.about).get("reward", ""),
        colors=None if find_colors is None else find_colors(),
    )


class RunningEpisode:
    """Sums of rewards and metrics over the steps that game 0 has played in its episode.

    Args:
        spec: specification of the environment.
        objective: welfare measure of a society.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
    """

    def __init__(self, spec: EnvSpec, objective: Objective, spending_cost: float) -> None:
        self.spec, self.objective, self.spending_cost = spec, objective, spending_cost
        sum_names = [name for name, aggregate in spec.per_step.items() if aggregate == "sum"]
        preferred_names = [name for name in PREFERRED_SUMS if name in sum_names]
        self._count_names = list(dict.fromkeys([*preferred_names, *sum_names]))[:MAX_DISPLAYED_SUMS]
        self._last_levels: dict[str, float] = {}
        # Metrics that need a complete episode are not shown, so only metrics of single steps are accumulated.
        self._accumulator = EpisodeAccumulator(replace(spec, metrics=spec.per_step, device=None))

    def add_rollout(self, rollout: Rollout) -> None:
        """Add the steps of a rollout."""
        # Without ends, the accumulator keeps its sums after the last step of the episode, which is shown, too.
        no_ends = np.zeros(rollout.terminated.shape, dtype=bool)
        info = np.array([rollout.info[name] for name in self.spec.per_step]).reshape(-1, *no_ends.shape)
        self._accumulator.add(rollout.reward.cpu(), rollout.base_reward.cpu(), info, no_ends, no_ends[0])
        self._last_levels = {
            name: float(rollout.info[name][-1][0]) for name in LEVEL_STYLES if name in self.spec.per_step
        }

    def to_moment(self) -> EpisodeMoment:
        """Return the state of the episode after the steps that have been added."""
        episode = self._accumulator.running_episode(0)
        if episode is None:
            counts = dict.fromkeys(map(_format_display_name, self._count_names), 0.0)
            return EpisodeMoment(0, objective=0.0, payoffs=np.zeros(self.spec.n_agents), counts=counts, levels={})
        objective = float(compute_objective([episode], self.objective, self.spending_cost)[0])
        counts = {_format_display_name(name): episode.summaries[name] for name in self._count_names}
        return EpisodeMoment(episode.length, objective, episode.base_returns, counts, self._last_levels)


def _format_display_name(name: str) -> str:
    return name.replace("_", " ")


MAX_SIDE_BY_SIDE_FRAMES = 400
"""Maximum number of frames of a side-by-side video, because drawing is slow; 20 seconds at 20 frames per second."""


def save_side_by_side_video(
    societies: Sequence[SocietyEpisode], setting: PictureSettings, folder: Path, fps: int
) -> list[Path]:
    """Write a video with several societies side by side; return the paths of the files.

    Of longer episodes, frames at equal intervals are drawn, at most `MAX_SIDE_BY_SIDE_FRAMES`.

    Args:
        societies: societies with equal numbers of moments.
        setting: properties that are equal for all societies.
        folder: folder to write to; created if it does not exist.
        fps: frames per second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    all_frames = SocietyPictures(societies, setting)
    stride = max(1, -(-(len(all_frames) - 1) // (MAX_SIDE_BY_SIDE_FRAMES - 1)))  # the last frame is always drawn
    frame_indices = [*range(0, len(all_frames) - 1, stride), len(all_frames) - 1]
    pictures = LazyFrames(len(frame_indices), lambda i: np.asarray(all_frames[frame_indices[i]]))
    return save_video(pictures, folder, "side_by_side", fps)
