"""Frames of one game for a video, taken while anything steps the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.pictures import Drawn, enlarge, save_film
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Array, Observation, State, Step, on_host


class Recorder:
    """A `VecEnv` that passes everything on and keeps, for game 0, the world and every agent's pixels.

    Args:
        env: what is played.
        views: whether agents' pixels are kept beside the world.
    """

    def __init__(self, env: VecEnv, views: bool = True) -> None:
        self.env, self.views = env, views
        self.spec = env.spec
        self.frames: dict[str, list[np.ndarray]] = {}
        self._panels: dict[int, Callable[[int], np.ndarray]] = {}

    def annotate(self, panel: Callable[[int], np.ndarray]) -> None:
        """Put a panel to the right of the newest picture of the world; it is drawn for a height in pixels,
        [height, width, 3] uint8, and always of one width."""
        self._panels[len(self.frames["world"]) - 1] = panel

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
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

    def hold(self, length: int) -> None:
        """Let the last pictures stand until there are `length`."""
        for frames in self.frames.values():
            frames += [frames[-1]] * (length - len(frames))

    def save(self, folder: Path, fps: int) -> list[Path]:
        """Write `world` and `agent_<i>` as MP4 and GIF; returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frames in self.frames.items():
            panels = self._panels if name == "world" else {}
            files += save_film(_drawn(frames, panels), folder, name, fps)
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
            for i in range(self.spec.n_agents):
                self.frames.setdefault(f"agent_{i}", []).append(pixels[i].copy())


def _drawn(frames: Sequence[np.ndarray], panels: Mapping[int, Callable[[int], np.ndarray]]) -> Drawn:
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

    return Drawn(len(frames), draw)
