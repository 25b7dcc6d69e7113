"""The sweeper of `--multirun`. Hydra imports this module at every start, so it must not import heavy modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.llmrl_launcher.launcher import LlmrlLauncher

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher


class LlmrlSweeper(Sweeper):
    """A sweeper over all combinations of the given values, in the order of Hydra's basic sweeper.

    Unlike the basic sweeper, it does not compose runs to validate them, because the launcher composes all runs before
    it starts one.

    Args:
        params: further values to sweep by key, as the text of overrides.
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

    def all_overrides(self, arguments: list[str]) -> list[str]:
        """Return the overrides of `params`, then those of the command line."""
        return [*(f"{key}={value}" for key, value in self.params.items()), *arguments]

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        from llmrl.config.overrides import expand_sweep
        from llmrl.experiment.experiment import get_application
        from llmrl.run.command_exit import exit_on_error

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides(self.all_overrides(arguments))
        with exit_on_error(get_application(self.config).command):
            runs = expand_sweep(overrides)
        if isinstance(self.launcher, LlmrlLauncher):
            from llmrl.sweeps.jobs import find_differing_keys

            self.launcher.swept = find_differing_keys(runs)
        returns = self.launcher.launch(runs, initial_job_idx=0)
        if codes := [code for job in returns if (code := _get_exit_code(job))]:
            raise SystemExit(min(codes))  # failures (1) first, then used-up budgets (3), then stops
        return [returns]


def _get_exit_code(job: JobReturn) -> int:
    """Return the exit code of a run."""
    if job.status == JobStatus.COMPLETED:
        return 0
    code = getattr(job._return_value, "code", 1)
    return code if isinstance(code, int) else 1
