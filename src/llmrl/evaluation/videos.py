"""Videos of an evaluation: one episode of each player or mechanism, with what a player and its teacher thought beside
the game, or what became of a society, and several of these side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmrl.core.frames import SIDE_BY_SIDE, LazyFrames, fitting, save_image, save_small_video, save_video
from llmrl.core.observers import Transition
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import Observation, PolicyOutput
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.envs.frame_recorder import FrameRecorder, Panel
from llmrl.evaluation.society_pictures import LEVELS, Moment, Setting, SocietyPictures, Watched
from llmrl.experiment.parts import Parts
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_accumulator import EpisodeAccumulator
from llmrl.rollout.episode_summaries import episode_welfare
from llmrl.rollout.evaluate_policy import UNKNOWN_HORIZON

if TYPE_CHECKING:
    import torch

COUNTS = 3
"""Counts of an episode that a picture tells, at most: first the ones that are here, in this order."""
SOUGHT = ("apples_eaten", "cleaning_shots", "incentives_paid", "tax_collected")
COLUMN = 320
"""Of the column of an agent, pixels; even, as video codecs need."""
_TITLE, _BAR, _LINE = 14, 16, 13
"""Heights, pixels."""
MOST_AGENTS = 3
"""Agents of a game whose thoughts are shown."""
_COLOURS = ((31, 119, 180), (255, 127, 14))


@dataclass
class EpisodeVideo:
    """An episode of game 0.

    Attributes:
        recorder: has the pictures, one more than steps.
        setting: what is shown beside the world of a society; None: it is shown as what its players thought.
        moments: of a society, one for each picture.
    """

    recorder: FrameRecorder
    setting: Setting | None = None
    moments: list[Moment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.recorder.frames["world"])

    def hold(self, length: int) -> None:
        """Let the last picture stand until there are `length`."""
        self.recorder.hold(length)
        self.moments += self.moments[-1:] * (length - len(self.moments))

    def watched(self, title: str, sentence: str) -> Watched:
        """Return the society to be drawn, under a title and what a mechanism does, in a sentence."""
        return Watched(title, sentence, self.recorder.frames["world"], self.moments)


def film(
    parts: Parts,
    policy: Policy,
    seeds: Seeds,
    steps: int | None,
    greedy: bool,
    objective: Objective,
    spending_cost: float,
    compared: bool = False,
) -> EpisodeVideo:
    """Play one episode, with what the player and a teacher that plays thought beside the picture; of a society, what
    its agents are paid and what becomes of its world.

    Args:
        parts: of the evaluation; mechanism and context are set.
        policy: who plays.
        seeds: of the episode: the same ones for all that are compared.
        steps: most steps; None: the whole episode.
        greedy: take the likeliest action.
        objective, spending_cost: what is told of the episode so far.
        compared: it will be seen beside others: what agents see is left out, and it is shown as a society.
    """
    spec = parts.env.spec
    society = compared or spec.n_agents > MOST_AGENTS
    captions = None
    if not society:
        captions = ThoughtCaptions(policy, spec, None if parts.teacher is None else parts.teacher.policy, parts.device)
    recorder = FrameRecorder(parts.env, views=not compared, captions=captions)
    collector = Collector(parts.env, policy, parts.device, observers=[recorder])
    # The other games are not played: nobody looks at them.
    collector.reset(seeds.integer("video"), np.arange(spec.n_envs) == 0)
    horizon = spec.horizon or UNKNOWN_HORIZON
    left, generator = min(steps or horizon, horizon), seeds.torch("video")
    sums = SoFar(spec, objective, spending_cost)
    made = EpisodeVideo(recorder, _setting(parts.env, objective), [sums.told()]) if society else EpisodeVideo(recorder)
    while left > 0:
        rollout = collector.collect(1, generator, learn=False, greedy=greedy, restart=False)
        if society:
            sums.add(rollout)
            made.moments.append(sums.told())
        left = 0 if any(episode.game == 0 for episode in rollout.episodes) else left - 1
    return made


def _setting(env: VecEnv, objective: Objective) -> Setting:
    spec, colours = env.spec, getattr(env, "agent_colours", None)
    before = "" if spec.mechanism is None else f", before {spec.mechanism.name}"
    return Setting(
        spec.horizon,
        f"{objective.name.replace('_', ' ')} of the agents' payoffs{before}",
        dict(spec.about).get("reward", ""),
        None if colours is None else colours(),
    )


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
        self._levels: dict[str, float] = {}
        # What follows from whole episodes only is not shown, and not recorded of single steps.
        self._running = EpisodeAccumulator(replace(spec, metrics=spec.per_step, device=None))

    def add(self, rollout: Rollout) -> None:
        """Take in steps of the episode."""
        none = np.zeros(rollout.terminated.shape, dtype=bool)
        info = np.array([rollout.info[name] for name in self.spec.per_step]).reshape(-1, *none.shape)
        self._running.add(rollout.reward.cpu(), rollout.base_reward.cpu(), info, none, none[0])
        self._levels = {name: float(rollout.info[name][-1][0]) for name in LEVELS if name in self.spec.per_step}

    def told(self) -> Moment:
        """Return what is to be shown of the episode so far; what nobody counts is shown as it adds up."""
        episode = self._running.so_far(0)
        if episode is None:
            return Moment(0, 0.0, np.zeros(self.spec.n_agents), dict.fromkeys(map(_words, self._counts), 0.0), {})
        objective = float(episode_welfare([episode], self.objective, self.spending_cost)[0])
        counts = {_words(name): episode.summaries[name] for name in self._counts}
        return Moment(episode.length, objective, episode.base_returns, counts, self._levels)


def _words(name: str) -> str:
    return name.replace("_", " ")


def save_alone(made: EpisodeVideo, title: str, sentence: str, folder: Path, fps: int) -> list[Path]:
    """Write a video by itself, and what each agent sees in it; returns the files."""
    pictures = None if made.setting is None else SocietyPictures([made.watched(title, sentence)], made.setting)
    return made.recorder.save(folder, fps, pictures)


LONGEST = 400
"""Most pictures of a video of several societies: drawing is most of its cost, and twenty seconds show enough."""


def save_side_by_side(
    videos: Sequence[EpisodeVideo], titles: Sequence[str], sentences: Sequence[str], folder: Path, fps: int
) -> list[Path]:
    """Write videos of one length side by side: MP4, GIF, a small WebP, and the pictures in their middle and at their
    end, PNG. Of long ones equally many steps are left out between two pictures, so that there are `LONGEST` at most.

    Args:
        videos: of societies.
        titles, sentences: of each, and what its mechanism does.
        folder: of the files.
        fps: frames a second, of the MP4; the others leave some out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    setting = videos[0].setting
    assert setting is not None
    watched = [each.watched(*words) for each, *words in zip(videos, titles, sentences, strict=True)]
    drawn = SocietyPictures(watched, setting)
    every = -(-len(drawn) // LONGEST)
    shown = [*range(0, len(drawn) - 1, every), len(drawn) - 1]
    pictures = LazyFrames(len(shown), lambda i: np.asarray(drawn[shown[i]]))
    files = [
        *save_video(pictures, folder, SIDE_BY_SIDE, fps),
        save_small_video(pictures, folder / f"{SIDE_BY_SIDE}.webp"),
    ]
    stills = {"middle": len(pictures) // 2, "last": len(pictures) - 1}
    return [*files, *(save_image(pictures[i], folder / f"{SIDE_BY_SIDE}_{name}.png") for name, i in stills.items())]


@dataclass(frozen=True)
class Thought:
    """Of one agent.

    Attributes:
        title: who it is.
        bars: probabilities of actions by thinker, each [n_actions].
        chosen: the action taken; -1 where it is several numbers, which are among the lines then.
        lines: texts below, e.g. the teacher's plans.
    """

    title: str
    bars: dict[str, np.ndarray]
    chosen: int
    lines: Sequence[str]


class ThoughtCaptions:
    """Says what a player thought of the state that it acted in, and what a teacher thinks of it, for game 0.

    Args:
        policy: who plays.
        spec: of the environment.
        teacher: whose action probabilities, and plans where it has any (`thoughts`), are shown too; None: nobody's.
        device: of the teacher.
    """

    def __init__(self, policy: Policy, spec: EnvSpec, teacher: Policy | None, device: str) -> None:
        self.policy, self.spec, self.teacher, self.device = policy, spec, teacher, device
        self.channels = () if teacher is None else teacher.channels
        self._teacher_state: torch.Tensor | None = None

    def panel(self, transition: Transition) -> Panel:
        act = transition.output
        thinkers: dict[str, PolicyOutput] = {"teacher" if self.policy is self.teacher else "policy": act}
        if self.teacher is not None and self.teacher is not self.policy:
            thinkers["teacher"] = self._advice(self.teacher, transition.observation)
        thoughts = [self._thought(agent, act, thinkers) for agent in range(min(self.spec.n_agents, MOST_AGENTS))]
        return lambda height: draw_thoughts(thoughts, self.spec.action_names, height)

    def _advice(self, teacher: Policy, observation: Observation) -> PolicyOutput:
        """What a teacher would do in game 0: only there, as a language model may have to be asked."""
        import torch

        # Numbers of its own, so that the game is the one that would be played without captions.
        own = torch.Generator().manual_seed(0)
        shown = {
            name: observation[name][:1]
            if self.spec.observation[name].dtype == "object"
            else torch.as_tensor(observation[name][:1]).to(self.device)
            for name in teacher.channels
        }
        act = teacher.act(shown, self._teacher_state, own, greedy=True)
        self._teacher_state = act.state
        return act

    def _thought(self, agent: int, act: PolicyOutput, thinkers: dict[str, PolicyOutput]) -> Thought:
        logits = {name: each.logits for name, each in thinkers.items() if each.logits is not None}
        bars = {name: x[0, agent].softmax(-1).cpu().numpy() for name, x in logits.items()}
        # Only a teacher that plans has thoughts to show.
        tell = getattr(self.teacher, "thoughts", None)
        lines = [] if tell is None else tell(0, agent)
        note = {} if act.notes is None else act.notes[0][agent]
        lines = [*([note["reflection"]] if note.get("reflection") else []), *lines]
        title = "" if self.spec.n_agents == 1 else f"agent {agent}"
        if self.spec.continuous_actions is not None:
            pairs = zip(self.spec.continuous_action_names, act.action[0, agent].tolist(), strict=True)
            return Thought(title, {}, -1, [*lines, *(f"{name} = {value:.3g}" for name, value in pairs)])
        return Thought(title, bars, int(act.action[0, agent]), lines)


def draw_thoughts(thoughts: Sequence[Thought], actions: Sequence[str], height: int) -> np.ndarray:
    """The panel, [height, COLUMN * number of thoughts, 3] uint8: a column for each.

    Texts come before actions: of these the likeliest are shown for which there is room, at least two. Texts that there
    is no room for are counted in the last line.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (COLUMN * max(len(thoughts), 1), height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    for i, thought in enumerate(thoughts):
        left, y = i * COLUMN + 6, 3
        x = left
        for k, name in enumerate(thought.bars):
            pen.text((x, y), name, fill=_COLOURS[k % 2], font=font)
            x += 70
        pen.text((x, y), thought.title, fill="black", font=font)
        y += _TITLE
        texts = [textwrap.wrap(line, 52, subsequent_indent="   ") for line in thought.lines]
        room = height - y - _LINE * sum(map(len, texts))
        for action in _likeliest(thought, max(2, room // _BAR)) if thought.chosen >= 0 else ():
            said = ("> " if action == thought.chosen else "   ") + actions[action]
            pen.text((left, y), said, fill="black", font=font)
            for k, probabilities in enumerate(thought.bars.values()):
                top = y + 2 + 5 * k
                end = left + 104 + int(140 * probabilities[action])
                pen.rectangle((left + 104, top, end, top + 3), fill=_COLOURS[k % 2])
            values = "  ".join(f"{p[action]:.2f}" for p in thought.bars.values())
            pen.text((left + 250, y), values, fill="black", font=font)
            y += _BAR
        for line in fitting(texts, (height - y) // _LINE):
            pen.text((left, y), line, fill="black", font=font)
            y += _LINE
    return np.asarray(image)


def _likeliest(thought: Thought, most: int) -> list[int]:
    """The `most` actions worth a line, the chosen one among them, in their order."""
    if not thought.bars:
        return [thought.chosen]
    weight = np.maximum.reduce(list(thought.bars.values()))
    best = [action for action in np.argsort(-weight, kind="stable").tolist() if action != thought.chosen]
    return sorted([thought.chosen, *best[: most - 1]])
