"""The sweeper of `--multirun`. Hydra imports this module at every start, so it must not import heavy modules."""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus

from hydra_plugins.llmrl_launcher._launching import LaunchingSweeper
from hydra_plugins.llmrl_launcher.launcher import LlmrlLauncher


class LlmrlSweeper(LaunchingSweeper):
    """A sweeper over every combination of the given values, in the order of Hydra's own sweeper.

    Unlike Hydra's sweeper, it does not compose runs to validate them, because the launcher composes all before it
    starts any.
    """

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        from llmrl.config.overrides import combinations
        from llmrl.experiment.experiment import application_of
        from llmrl.run.command_exit import exit_on_error

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides(self.typed(arguments))
        with exit_on_error(application_of(self.config).command):
            runs = combinations(overrides)
        if isinstance(self.launcher, LlmrlLauncher):
            from llmrl.sweeps.jobs import differing_keys

            self.launcher.swept = differing_keys(runs)
        returns = self.launcher.launch(runs, initial_job_idx=0)
        if codes := [code for job in returns if (code := _code(job))]:
            raise SystemExit(min(codes))  # a failure first, then a used-up budget, then a stop
        return [returns]


def _code(job: JobReturn) -> int:
    """Return the exit code of a run."""
    if job.status == JobStatus.COMPLETED:
        return 0
    code = getattr(job._return_value, "code", 1)
    return code if isinstance(code, int) else 1
