"""The factory of one world, from the name of the function that makes it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.gym.faults import REFUSALS, refused

if TYPE_CHECKING:
    from types import ModuleType

Library = Literal["pettingzoo", "openspiel"]
FACTORIES = ("parallel_env", "env")
"""Functions that make a world of a module, if its id names none. The first that the module has is called."""
_SHIPPED = re.compile(r"pettingzoo\.(atari|butterfly|classic|sisl)\.\w+_v\d+|mpe2\.\w+_v\d+")
"""Modules of PettingZoo's own worlds: installed packages that llmrl requires, so that nobody has to trust them."""
_CONVERTERS = "pettingzoo.utils.conversions"
"""Module in which `parallel_wrapper_fn(env)` and the like define the functions that they return."""
_EXTRA = ("pygame", "pymunk", "shimmy", "pyspiel")
"""Packages that our extra `worlds` installs."""


@dataclass(frozen=True)
class WorldFactory:
    """Factory of games of one world.

    Args:
        id: `module:function`, which returns a PettingZoo `ParallelEnv` or `AECEnv`; `module` alone takes its
            `parallel_env`, else its `env`. Of OpenSpiel, the short name of a game.
        kwargs: arguments of the function; parameters of OpenSpiel's game.
        library: whose names ids are.
        trust: modules that `id` may name, beside PettingZoo's own worlds.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    library: Library = "pettingzoo"
    trust: Trust = NOBODY

    @property
    def ends(self) -> bool:
        """Whether every episode is known to end by itself."""
        return self.library == "openspiel" or _SHIPPED.fullmatch(self.id.partition(":")[0]) is not None

    def make(self, render: bool = False) -> Any:
        """Return one world.

        Args:
            render: whether it must draw itself.

        Raises:
            ConfigError: an unknown module, function or game, a module that is not trusted, a missing package, an
                invalid argument, a world without pictures, or no world at all.
        """
        if self.library == "openspiel":
            if render:
                raise ConfigError(
                    f"{self.id}: games of OpenSpiel draw no pictures; use play.videos=0 and env.render=false"
                )
            from llmrl.envs.pettingzoo.openspiel import openspiel_game

            return openspiel_game(self.id, self.kwargs)
        function = self._function()
        world = self._called(function, {})
        if not callable(getattr(world, "observation_space", None)) or not hasattr(world, "possible_agents"):
            raise ConfigError(
                f"env.id={self.id} made a {type(world).__name__}, which is no ParallelEnv or AECEnv of PettingZoo with "
                "possible_agents"
            )
        if not world.possible_agents or not all(isinstance(agent, str) for agent in world.possible_agents):
            raise ConfigError(f"env.id={self.id}: possible_agents={world.possible_agents} must be names, one an agent")
        if not render:
            return world
        modes = [str(mode) for mode in getattr(world, "metadata", {}).get("render_modes", [])]
        world.close()
        if "rgb_array" not in modes:
            raise ConfigError(
                f"{self.id} draws no pictures (its render modes: {', '.join(modes) or 'none'}), so there can be no "
                "video of it; leave --video out of llmrl-evaluate, or use play.videos=0 and env.render=false"
            )
        return self._called(function, {"render_mode": "rgb_array"})

    def _called(self, function: Any, more: Mapping[str, Any]) -> Any:
        try:
            return function(**{**more, **self.kwargs})
        except ModuleNotFoundError as fault:
            raise self._missing(fault) from fault
        except TypeError as fault:
            if "argument" not in str(fault):
                raise
            raise refused(self.id, self.kwargs, fault) from fault
        except REFUSALS as fault:
            raise refused(self.id, self.kwargs, fault) from fault

    def _function(self) -> Any:
        """The function that makes a world."""
        name, colon, function = self.id.partition(":")
        module = self._module(name)
        if not colon:
            found = [each for each in FACTORIES if hasattr(module, each)]
            if not found:
                raise ConfigError(
                    f"env.id={self.id}: this module has neither {' nor '.join(FACTORIES)}; name the function that "
                    f"makes a world, as in {self.id}:my_world"
                )
            function = found[0]
        if _SHIPPED.fullmatch(name):
            if function not in (*FACTORIES, "raw_env") or not hasattr(module, function):
                offered = [each for each in FACTORIES if hasattr(module, each)]
                raise ConfigError(f"env.id={self.id}: worlds are made there by {', '.join(offered) or 'nothing'}")
            return getattr(module, function)
        made = getattr(module, function, None)
        if getattr(made, "__module__", None) == _CONVERTERS and getattr(made, "__closure__", None):
            return made  # around a function of the module
        return self.trust.locate(f"{name}.{function}", "env.id")

    def _module(self, name: str) -> ModuleType:
        if not _SHIPPED.fullmatch(name):
            return self.trust.load(name, f"env.id={self.id}")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as fault:
            if fault.name is not None and name.startswith(fault.name):
                raise ConfigError(f"env.id={self.id}: PettingZoo has no such world ({fault})") from fault
            raise self._missing(fault) from fault
        except ImportError as fault:
            raise ConfigError(f"env.id={self.id} cannot be imported: {fault}") from fault

    def _missing(self, fault: ModuleNotFoundError) -> ConfigError:
        package = (fault.name or str(fault)).partition(".")[0]
        cure = "pip install 'llmrl[worlds]'" if package in _EXTRA else f"install {package}"
        return ConfigError(f"{self.id} needs the package {package}, which is not installed: {cure}")
