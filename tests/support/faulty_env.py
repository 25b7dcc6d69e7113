"""Environments that raise errors, like defective environments of users."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

from llmrl.envs.escape_room import EscapeRoom


class Faulty(EscapeRoom):
    """Escape room whose method `fault` (`reset`, `step` or `close`) raises ZeroDivisionError."""

    fault: ClassVar[str] = ""

    def reset(self, *arguments: Any, **options: Any) -> Any:
        return self._or_fail("reset", super().reset(*arguments, **options))

    def step(self, *arguments: Any, **options: Any) -> Any:
        return self._or_fail("step", super().step(*arguments, **options))

    def close(self) -> None:
        super().close()
        self._or_fail("close", None)

    def _or_fail(self, method: str, result: Any) -> Any:
        if self.fault == method:
            raise ZeroDivisionError("a defect of mine")
        return result


class FaultyGame(gymnasium.Env[Any, Any]):
    """Gymnasium environment whose third step raises ZeroDivisionError."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(2, np.float32), 1.0 / (3 - self._steps), False, False, {}


gymnasium.register("faulty_env/Game-v0", FaultyGame, max_episode_steps=5)
