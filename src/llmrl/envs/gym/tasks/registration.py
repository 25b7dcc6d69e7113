"""Ids under which Gymnasium makes this package's environments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class _Entry:
    cls: str
    steps: int
    threshold: float | None


_ENTRIES = {
    "llmrl/Maze-v0": _Entry("MazeEnv", steps=200, threshold=0.96),
    # Each legal move takes at least one of ten sticks; an illegal one ends the episode.
    "llmrl/Nim-v0": _Entry("NimEnv", steps=10, threshold=1.0),
    "llmrl/Navigation-v0": _Entry("NavigationEnv", steps=1000, threshold=None),
    "llmrl/Pong-v0": _Entry("PongEnv", steps=1000, threshold=3.0),
}
IDS = tuple(_ENTRIES)


def register() -> None:
    """Register these environments with Gymnasium; calling it again does nothing.

    `gymnasium.make("llmrl.envs.gym.tasks:llmrl/Maze-v0")` does it by itself.
    """
    import gymnasium

    for name, entry in _ENTRIES.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"llmrl.envs.gym.tasks.gymnasium_envs:{entry.cls}",
                max_episode_steps=entry.steps,
                reward_threshold=entry.threshold,
            )
