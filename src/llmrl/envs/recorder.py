"""Frames of one game for a video, taken while anything steps the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.pictures import enlarge, save_film
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Array, Observation, State, Step, on_host


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

    def save(self, folder: Path, fps: int) -> list[Path]:
        """Write `world` and `agent_<i>` as MP4 and GIF; returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, frames in self.frames.items():
            video = np.stack([enlarge(frame) for frame in frames])
            if name == "world" and self._panels:
                video = self._with_panels(video)
            files += save_film(list(video), folder, name, fps)
        return files

    def _with_panels(self, video: np.ndarray) -> np.ndarray:
        height = video.shape[1]
        drawn = {i: panel(height) for i, panel in self._panels.items()}
        blank = np.full_like(next(iter(drawn.values())), 255)
        return np.stack([np.hstack([frame, drawn.get(i, blank)]) for i, frame in enumerate(video)])

    def _keep(self, observation: Observation) -> None:
        self.frames.setdefault("world", []).append(np.array(self.env.render(0)))
        pixels: Any = None
        if "pixels" in observation:
            pixels = on_host(observation["pixels"][0])
        elif hasattr(self.env, "render_players"):
            pixels = self.env.render_players(0)
        if pixels is not None:
            for i in range(self.spec.n_agents):
                self.frames.setdefault(f"agent_{i}", []).append(pixels[i].copy())
