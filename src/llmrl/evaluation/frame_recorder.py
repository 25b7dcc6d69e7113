"""Recording of one game for a video: the world, the view of every agent, and what the players thought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.frames import LazyFrames, enlarge, save_video, with_text_column
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Policy, VecEnv
from llmrl.core.records import Observation, PolicyOutput, on_host
from llmrl.core.spaces import EnvSpec

if TYPE_CHECKING:
    import torch

COLUMN = 480
"""Width of the column of thoughts, pixels; even, as video codecs need."""
MAX_AGENTS = 3
"""Maximum number of agents whose thoughts are shown."""
MAX_ACTIONS = 5
"""Maximum number of actions whose probabilities are shown."""

Words = list[tuple[str, str]]
"""Texts with their headings."""


class Thoughts:
    """Texts about what a player thought of the state in which it acted, and its teacher's advice, for game 0.

    Args:
        policy: policy that plays.
        spec: specification of the environment.
        teacher: teacher whose action probabilities and plans (`thoughts`) are shown, too; None: no teacher is shown.
        device: torch device of the teacher.
    """

    def __init__(self, policy: Policy, spec: EnvSpec, teacher: Policy | None, device: str) -> None:
        self.policy, self.spec, self.teacher, self.device = policy, spec, teacher, device
        self.channels = () if teacher is None else teacher.channels
        self._teacher_state: torch.Tensor | None = None

    def words(self, transition: Transition) -> Words:
        """Return the texts for the state in which the actions of `transition` were chosen."""
        act = transition.output
        thinkers: dict[str, PolicyOutput] = {"teacher" if self.policy is self.teacher else "policy": act}
        if self.teacher is not None and self.teacher is not self.policy:
            thinkers["teacher"] = self._advice(self.teacher, transition.observation)
        agents = range(min(self.spec.n_agents, MAX_AGENTS))
        return [entry for agent in agents for entry in self._agent_words(agent, act, thinkers)]

    def _advice(self, teacher: Policy, observation: Observation) -> PolicyOutput:
        """Return the teacher's action in game 0 only, because it may have to ask a language model."""
        import torch

        # A separate generator, so that thoughts do not change the game.
        generator = torch.Generator().manual_seed(0)
        policy_inputs = {
            name: observation[name][:1]
            if self.spec.observation[name].dtype == "object"
            else torch.as_tensor(observation[name][:1]).to(self.device)
            for name in teacher.channels
        }
        act = teacher.act(policy_inputs, self._teacher_state, generator, greedy=True)
        self._teacher_state = act.state
        return act

    def _agent_words(self, agent: int, act: PolicyOutput, thinkers: dict[str, PolicyOutput]) -> Words:
        """Return an agent's action, the probabilities of actions by thinker, its reflection and the teacher's plans."""
        who = "" if self.spec.n_agents == 1 else f"agent {agent}, "
        action = act.action[0, agent].tolist()
        if self.spec.continuous_actions is None:
            action_text = self.spec.action_names[action]
        else:
            pairs = zip(self.spec.continuous_action_names, action, strict=True)
            action_text = ", ".join(f"{name} = {value:.3g}" for name, value in pairs)
        words = [(f"{who}action", action_text)]
        for name, output in thinkers.items():
            if output.logits is not None:
                probabilities = output.logits[0, agent].softmax(-1).tolist()
                words.append((f"{who}probabilities of the {name}", self._probability_text(probabilities)))
        note = {} if act.notes is None else act.notes[0][agent]
        # Only a teacher that plans has thoughts to show.
        teacher_thoughts = getattr(self.teacher, "thoughts", None)
        plans = [] if teacher_thoughts is None else teacher_thoughts(0, agent)
        return [*words, (f"{who}reflection", note.get("reflection", "")), (f"{who}plans", "\n".join(plans))]

    def _probability_text(self, probabilities: Sequence[float]) -> str:
        """Return the most probable actions with their probabilities."""
        best = sorted(zip(probabilities, self.spec.action_names, strict=True), key=lambda pair: -pair[0])[:MAX_ACTIONS]
        return ", ".join(f"{name} {probability:.2f}" for probability, name in best)


class FrameRecorder(Observer):
    """Records the world and every agent's pixels of game 0: one frame more than steps.

    Args:
        env: environment whose game 0 is recorded.
        views: whether agents' pixels are recorded in addition to the world.
        thoughts: texts beside the world about each step; None: none.

    Attributes:
        frames: recorded frames of the `world`, and of `agent_<i>`.
        words: texts beside the first frames of the world.
    """

    def __init__(self, env: VecEnv, views: bool = True, thoughts: Thoughts | None = None) -> None:
        self.env, self.views, self.thoughts = env, views, thoughts
        self.channels = () if thoughts is None else thoughts.channels
        self.frames: dict[str, list[np.ndarray]] = {}
        self.words: list[Words] = []

    def __len__(self) -> int:
        return len(self.frames["world"])

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        if games[0]:
            self._record(observation)

    def on_step(self, transition: Transition) -> None:
        if self.thoughts is not None:
            self.words.append(self.thoughts.words(transition))
        self._record(transition.step.observation)

    def hold(self, length: int) -> None:
        """Repeat the last frames and texts until there are `length` of them."""
        for elements in (*self.frames.values(), self.words):
            elements += elements[-1:] * (length - len(elements))  # type: ignore[operator]

    def picture(self, i: int, heading: Words) -> np.ndarray:
        """Return frame `i` of the world, enlarged, with `heading` and its texts beside it if there are any."""
        frame = enlarge(self.frames["world"][i])
        if not self.words and not any(text for _, text in heading):
            return frame
        words = self.words[i] if i < len(self.words) else []
        return with_text_column(frame, [*heading, *words], frame.shape[0], COLUMN)

    def save(self, folder: Path, fps: int, heading: Words) -> list[Path]:
        """Write `world`, with texts, and `agent_<i>` as MP4 and GIF; return the files.

        Args:
            folder: of the files.
            fps: frames a second.
            heading: texts above those of each frame.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = save_video(LazyFrames(len(self), lambda i: self.picture(i, heading)), folder, "world", fps)
        for name in [name for name in self.frames if name != "world"]:
            frames = self.frames[name]
            files += save_video(LazyFrames(len(frames), lambda i, x=frames: enlarge(x[i])), folder, name, fps)
        return files

    def _record(self, observation: Observation) -> None:
        self.frames.setdefault("world", []).append(np.array(self.env.render(0)))
        pixels: Any = None
        if not self.views:
            return
        if "pixels" in observation:
            pixels = on_host(observation["pixels"][0])
        elif hasattr(self.env, "render_players"):
            pixels = self.env.render_players(0)
        if pixels is not None:
            for i in range(self.env.spec.n_agents):
                self.frames.setdefault(f"agent_{i}", []).append(pixels[i].copy())
