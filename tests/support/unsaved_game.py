"""Text game whose state cannot be saved, like that of some engines, and an observer without effect."""

from __future__ import annotations

from dataclasses import replace

from llmrl.core.observers import Observer
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.envs.gym.vec_env import GymnasiumEnv
from shipped import build_settings


class NoopObserver(Observer):
    """Observer without effect."""


class UnsavedLake(GymnasiumEnv):
    """Frozen Lake without state that can be saved; episodes are still a function of the seed and the actions."""

    def __init__(self, seeds: Seeds, n_envs: int = 4, horizon: int = 8) -> None:
        options = {"horizon": horizon, "engine": "batched", "text": "frozen_lake"}
        super().__init__(build_settings("env/frozen_lake", n_envs=n_envs, **options), seeds)
        self._alone = seeds, horizon
        self.spec = replace(self.spec, deterministic=False)

    def make_single_game(self) -> UnsavedLake:
        seeds, horizon = self._alone
        return UnsavedLake(seeds, 1, horizon)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        raise AssertionError("it cannot be restored")
