"""Registration of this package's single-agent environments with Gymnasium, when this module is imported.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports it. No environment is loaded before it is created.
"""

from __future__ import annotations

from llmrl.envs.babyai import text_registration
from llmrl.envs.gym import tasks
from llmrl.envs.rooms import registration as rooms

IDS = (*tasks.IDS, *rooms.IDS, text_registration.ID)
"""Ids of the registered environments; the levels of BabyAI-Text have own ids in `llmrl.envs.babyai.registration`."""

text_registration.register()
