"""Ids under which Gymnasium makes the rooms."""

from __future__ import annotations

_CLASSES = {
    "llmrl/SimpleDoorKey-v0": "SimpleDoorKeyEnv",
    "llmrl/LavaDoorKey-v0": "LavaDoorKeyEnv",
    "llmrl/ColoredDoorKey-v0": "ColoredDoorKeyEnv",
    "llmrl/TwoDoor-v0": "TwoDoorEnv",
}
IDS = tuple(_CLASSES)


def register() -> None:
    """Register the rooms with Gymnasium; calling it again does nothing.

    `gymnasium.make("llmrl.envs.rooms.gymnasium_envs:llmrl/SimpleDoorKey-v0")` does it by itself.
    """
    import gymnasium

    for name, cls in _CLASSES.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"llmrl.envs.rooms.gymnasium_envs:{cls}")
