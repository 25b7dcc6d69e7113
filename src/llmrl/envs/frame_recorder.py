"""Recording of the frames of one game for a video."""

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
"""Function that draws the panel beside a frame, given its height in pixels: [height, width, 3] uint8, of constant
width."""


class Captions(Protocol):
    """Draws the panels beside the frames."""

    channels: tuple[str, ...]
    """Channels of the environment that the panels need."""

    def panel(self, transition: Transition) -> Panel:
        """Return the panel to the right of the world at the time when the actions of `transition` were chosen."""
        ...


class FrameRecorder(Observer):
    """Records the world and every agent's pixels of game 0: one frame more than steps.

    Args:
        env: environment whose game 0 is recorded.
        views: whether agents' pixels are recorded in addition to the world.
        captions: panels beside the world; None: none.
    """

    def __init__(self, env: VecEnv, views: bool = True, captions: Captions | None = None) -> None:
        self.env, self.views, self.captions = env, views, captions
        self.channels = () if captions is None else captions.channels
        self.frames: dict[str, list[np.ndarray]] = {}
        self._panels: dict[int, Panel] = {}

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        if games[0]:
            self._record(observation)

    def on_step(self, transition: Transition) -> None:
        if self.captions is not None:
            self._panels[len(self.frames["world"]) - 1] = self.captions.panel(transition)
        self._record(transition.step.observation)

    def hold(self, length: int) -> None:
        """Repeat the last frames until there are `length` of them."""
        for frames in self.frames.values():
            frames += [frames[-1]] * (length - len(frames))

    def save(self, folder: Path, fps: int, world: Sequence[np.ndarray] | None = None) -> list[Path]:
        """Write `world` and `agent_<i>` as MP4 and GIF; return the files.

        Args:
            folder: of the files.
            fps: frames a second.
            world: frames to write in place of those of the world; None: the recorded ones, with their panels.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frames in self.frames.items():
            panels = self._panels if name == "world" else {}
            video_frames = world if name == "world" and world is not None else _render_panels(frames, panels)
            files += save_video(video_frames, folder, name, fps)
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


def _render_panels(frames: Sequence[np.ndarray], panels: Mapping[int, Panel]) -> LazyFrames:
    """Return the enlarged frames with their panels; a frame without a panel gets a white one if others have panels."""
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
