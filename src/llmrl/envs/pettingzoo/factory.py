"""Options and factory of PettingZoo environments, which games of OpenSpiel, TextArena and OpenEnv are converted to.

World: one PettingZoo environment object (`ParallelEnv` or `AECEnv`).
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.env_errors import convert_creation_errors
from llmrl.envs.pettingzoo.agent_channels import TEXT_KEY

if TYPE_CHECKING:
    from types import ModuleType

_DEFAULT_FUNCTION_NAMES = ("parallel_env", "env")
"""Functions that create a world if the id names only a module. The first one that the module contains is called."""
_BUILTIN_MODULE_PATTERN = re.compile(r"pettingzoo\.(atari|butterfly|classic|sisl)\.\w+_v\d+|mpe2\.\w+_v\d+")
"""Pattern of modules of PettingZoo and MPE2, which are trusted because llmrl requires these packages."""
_CONVERTER_MODULE = "pettingzoo.utils.conversions"
"""Module that defines the functions returned by `parallel_wrapper_fn(env)` and similar converters."""
_OPTIONAL_PACKAGES = ("pygame", "pymunk", "shimmy", "pyspiel", "textarena", "websockets")
"""Packages that `pip install 'llmrl[worlds]'` installs."""


Library = Literal["pettingzoo", "openspiel", "textarena", "openenv"]


@dataclass(frozen=True)
class PettingZooSettings:
    """Options of `PettingZooEnv`; meanings, units and ranges are in `conf/env/pettingzoo.yaml`."""

    id: str
    name: str | None
    library: Library
    kwargs: Mapping[str, Any] | None
    n_envs: PositiveInt
    horizon: PositiveInt | None
    tax: bool
    show_mechanism: bool
    text: str | None
    render: bool


@dataclass(frozen=True)
class WorldFactory:
    """Factory of copies of one world.

    Args:
        id: for PettingZoo, `module:function`, which returns a `ParallelEnv` or `AECEnv`; for `module` alone, the
            function is its `parallel_env` or, without one, its `env`. For OpenSpiel, the short name of a game. For
            TextArena and OpenEnv, see `TextArenaWorld` and `OpenEnvWorld`.
        kwargs: arguments of the function or class; for OpenSpiel, parameters of the game.
        library: library that defines the ids.
        trust: modules that `id` may name, in addition to those of PettingZoo and MPE2.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    library: Library = "pettingzoo"
    trust: Trust = NO_FURTHER_TRUST

    @property
    def always_ends(self) -> bool:
        """True if every episode is known to end without a step limit."""
        return self.library == "openspiel" or _BUILTIN_MODULE_PATTERN.fullmatch(self.id.partition(":")[0]) is not None

    def make(self, render: bool = False) -> Any:
        """Return one world.

        Args:
            render: whether its `render` must return frames.

        Raises:
            ConfigError: the module, function or game is unknown, the module is not trusted, a package is missing, an
                argument is invalid, the world cannot be rendered, or the function returns something else.
        """
        if self.library != "pettingzoo":
            if render:
                raise ConfigError(
                    f"{self.id}: games of {self.library} cannot be rendered; use play.videos=0 and env.render=false"
                )
            if self.library == "openspiel":
                return make_openspiel_game(self.id, self.kwargs)
            from llmrl.envs.pettingzoo.text_worlds import OpenEnvWorld, TextArenaWorld

            return self._construct_world(
                TextArenaWorld if self.library == "textarena" else OpenEnvWorld, {"id": self.id}
            )
        constructor = self._find_constructor()
        world = self._construct_world(constructor, {})
        agents = getattr(world, "possible_agents", None)
        if not agents or not all(isinstance(agent, str) for agent in agents):
            raise ConfigError(
                f"env.id={self.id} created a {type(world).__name__} with possible_agents={agents}; it must be a "
                "PettingZoo ParallelEnv or AECEnv with a list of names, one per agent"
            )
        if not render:
            return world
        render_modes = [str(mode) for mode in getattr(world, "metadata", {}).get("render_modes", [])]
        world.close()
        if "rgb_array" not in render_modes:
            raise ConfigError(
                f"{self.id} cannot be rendered as an image (its render modes: {', '.join(render_modes) or 'none'}), so "
                "no video is possible; leave --video out of llmrl-evaluate, or use play.videos=0 and env.render=false"
            )
        return self._construct_world(constructor, {"render_mode": "rgb_array"})

    def _construct_world(self, constructor: Any, options: Mapping[str, Any]) -> Any:
        try:
            with convert_creation_errors(self.id, self.kwargs):
                return constructor(**{**options, **self.kwargs})
        except ModuleNotFoundError as error:
            raise self._build_missing_package_error(error) from error

    def _find_constructor(self) -> Any:
        """Return the function that creates a world."""
        name, separator, function = self.id.partition(":")
        module = self._import_module(name)
        default_functions = [default for default in _DEFAULT_FUNCTION_NAMES if hasattr(module, default)]
        if not separator:
            if not default_functions:
                raise ConfigError(
                    f"env.id={self.id}: the module has neither {' nor '.join(_DEFAULT_FUNCTION_NAMES)}; name the "
                    f"function that creates an environment, as in {self.id}:my_world"
                )
            function = default_functions[0]
        if _BUILTIN_MODULE_PATTERN.fullmatch(name):
            if function not in (*_DEFAULT_FUNCTION_NAMES, "raw_env") or not hasattr(module, function):
                raise ConfigError(
                    f"env.id={self.id}: the module has no function {function} that creates an environment; use "
                    f"{', '.join(default_functions) or 'another module'}"
                )
            return getattr(module, function)
        converter = getattr(module, function, None)
        if getattr(converter, "__module__", None) == _CONVERTER_MODULE and getattr(converter, "__closure__", None):
            return converter  # the closure contains a function of the module, which is trusted already
        return self.trust.locate(f"{name}.{function}", "env.id")

    def _import_module(self, name: str) -> ModuleType:
        if not _BUILTIN_MODULE_PATTERN.fullmatch(name):
            return self.trust.load(name, f"env.id={self.id}")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and name.startswith(error.name):
                raise ConfigError(f"env.id={self.id} is not a PettingZoo environment ({error})") from error
            raise self._build_missing_package_error(error) from error
        except ImportError as error:
            raise ConfigError(f"env.id={self.id} cannot be imported: {error}") from error

    def _build_missing_package_error(self, error: ModuleNotFoundError) -> ConfigError:
        package = (error.name or str(error)).partition(".")[0]
        remedy = "pip install 'llmrl[worlds]'" if package in _OPTIONAL_PACKAGES else f"install {package}"
        return ConfigError(f"{self.id} needs the package {package}, which is not installed: {remedy}")


def make_openspiel_game(name: str, parameters: Mapping[str, Any]) -> Any:
    """Return an OpenSpiel game as an `AECEnv`.

    In a simultaneous move, agents choose one after another and do not observe each other's choices.

    Args:
        name: OpenSpiel's short name, e.g. `kuhn_poker`.
        parameters: parameters of the game, e.g. `{"players": 3}`.

    Raises:
        ConfigError: a package is missing, the game or a parameter is unknown, or the game has no observations or an
            unsupported kind of actions.
    """
    try:
        import pyspiel
        from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env=openspiel needs the package {error.name}, which is not installed: pip install 'llmrl[worlds]'"
        ) from error

    class OpenSpielGame(OpenSpielCompatibilityV0):  # type: ignore[misc]
        """Environment whose infos contain OpenSpiel's text of each agent's knowledge."""

        metadata = {"render_modes": [], "name": name, "is_parallelizable": False}

        def _update_action_masks(self) -> None:
            super()._update_action_masks()
            if not self.game_state.is_terminal():
                for i, agent in enumerate(self.agents):
                    self.infos[agent][TEXT_KEY] = _format_state(self.game_state, self.game_type, i)

        def _update_termination_truncation(self) -> None:
            # Disable Shimmy's step limit: its count includes chance moves, its limit does not. It would truncate poker.
            self.game_length = 0
            super()._update_termination_truncation()

    game_names = pyspiel.registered_names()
    if name not in game_names:
        matches = difflib.get_close_matches(name, game_names)
        raise ConfigError(f"OpenSpiel has no game {name!r}; similar names: {', '.join(matches) or 'none'}")
    try:
        return OpenSpielGame(game_name=name, config=dict(parameters) or None)
    # Shimmy raises NotImplementedError for kinds of games that it does not wrap.
    except (pyspiel.SpielError, NotImplementedError, ValueError) as error:
        raise ConfigError(f"OpenSpiel cannot create {name} with env.kwargs={dict(parameters)}: {error}") from error


def _format_state(state: Any, game_type: Any, player: int) -> str:
    """Return OpenSpiel's text of what a player knows, with the legal actions."""
    is_perfect = game_type.information == game_type.Information.PERFECT_INFORMATION
    text = ""
    if game_type.provides_information_state_string and not (is_perfect and game_type.provides_observation_string):
        text = state.information_state_string(player)
    elif game_type.provides_observation_string:
        text = state.observation_string(player)
    names = ", ".join(f"{action} = {state.action_to_string(player, action)}" for action in state.legal_actions(player))
    return f"{text}\nYour legal actions: {names}" if names else text
