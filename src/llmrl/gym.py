"""Registration of this package's single-agent environments with Gymnasium, when this module is imported.

`gymnasium.make("llmrl.gym:llmrl/Maze-v0")` imports this module. The code of an environment is loaded when it is made.
"""

from __future__ import annotations

from llmrl.envs.gym.tasks import IDS as IDS
