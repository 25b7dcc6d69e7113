"""Register this package's environments of one agent with Gymnasium; importing this module does it.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports it by itself. Nothing of an environment is loaded before it is made.
"""

from __future__ import annotations

from llmrl.envs.babyai import text_registration
from llmrl.envs.gym.tasks import registration as tasks
from llmrl.envs.rooms import registration as rooms

IDS = (*tasks.IDS, *rooms.IDS, text_registration.ID)
"""What `gymnasium.make` knows from now on; the levels of BabyAI-Text by their own ids are in
`llmrl.envs.babyai.registration`."""

tasks.register()
text_registration.register()
