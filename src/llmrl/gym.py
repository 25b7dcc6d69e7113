"""Registration of this package's single-agent environments with Gymnasium, when this module is imported.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports it. No environment is loaded before it is created.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports it by itself. Nothing of an environment is loaded before it is made.
"""

from __future__ import annotations

from llmrl.envs.babyai import text_registration
from llmrl.envs.gym.tasks import registration as tasks
from llmrl.envs.rooms import registration as rooms

IDS = (*tasks.IDS, *rooms.IDS, text_registration.ID)
"""Ids of the registered environments; the levels of BabyAI-Text have own ids in `llmrl.envs.babyai.registration`."""

tasks.register()
text_registration.register()
