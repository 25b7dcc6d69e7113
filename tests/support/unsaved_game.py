"""A game in words that cannot be restored, as an engine's own games cannot; and somebody who watches games."""

from __future__ import annotations

from dataclasses import replace

from llmrl.core.observers import Observer
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.envs.gym.vec_env import GymnasiumEnv
from shipped import build_settings


class Watcher(Observer):
    """Looks on."""


class UnsavedLake(GymnasiumEnv):
    """Frozen Lake, which forgets where it stood; an episode is a function of its seed and of actions all the same."""

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
