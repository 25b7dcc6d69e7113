"""Gymnasium environments of this package; importing this module registers their ids."""

from __future__ import annotations

_STEPS_AND_THRESHOLDS: dict[str, tuple[int, float | None]] = {
    # Name -> step limit, and the return at which Gymnasium counts the environment as solved.
    "Maze": (200, 0.96),
    # Each legal move takes at least one of ten sticks; an illegal one ends the episode.
    "Nim": (10, 1.0),
    "Navigation": (1000, None),
    "Pong": (1000, 3.0),
}
IDS = tuple(f"llmrl/{name}-v0" for name in _STEPS_AND_THRESHOLDS)


def register() -> None:
    """Register these environments with Gymnasium; later calls do nothing.

    `gymnasium.make("llmrl.envs.gym.tasks:llmrl/Maze-v0")` imports this module, which calls this function.
    """
    import gymnasium

    for id, (name, (steps, threshold)) in zip(IDS, _STEPS_AND_THRESHOLDS.items(), strict=True):
        if id not in gymnasium.registry:
            gymnasium.register(
                id,
                entry_point=f"llmrl.envs.gym.tasks.gymnasium_envs:{name}Env",
                max_episode_steps=steps,
                reward_threshold=threshold,
            )


register()
