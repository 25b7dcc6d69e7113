"""Frames of one game for a video, taken while anything steps the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Array, Observation, State, Step

GIF_FRAMES = 150
"""GIFs are thinned to about this many frames: they hold no compressed video."""
TARGET_HEIGHT = 336
"""Small engine frames are enlarged by a whole factor up to about this many pixels, so that cells stay sharp."""


class Recorder:
    """A `VecEnv` that passes everything on and keeps, for game 0, the world and every agent's pixels."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.spec = env.spec
        self.frames: dict[str, list[np.ndarray]] = {}
        self._panels: dict[int, Callable[[int], np.ndarray]] = {}

    def annotate(self, panel: Callable[[int], np.ndarray]) -> None:
        """Put a panel to the right of the newest picture of the world; it is drawn for a height in pixels,
        [height, width, 3] uint8, and always of one width."""
        self._panels[len(self.frames["world"]) - 1] = panel

    def reset(self, mask: Array | None = None, seed: int | None = None) -> Observation:
        observation = self.env.reset(mask, seed)
        self._keep(observation)
        return observation

    def step(self, action: Array) -> Step:
        step = self.env.step(action)
        self._keep(step.observation)
        return step

    def pair_games(self, groups: int) -> None:
        self.env.pair_games(groups)

    def set_mechanism(self, values: Array) -> None:
        self.env.set_mechanism(values)

    def set_context(self, context: int) -> None:
        self.env.set_context(context)

    def render(self, index: int = 0) -> np.ndarray:
        return self.env.render(index)

    def state_dict(self) -> State:
        return self.env.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()

    def save(self, folder: Path, fps: int) -> list[Path]:
        """Write `world` and `agent_<i>` as MP4 and GIF; returns the files."""
        import imageio.v3 as iio

        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frames in self.frames.items():
            video = np.stack([_enlarge(frame) for frame in frames])
            if name == "world" and self._panels:
                video = self._with_panels(video)
            mp4, gif = folder / f"{name}.mp4", folder / f"{name}.gif"
            iio.imwrite(mp4, video, fps=fps, codec="libx264", macro_block_size=2)
            thin = video[:: max(1, len(video) // GIF_FRAMES)]
            iio.imwrite(gif, thin, duration=1000 // fps, loop=0)
            files += [mp4, gif]
        return files

    def _with_panels(self, video: np.ndarray) -> np.ndarray:
        height = video.shape[1]
        drawn = {i: panel(height) for i, panel in self._panels.items()}
        blank = np.full_like(next(iter(drawn.values())), 255)
        return np.stack([np.hstack([frame, drawn.get(i, blank)]) for i, frame in enumerate(video)])

    def _keep(self, observation: Observation) -> None:
        self.frames.setdefault("world", []).append(np.array(self.env.render(0)))
        if "pixels" in observation:
            pixels: Any = np.asarray(observation["pixels"])
            for i in range(self.spec.n_agents):
                self.frames.setdefault(f"agent_{i}", []).append(pixels[0, i].copy())


def _enlarge(frame: np.ndarray) -> np.ndarray:
    """Nearest-neighbour enlargement of [height, width, 3] uint8, to even sizes (video codecs need them)."""
    if frame.dtype != np.uint8 or frame.ndim != 3:
        raise ConfigError(f"a frame must be [height, width, 3] uint8, got {frame.dtype} {frame.shape}")
    factor = max(1, TARGET_HEIGHT // frame.shape[0])
    large = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return large[: large.shape[0] // 2 * 2, : large.shape[1] // 2 * 2]
