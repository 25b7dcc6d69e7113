"""What a player and its teacher thought, drawn beside the picture of the game."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmrl.core.observers import Transition
from llmrl.core.pictures import fitting
from llmrl.core.protocols import Policy
from llmrl.core.records import Act, Observation
from llmrl.core.spaces import EnvSpec
from llmrl.envs.frame_recorder import Panel

if TYPE_CHECKING:
    import torch

WIDTH = 320
"""Of the column of an agent, pixels; even, as video codecs need."""
_TITLE, _BAR, _LINE = 14, 16, 13
"""Heights, pixels."""
MOST_AGENTS = 3
"""Agents of a game whose thoughts are shown."""
_COLOURS = ((31, 119, 180), (255, 127, 14))


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
        act = transition.act
        thinkers: dict[str, Act] = {"teacher" if self.policy is self.teacher else "policy": act}
        if self.teacher is not None and self.teacher is not self.policy:
            thinkers["teacher"] = self._advice(self.teacher, transition.observation)
        thoughts = [self._thought(agent, act, thinkers) for agent in range(min(self.spec.n_agents, MOST_AGENTS))]
        return lambda height: draw(thoughts, self.spec.action_names, height)

    def _advice(self, teacher: Policy, observation: Observation) -> Act:
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

    def _thought(self, agent: int, act: Act, thinkers: dict[str, Act]) -> Thought:
        logits = {name: each.logits for name, each in thinkers.items() if each.logits is not None}
        bars = {name: x[0, agent].softmax(-1).cpu().numpy() for name, x in logits.items()}
        # Only a teacher that plans has thoughts to show.
        tell = getattr(self.teacher, "thoughts", None)
        lines = [] if tell is None else tell(0, agent)
        note = {} if act.notes is None else act.notes[0][agent]
        lines = [*([note["reflection"]] if note.get("reflection") else []), *lines]
        title = "" if self.spec.n_agents == 1 else f"agent {agent}"
        if self.spec.numbers is not None:
            pairs = zip(self.spec.number_names, act.action[0, agent].tolist(), strict=True)
            return Thought(title, {}, -1, [*lines, *(f"{name} = {value:.3g}" for name, value in pairs)])
        return Thought(title, bars, int(act.action[0, agent]), lines)


def draw(thoughts: Sequence[Thought], actions: Sequence[str], height: int) -> np.ndarray:
    """The panel, [height, WIDTH * number of thoughts, 3] uint8: a column for each.

    Texts come before actions: of these the likeliest are shown for which there is room, at least two. Texts that there
    is no room for are counted in the last line.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH * max(len(thoughts), 1), height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    for i, thought in enumerate(thoughts):
        left, y = i * WIDTH + 6, 3
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
