"""Games of OpenSpiel, as Shimmy makes worlds of PettingZoo of them, with the game's own words for a state."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.envs.pettingzoo.texts import TOLD

_NEAR = 5
"""Number of similar names that the error about an unknown game mentions."""


def openspiel_game(name: str, parameters: Mapping[str, Any]) -> Any:
    """Return a game as an `AECEnv`; agents of a simultaneous move choose one after another, unseen by the others.

    Args:
        name: OpenSpiel's short name, e.g. `kuhn_poker`.
        parameters: parameters of the game, e.g. `{"players": 3}`.

    Raises:
        ConfigError: a missing package, an unknown game or parameter, or a game without observations or with an
            unsupported kind of actions.
    """
    try:
        import pyspiel
        from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"env=openspiel needs the package {fault.name}, which is not installed: pip install 'llmrl[worlds]'"
        ) from fault

    class OpenSpielGame(OpenSpielCompatibilityV0):  # type: ignore[misc]
        """A game whose infos say what the game writes of its state."""

        metadata = {"render_modes": [], "name": name, "is_parallelizable": False}

        def _update_action_masks(self) -> None:
            super()._update_action_masks()
            if not self.game_state.is_terminal():
                for i, agent in enumerate(self.agents):
                    self.infos[agent][TOLD] = _in_words(self.game_state, self.game_type, i)

        def _update_termination_truncation(self) -> None:
            # Shimmy truncates by a count that holds chance nodes, against a limit that does not: poker would be cut.
            self.game_length = 0
            super()._update_termination_truncation()

    known = pyspiel.registered_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=_NEAR)
        like = f"; names like it: {', '.join(near)}" if near else ""
        raise ConfigError(f"OpenSpiel knows no game {name!r}{like}")
    try:
        return OpenSpielGame(game_name=name, config=dict(parameters) or None)
    except (pyspiel.SpielError, NotImplementedError, ValueError) as fault:  # the second: Shimmy's, of kinds of games
        raise ConfigError(f"{name} of OpenSpiel cannot be made with env.kwargs={dict(parameters)}: {fault}") from fault


def _in_words(state: Any, kind: Any, player: int) -> str:
    """What a player knows, as the game writes it, and what its legal actions are."""
    perfect = kind.information == kind.Information.PERFECT_INFORMATION
    whole = kind.provides_information_state_string and not (perfect and kind.provides_observation_string)
    known = ""
    if whole:
        known = state.information_state_string(player)
    elif kind.provides_observation_string:
        known = state.observation_string(player)
    moves = ", ".join(f"{action} = {state.action_to_string(player, action)}" for action in state.legal_actions(player))
    return f"{known}\nYour legal actions: {moves}" if moves else known
