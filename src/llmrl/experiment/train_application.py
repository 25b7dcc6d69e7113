"""The application of `llmrl-train`: experiments in environments."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

from llmrl.config.builder import Config
from llmrl.core.threads import hold_process_lock
from llmrl.experiment import reference_line_runs
from llmrl.experiment.application import Application, PlanRows
from llmrl.experiment.config_completion import (
    groups_using_model,
    with_full_members,
    with_text_channel,
    without_unread_sections,
)
from llmrl.experiment.models import build_used_model, with_player_models
from llmrl.experiment.parts import build_loop, build_parts, check_deterministic, check_values
from llmrl.experiment.plan import describe_arm_shortage, plan
from llmrl.experiment.prerequisites import ComputeRun, PrerequisiteRun, ensure_finished
from llmrl.experiment.resources import Model, RunResources
from llmrl.experiment.run_references import list_referenced_runs, with_digests
from llmrl.llms.transcript import Transcript
from llmrl.llms.usage import summarize_llm_usage
from llmrl.loops.executor import serve
from llmrl.run.run import Run
from llmrl.run.shared_factors import list_shared_factors

log = logging.getLogger(__name__)


class TrainApplication(Application):
    """Training and evaluation of agents in an environment, with their teachers and principals."""

    command = "llmrl-train"

    def list_label_groups(self, config: Config) -> list[str]:
        # The name of a run shows its language model, even if it is the default.
        return ["llm"] if groups_using_model(config) else []

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return with_digests(without_unread_sections(with_player_models(with_text_channel(with_full_members(config)))))

    def check_values(self, config: Config, resources: RunResources) -> None:
        check_values(config, resources)

    def make_model(self, resources: RunResources) -> Model:
        return build_used_model(resources)

    def plan(self, config: Config, resources: RunResources) -> PlanRows:
        with closing(build_parts(config, resources.model, resources=resources)) as parts:
            return plan(config, parts, build_loop(config, parts))

    def compute(self, config: Config, resources: RunResources, run: Run, compute_run: ComputeRun) -> None:
        with resources.detached():  # the check of the model may wait for a server
            llm = resources.join_run(run.folder, lambda: run.stop_flag.requested)
        run.status.llm = "" if llm is None else llm.label
        run.status.shared = list_shared_factors(config, uses_llm=llm is not None)
        run.metrics.attach_text(Transcript.TAG, Transcript(run.folder))
        n_stages = 1 + reference_line_runs.count_expected_stages(config, resources.builder)
        referenced_runs = list_referenced_runs(config)
        n_finished = ensure_finished(referenced_runs, run, compute_run, resources.detached, n_stages_after=n_stages)
        with hold_process_lock():  # torch's global random generator initializes networks, and Numba compiles games
            parts = build_parts(config, llm, folder=run.folder, resources=resources)
        run.status.env = parts.env.spec.name
        try:
            check_deterministic(parts.env.spec, run.processes)
            if run.processes.is_main and (warning := describe_arm_shortage(config, parts)) is not None:
                log.warning("%s", warning)
            measurement_runs: list[PrerequisiteRun] = []
            # Errors in the loop's options are raised before the reference runs, which may take hours.
            with hold_process_lock():
                loop = build_loop(config, parts, lambda: reference_line_runs.read_measured_references(measurement_runs))
            measurement_runs += reference_line_runs.list_measurement_runs(config, parts, loop)
            ensure_finished(measurement_runs, run, compute_run, resources.detached, n_stages_before=n_finished)
            run.result = serve(loop.requests(run), run, resources.connection)
            run.summary |= summarize_llm_usage(llm)
        finally:
            parts.close()

    def print_summary(self, run: Run) -> None:
        from llmrl.display.results import print_summary

        print_summary(run)
