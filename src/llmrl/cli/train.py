"""`llmrl-train`: compose an experiment from config groups and run it.

Only Hydra is imported here: `--help`, `--cfg job` and shell completion must answer at once.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BUDGET = 3
"""The run's budget for language models is used up; with a larger one the same command goes on."""


@hydra.main(config_path="pkg://llmrl.conf", config_name="train", version_base="1.3")
def train(config: DictConfig) -> float | None:
    """The task Hydra calls for every job; returns what a sweeper optimises."""
    from llmrl.core.errors import LlmrlError

    try:
        plain, overrides = resolve(config)
    except LlmrlError as error:
        sys.stderr.write(f"\nllmrl-train: {error}\n")
        raise SystemExit(EXIT_FAILED) from error
    if plain["hardware"].get("launcher") == "slurm":
        sys.stderr.write("llmrl-train: hardware=slurm_* submits with --multirun; without it the run is computed here\n")
    return run_reporting(plain, overrides)


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """A composed config as plain data, and what was typed for it; Hydra's own config must be set.

    Raises:
        ConfigError: a value is missing, or a part cannot be found.
    """
    from llmrl.cli.compose import asks_for_llm
    from llmrl.cli.outside import with_digests
    from llmrl.core.errors import ConfigError

    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no default; add {error.full_key}=<value>") from error
    assert isinstance(container, dict)
    plain = {str(key): value for key, value in container.items()}
    if asks_for_llm(plain) and not any(override.startswith("llm=") for override in overrides):
        # Which model is behind results belongs into the run's name, chosen or not: it may be none at all.
        overrides.append(f"llm={hydra_config.runtime.choices['llm']}")
    return with_digests(plain), overrides


def run_reporting(config: dict[str, Any], overrides: list[str]) -> float | None:
    """`run_experiment` as a command: what a user is to know goes to standard error, the rest is in the exit code.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.core.errors import BudgetExhausted, LlmrlError, RunInUse
    from llmrl.run.run import Stopped
    from llmrl.sweeps.work import EXIT_IN_USE

    # Libraries that tell of every request; failures are told by us.
    for library in ("httpx", "httpcore", "LiteLLM"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        return run_experiment(config, overrides)
    except LlmrlError as error:
        sys.stderr.write(f"\nllmrl-train: {error}\n")
        code = EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED
        raise SystemExit(EXIT_IN_USE if isinstance(error, RunInUse) else code) from error
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("\nllmrl-train: stopped at once; the same command goes on from the last checkpoint\n")
        raise SystemExit(EXIT_INTERRUPTED) from interrupt
    except Stopped as stopped:
        sys.stderr.write(f"\nllmrl-train: {stopped}\n")
        raise SystemExit(stopped.exit_code) from stopped


def run_experiment(config: dict[str, Any], overrides: list[str]) -> float | None:
    """Run (or resume, or skip) the experiment of a resolved config; the Python API behind `llmrl-train`.

    Returns the loop's result; None after a dry run.
    """
    from llmrl.cli.compose import build_llm, build_loop, build_parts
    from llmrl.cli.outside import with_digests
    from llmrl.cli.report import llm_summary, print_plan, print_skipped, print_summary
    from llmrl.llms.transcript import Transcript
    from llmrl.run.run import Run

    config = with_digests(config)
    if config["dry_run"]:
        from llmrl.cli.plan import plan

        parts = build_parts(config, build_llm(config, None, check=False))
        try:
            print_plan(plan(config, parts, build_loop(config, parts)))
        finally:
            parts.close()
        return None
    with Run.open(
        Path(config["output_root"]),
        config["name"],
        config,
        overrides,
        config["seed"],
        resume=config["resume"],
        rerun=config["rerun"],
        checkpoint_every_s=config["checkpoint_seconds"],
    ) as run:
        if run.finished:
            print_skipped(run)
            return run.result
        llm = build_llm(config, run.folder, stopping=lambda: run.stop.requested)
        run.status.llm = "" if llm is None else llm.label
        run.metrics.attach(Transcript.TAG, Transcript(run.folder))
        parts = build_parts(config, llm, folder=run.folder)
        run.status.env = parts.env.spec.name
        try:
            run.result = build_loop(config, parts).run(run)
            run.summary |= llm_summary(llm)
        finally:
            parts.close()
    print_summary(run)
    return run.result


def main() -> None:
    """Console script. Hydra has printed why a composition failed; a mistyped field gets the list of valid ones too."""
    try:
        train()
    except SystemExit as stop:
        if stop.code == 1 and not isinstance(stop.__cause__, Exception):
            from llmrl.cli.hints import missing_field

            if hint := missing_field(sys.argv[1:]):
                sys.stderr.write(f"\nllmrl-train: {hint}\n")
        raise


if __name__ == "__main__":
    main()
