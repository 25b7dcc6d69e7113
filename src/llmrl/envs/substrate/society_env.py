"""The part of Clean Up and Harvest that both engines share: the mechanism and its report to players."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.records import Array
from llmrl.core.spaces import EnvSpec
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import Settlement, SocietyEvents
from llmrl.envs.substrate.env_spec import SubstrateSettings
from llmrl.envs.substrate.grid_text import observation_text


class SocietyEnv(ABC):
    """Base class of Clean Up and Harvest on either engine.

    Args:
        game: settings of the games.
        channels: channels that players observe.
        spec: description of the environment.

    Attributes:
        settlement: the mechanism's settlement of the last step; None without a mechanism or before the first step.
    """

    settlement: Settlement | None = None

    def __init__(self, game: SubstrateSettings, channels: Sequence[str], spec: EnvSpec) -> None:
        self.spec, self._game = spec, game
        self._mechanism = mechanism = game.mechanism
        self._mechanism_shown, self._horizon = game.mechanism_shown, game.horizon
        # Number of games with different random numbers; the following groups draw the same numbers.
        self._group_size = spec.n_envs
        self._report: MechanismReport | None = None
        if mechanism is not None and "text" in channels:
            self._report = MechanismReport(
                mechanism.spec, spec.n_envs, spec.n_agents, game.mechanism_shown, mechanism.player_facts
            )
        low = np.zeros(0) if mechanism is None else mechanism.spec.low
        self._set_values(np.tile(low.astype(np.float32), (spec.n_envs, 1)))

    @abstractmethod
    def _set_values(self, values: NDArray[np.float32]) -> None:
        """Set the mechanism's values, [n_envs, d]."""

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(f"{self.spec.name} has no mechanism; set one, e.g. with env.mechanism in its option file")
        parameters = self._mechanism.spec.check(values).astype(np.float32)
        self._set_values(np.broadcast_to(parameters, (self.spec.n_envs, self._mechanism.spec.dim)).copy())

    def set_context(self, context: int | np.ndarray) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def pair_games(self, groups: int) -> None:
        """Give game i of each of `groups` equal groups the same random numbers from the next reset on."""
        self._group_size = self.spec.games_per_group(groups)

    def _begin_mechanism(self, games: NDArray[np.bool_]) -> None:
        """Begin new episodes of the mechanism in the games where `games` [n_envs] is true."""
        if self._mechanism is not None:
            self._mechanism.reset(games)
        if self._report is not None:
            self._report.begin(games)

    def _settle(
        self, events: SocietyEvents, values: Array, live: NDArray[np.bool_], metrics: dict[str, Any]
    ) -> Settlement:
        """Return the mechanism's settlement of a step, and add its metrics to `metrics`.

        Args:
            events: events of the step.
            values: the mechanism's values [n_envs, d], 0 in games that are over.
            live: games that were played in the step, [n_envs].
            metrics: metrics of the step.
        """
        assert self._mechanism is not None
        self.settlement = settlement = self._mechanism.settle(events, values)
        metrics |= settlement.metrics
        if self._report is not None:
            jacobian, facts = settlement.reward_jacobian, settlement.player_facts
            self._report.settle(settlement.base_reward, jacobian, values, live, facts)
        return settlement

    def _texts(
        self, grids: NDArray[np.uint8], vectors: NDArray[np.float32], present: NDArray[np.bool_], values: NDArray[Any]
    ) -> NDArray[Any]:
        """Return the text observation of each player, [n_envs, n_agents] object; "" for players who are not `present`.

        Args:
            grids: the channel `grid`.
            vectors: the channel `vector`.
            present: players in the game, [n_envs, n_agents].
            values: the mechanism's values, [n_envs, d].
        """
        texts = np.full(present.shape, "", dtype=object)
        for game, player in np.argwhere(present).tolist():
            report = None if self._report is None else self._report.observation_entries(game, player, values[game])
            scalars, substrate, rules = vectors[game, player], self._game.substrate, self._game.rules
            texts[game, player] = observation_text(grids[game, player], substrate, rules, scalars, report)
        return texts
