"""`llmrl-train`: compose an experiment from config groups and run it.

Only Hydra is imported here: `--help`, `--cfg job` and shell completion must answer at once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from llmrl.cli import command

logger = logging.getLogger(__name__)


@hydra.main(config_path="pkg://llmrl.conf", config_name="train", version_base="1.3")
def train(config: DictConfig) -> float | None:
    """The task Hydra calls for every job; returns what a sweeper optimises."""
    return command.task("llmrl-train", config, resolve, check, run_experiment)


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """A composed config as plain data, and what was typed for it; Hydra's own config must be set.

    Raises:
        ConfigError: a value is missing, a part cannot be found, or a file says which code is to be trusted.
    """
    from llmrl.config.input_digests import with_digests
    from llmrl.config.trusting import only_typed
    from llmrl.experiment.parts import asking

    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    plain = only_typed(command.plain_config(config), overrides)
    if asking(plain) and not any(override.startswith("llm=") for override in overrides):
        # Which model is behind results belongs into the run's name, chosen or not: it may be none at all.
        overrides.append(f"llm={hydra_config.runtime.choices['llm']}")
    return with_digests(plain), overrides


def check(config: dict[str, Any], overrides: list[str]) -> None:
    """Raise ConfigError or LLMError for an experiment that can be refused without building it."""
    from llmrl.experiment.parts import check_means, check_values

    check_values(config)
    if command.starts_anew(config, overrides):
        check_means(config)


def run_reporting(config: dict[str, Any], overrides: list[str]) -> float | None:
    """`run_experiment` as a command, see `command.reporting`."""
    return command.reporting("llmrl-train", run_experiment, config, overrides)


def run_experiment(config: dict[str, Any], overrides: list[str], quiet: bool = False) -> float | None:
    """Run (or resume, or skip) the experiment of a resolved config; the Python API behind `llmrl-train`.

    `quiet` leaves out the tables at the end. Returns the loop's result; None after a dry run.
    """
    from llmrl.cli.report import llm_summary, print_plan, print_skipped, print_summary
    from llmrl.config.input_digests import with_digests
    from llmrl.core.privacy import kept_private
    from llmrl.core.processes import Processes
    from llmrl.config import run_references
    from llmrl.experiment import references
    from llmrl.experiment.arms import shortage
    from llmrl.experiment.distributed_checks import check_alike
    from llmrl.experiment.needed import ensure
    from llmrl.experiment.parts import build_llm, build_loop, build_parts
    from llmrl.llms.transcript import Transcript
    from llmrl.run.joint import open_run
    from llmrl.run.shared import shared_of

    config = with_digests(config)
    processes = Processes.join()
    if config["dry_run"]:
        from llmrl.experiment.plan import plan

        parts = build_parts(config, build_llm(config, None, check=False))
        try:
            planned = plan(config, parts, build_loop(config, parts))
        finally:
            parts.close()
        if processes.leads:
            print_plan(planned)
        return None
    with (
        kept_private(config.get("private", True)),
        open_run(
            Path(config["output_root"]),
            config["name"],
            config,
            overrides,
            config["seed"],
            resume=config["resume"],
            rerun=config["rerun"],
            checkpoint_every_s=config["checkpoint_seconds"],
            processes=processes,
        ) as run,
    ):
        if run.finished:
            if processes.leads and not quiet:
                print_skipped(run)
            return run.result
        llm = build_llm(config, run.folder, stopping=lambda: run.stop.requested)
        run.status.llm = "" if llm is None else llm.label
        run.status.shared = shared_of(config, asks=llm is not None)
        run.metrics.attach(Transcript.TAG, Transcript(run.folder))
        ensure(run_references.needed(config), run)
        parts = build_parts(config, llm, folder=run.folder)
        run.status.env = parts.env.spec.name
        try:
            check_alike(parts.env.spec, processes)
            if processes.leads and (short := shortage(config, parts.principal)) is not None:
                logger.warning("%s", short)
            behind = references.needed(config, parts)
            loop = build_loop(config, parts, lambda: references.known(behind))  # before hours are spent on references
            references.ensure(config, parts, behind, run)
            run.result = loop.run(run)
            run.summary |= llm_summary(llm)
        finally:
            parts.close()
    if processes.leads and not quiet:
        print_summary(run)
    return run.result


def main() -> None:
    """Console script."""
    command.console("llmrl-train", train, "train")


if __name__ == "__main__":
    main()
