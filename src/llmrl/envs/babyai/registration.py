"""Ids under which Gymnasium makes the levels; importing this module registers them, and MiniGrid's own."""

from __future__ import annotations

from typing import Any

_LEVELS = "llmrl.envs.babyai.levels"
_ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "BabyAI-MixedTrainLocal-v0": (f"{_LEVELS}:MixedTrainLocal", {}),
    "BabyAI-MixedTestLocal-v0": (f"{_LEVELS}:MixedTestLocal", {}),
    "BabyAI-PickUpSeqGoToLocal-v0": (f"{_LEVELS}:PickUpSeqGoToLocal", {}),
    "BabyAI-PickUpThenGoToLocal-v0": (f"{_LEVELS}:PickUpThenGoToLocal", {}),
    "BabyAI-GoToAfterPickUpLocal-v0": (f"{_LEVELS}:GoToAfterPickUpLocal", {}),
    "BabyAI-PickUpSeqPickUpLocal-v0": (f"{_LEVELS}:PickUpSeqPickUpLocal", {}),
    "BabyAI-GoToLocalS8N16-v0": (f"{_LEVELS}:GoToLocal", {"num_dists": 16}),
    "BabyAI-GoToFrench-v0": ("minigrid.envs.babyai:GoToLocal", {"num_dists": 8}),
}
IDS = tuple(_ENTRIES)


def register() -> None:
    """Register the levels with Gymnasium; calling it again does nothing.

    `gymnasium.make("llmrl.envs.babyai.registration:BabyAI-MixedTrainLocal-v0")` does it by itself.
    """
    import gymnasium
    import minigrid  # noqa: F401 (registers its own)

    for name, (entry, kwargs) in _ENTRIES.items():
        spec = gymnasium.registry.get(name)
        if spec is None or spec.entry_point != entry:
            gymnasium.registry.pop(name, None)
            gymnasium.register(name, entry_point=entry, kwargs=kwargs)


register()
