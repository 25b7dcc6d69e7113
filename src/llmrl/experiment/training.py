"""Experiments in environments: what `llmrl-train` computes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrl.core.threads import in_turn
from llmrl.experiment import references
from llmrl.experiment.application import Application, Rows
from llmrl.experiment.distributed_checks import check_alike
from llmrl.experiment.means import Means, Model
from llmrl.experiment.models import asking, model_asked
from llmrl.experiment.needed import Compute, ensure
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.plan import plan, shortage
from llmrl.experiment.run_references import needed, with_digests
from llmrl.experiment.used import only_read
from llmrl.llms.transcript import Transcript
from llmrl.llms.usage import llm_summary
from llmrl.loops.executor import serve
from llmrl.run.shared import shared_of

if TYPE_CHECKING:
    from llmrl.run.run import Run

log = logging.getLogger(__name__)

Config = Mapping[str, Any]


class Training(Application):
    """Agents, and who governs, teaches or proposes them, in an environment."""

    command = "llmrl-train"
    primary = "train"

    def named(self, config: Config) -> list[str]:
        # Which model is behind results belongs into the run's name, chosen or not: it may be none at all.
        return ["llm"] if asking(config) else []

    def with_digests(self, config: dict[str, Any]) -> dict[str, Any]:
        return with_digests(only_read(config))

    def check_values(self, config: Config, means: Means) -> None:
        check_values(config, means)

    def make_model(self, means: Means) -> Model:
        return model_asked(means)

    def plan(self, config: Config, means: Means) -> Rows:
        parts = build_parts(config, means.model, means=means)
        try:
            return plan(config, parts, build_loop(config, parts))
        finally:
            parts.close()

    def compute(self, config: Config, means: Means, run: Run, compute_needed: Compute) -> None:
        with means.away():  # a server may be slow to answer
            llm = means.join_run(run.folder, lambda: run.stop.requested)
        run.status.llm = "" if llm is None else llm.label
        run.status.shared = shared_of(config, asks=llm is not None)
        run.metrics.attach(Transcript.TAG, Transcript(run.folder))
        ensure(needed(config), run, compute_needed, means.away)
        with in_turn():  # networks are made with torch's own random stream, and games compiled
            parts = build_parts(config, llm, folder=run.folder, means=means)
        run.status.env = parts.env.spec.name
        try:
            check_alike(parts.env.spec, run.processes)
            if run.processes.leads and (short := shortage(config, parts.principal)) is not None:
                log.warning("%s", short)
            behind = references.needed(config, parts)
            with in_turn():
                loop = build_loop(config, parts, lambda: references.known(behind))  # before hours go into references
            references.log_left_out(config, parts)
            ensure(behind, run, compute_needed, means.away)
            run.result = serve(loop.requests(run), run, means.seat)
            run.summary |= llm_summary(llm)
        finally:
            parts.close()

    def print_end(self, run: Run) -> None:
        from llmrl.display.runs import print_summary

        print_summary(run)
