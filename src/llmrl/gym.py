"""Registration of this package's single-agent environments with Gymnasium, when this module is imported.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports it. No environment is loaded before it is created.
"""

from __future__ import annotations

from llmrl.envs.gym.tasks import IDS as IDS
