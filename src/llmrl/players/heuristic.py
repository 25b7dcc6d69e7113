"""`agent=heuristic`: a simple rule plays, where there is one for the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llmrl.core.only_plays import OnlyPlays
from llmrl.core.records import Act
from llmrl.core.spaces import EnvSpec
from llmrl.envs.gym.games import GameMaker
from llmrl.players.heuristics.rules import rule_of


class HeuristicPolicy:
    """Follows a rule.

    Args:
        spec: of the environment.
        maker: of its games, for rules that are computed from the game's own table; None: it is none of Gymnasium's.

    Raises:
        ConfigError: there is no rule for the environment.
    """

    def __init__(self, spec: EnvSpec, maker: GameMaker | None = None) -> None:
        self.heuristic, self._rule = rule_of(spec, maker)
        self.channels: tuple[str, ...] = (self.heuristic.channel,)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> Act:
        """The same action for the same observation."""
        seen = observation[self.heuristic.channel].cpu().numpy()
        games, agents = seen.shape[:2]
        action = np.asarray(self._rule(seen.reshape(games * agents, *seen.shape[2:])))
        return Act(torch.from_numpy(action.reshape(games, agents).astype(np.int64)))

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it expects nothing."""
        return torch.zeros(observation[self.heuristic.channel].shape[:2])


class HeuristicAgent(OnlyPlays):
    """Plays by a rule, never learns; arguments as for `HeuristicPolicy`.

    Raises:
        ConfigError: there is no rule for the environment; the message names those that have one.
    """

    def __init__(self, spec: EnvSpec, maker: GameMaker | None = None) -> None:
        self.policy = HeuristicPolicy(spec, maker)

    def describe(self) -> dict[str, Any]:
        return {"policy": f"a rule: {self.policy.heuristic.what}", "parameters": 0}
