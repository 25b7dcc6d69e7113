"""The sweeper of `--multirun`. Hydra imports this module at every start, so it must not import heavy modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus

from hydra_plugins.llmrl_launcher._launching import LaunchingSweeper
from hydra_plugins.llmrl_launcher.launcher import LlmrlLauncher


class LlmrlSweeper(LaunchingSweeper):
    """A sweeper over every combination of the given values, in the order of Hydra's own sweeper.

    Unlike Hydra's sweeper, it does not compose runs to validate them, because the launcher composes all before it
    starts any; and it launches further batches after a run has failed.

    Args:
        max_batch_size: number of runs passed to the launcher at once, >= 1; None: all.
        params: further overrides, `{key: values}`.
    """

    def __init__(self, max_batch_size: int | None, params: Mapping[str, Any] | None = None) -> None:
        super().__init__(params)
        self.max_batch_size = max_batch_size

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        from llmrl.config.overrides import combinations
        from llmrl.experiment.experiment import application_of
        from llmrl.run.command_exit import exit_on_error

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides(self.typed(arguments))
        with exit_on_error(application_of(self.config).command):
            runs = combinations(overrides)
        size = max(1, len(runs)) if self.max_batch_size is None else self.max_batch_size  # none: the launcher says so
        batches = [runs[i : i + size] for i in range(0, len(runs), size)] or [runs]
        if isinstance(self.launcher, LlmrlLauncher):
            from llmrl.sweeps.jobs import differing_keys

            self.launcher.swept = differing_keys(runs)
        returns: list[Sequence[JobReturn]] = []
        codes: list[int] = []
        for batch in batches:
            returns.append(self.launcher.launch(batch, initial_job_idx=sum(len(r) for r in returns)))
            codes += [_code(job) for job in returns[-1]]
            if any(code > 128 for code in codes):
                break  # stopped by a signal
        if any(codes):
            # A failure first, then a used-up budget, then a stop.
            raise SystemExit(min(code for code in codes if code))
        return returns


def _code(job: JobReturn) -> int:
    """Return the exit code of a run."""
    if job.status == JobStatus.COMPLETED:
        return 0
    code = getattr(job._return_value, "code", 1)
    return code if isinstance(code, int) else 1
