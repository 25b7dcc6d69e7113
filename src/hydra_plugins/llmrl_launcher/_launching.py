"""The common base of sweepers. The underscore in its name hides this module from Hydra's scan for plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher


class LaunchingSweeper(Sweeper):
    """A sweeper that passes runs on to the chosen launcher.

    Args:
        params: overrides in addition to those of the command line, `{key: values}`.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = params or {}
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def typed(self, arguments: list[str]) -> list[str]:
        """Return all overrides, those of the command line last."""
        return [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
