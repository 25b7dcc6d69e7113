"""Frames of one game for a video, taken while it is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from llmrl.core.frames import LazyFrames, enlarge, save_video
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, on_host

Panel = Callable[[int], np.ndarray]
"""Draws what is shown beside a frame, for a height in pixels: [height, width, 3] uint8, always of one width."""


class Captions(Protocol):
    """Says what is shown beside the frames."""

    channels: tuple[str, ...]
    """Of the environment that it reads."""

    def panel(self, transition: Transition) -> Panel:
        """What to show to the right of the world as it was when `transition` was decided."""
        ...


class FrameRecorder(Observer):
    """Keeps, for game 0, the world and every agent's pixels: one frame more than steps.

    Args:
        env: what is played.
        views: whether agents' pixels are kept beside the world.
        captions: what is shown beside the world; None: nothing.
    """

    def __init__(self, env: VecEnv, views: bool = True, captions: Captions | None = None) -> None:
        self.env, self.views, self.captions = env, views, captions
        self.channels = () if captions is None else captions.channels
        self.frames: dict[str, list[np.ndarray]] = {}
        self._panels: dict[int, Panel] = {}

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        if games[0]:
            self._keep(observation)

    def on_step(self, transition: Transition) -> None:
        if self.captions is not None:
            self._panels[len(self.frames["world"]) - 1] = self.captions.panel(transition)
        self._keep(transition.step.observation)

    def hold(self, length: int) -> None:
        """Let the last frames stand until there are `length`."""
        for frames in self.frames.values():
            frames += [frames[-1]] * (length - len(frames))

    def save(self, folder: Path, fps: int, world: Sequence[np.ndarray] | None = None) -> list[Path]:
        """Write `world` and `agent_<i>` as MP4 and GIF; returns the files.

        Args:
            folder: of the files.
            fps: frames a second.
            world: pictures to show for those of the world; None: these, with their captions.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frames in self.frames.items():
            panels = self._panels if name == "world" else {}
            shown = world if name == "world" and world is not None else _drawn(frames, panels)
            files += save_video(shown, folder, name, fps)
        return files

    def _keep(self, observation: Observation) -> None:
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


def _drawn(frames: Sequence[np.ndarray], panels: Mapping[int, Panel]) -> LazyFrames:
    """Frames, enlarged, with their panels; white where there are panels and a frame has none."""
    blank = None
    if panels:
        height = enlarge(frames[0]).shape[0]
        blank = np.full_like(next(iter(panels.values()))(height), 255)

    def draw(i: int) -> np.ndarray:
        frame = enlarge(frames[i])
        if blank is None:
            return frame
        return np.hstack([frame, panels[i](frame.shape[0]) if i in panels else blank])

    return LazyFrames(len(frames), draw)
