"""`llmrl-finetune`: train the language model that proposes policy parameters, and evaluate it before and after.

Only Hydra is imported here: `--help`, `--cfg job` and shell completion must answer at once.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

if TYPE_CHECKING:
    from llmrl.run.run import Run

PROG = "llmrl-finetune"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BUDGET = 3


@hydra.main(config_path="pkg://llmrl.conf", config_name="finetune", version_base="1.3")
def finetune(config: DictConfig) -> float | None:
    """The task Hydra calls for every job; returns what a sweeper optimises."""
    from llmrl.core.errors import LlmrlError

    try:
        plain, overrides = resolve(config)
    except LlmrlError as error:
        sys.stderr.write(f"\n{PROG}: {error}\n")
        raise SystemExit(EXIT_FAILED) from error
    if plain["hardware"].get("launcher") == "slurm":
        sys.stderr.write(f"{PROG}: hardware=slurm_* submits with --multirun; without it the run is computed here\n")
    return run_reporting(plain, overrides)


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """A composed config as plain data, and what was typed for it; Hydra's own config must be set.

    Raises:
        ConfigError: a value is missing, or data cannot be found.
    """
    from llmrl.cli.finetune_parts import with_digests
    from llmrl.core.errors import ConfigError

    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no default; add {error.full_key}=<value>") from error
    assert isinstance(container, dict)
    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    if not any(override.startswith("method=") for override in overrides):
        # Which method made a model belongs into the run's name, chosen or not.
        overrides.append(f"method={hydra_config.runtime.choices['method']}")
    return with_digests({str(key): value for key, value in container.items()}), overrides


def run_reporting(config: dict[str, Any], overrides: list[str]) -> float | None:
    """`run_experiment` as a command: what a user is to know goes to standard error, the rest is in the exit code.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.core.errors import BudgetExhausted, LlmrlError, RunInUse
    from llmrl.run.run import Stopped
    from llmrl.sweeps.work import EXIT_IN_USE

    for library in ("httpx", "httpcore", "transformers", "datasets"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        return run_experiment(config, overrides)
    except LlmrlError as error:
        sys.stderr.write(f"\n{PROG}: {error}\n")
        code = EXIT_BUDGET if isinstance(error, BudgetExhausted) else EXIT_FAILED
        raise SystemExit(EXIT_IN_USE if isinstance(error, RunInUse) else code) from error
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"\n{PROG}: stopped at once; the same command goes on from the last checkpoint\n")
        raise SystemExit(EXIT_INTERRUPTED) from interrupt
    except Stopped as stopped:
        sys.stderr.write(f"\n{PROG}: {stopped}\n")
        raise SystemExit(stopped.exit_code) from stopped


def run_experiment(config: dict[str, Any], overrides: list[str]) -> float | None:
    """Run (or resume, or skip) the fine-tuning of a resolved config; the Python API behind `llmrl-finetune`.

    Returns the loop's result; None after a dry run.
    """
    from llmrl.cli.finetune_parts import build, check_installed, with_digests
    from llmrl.cli.report import print_plan, print_skipped
    from llmrl.run.run import Run

    check_installed()
    config = with_digests(config)
    if config["dry_run"]:
        with build(config, None) as parts:
            print_plan(parts.plan())
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
        with build(config, run) as parts:
            run.status.env, run.status.llm = parts.task.name, parts.client.label
            run.result = parts.loop.run(run)
    print_finished(run)
    return run.result


def print_finished(run: Run) -> None:
    """What was reached, and how the adapter is used."""
    from llmrl.cli.report import print_rows, print_table, terminal
    from llmrl.finetuning.loop import read_results

    for name, result in (read_results(run.folder) or {}).items():
        rows = [
            [measure.replace("_", " "), *(_cell(result[who][measure]) for who in _COLUMNS)]
            for measure in result["after"]
        ]
        title = f"{result['task']} ({name.replace('_', ' ')}), {result['prompts']} prompts, 95 % intervals"
        print_table(title, ["", *(column.replace("_", " ") for column in _COLUMNS)], rows, sides="l")
    shown = {k: v for k, v in run.summary.items() if isinstance(v, int | float | str)}
    print_rows(
        str(run.folder),
        [(k.replace("_", " "), f"{v:,.4g}" if isinstance(v, float) else f"{v}") for k, v in shown.items()],
    )
    model = run.config["llm"]["model"]
    # Quoted for the shell and for Hydra: names of run folders have equals signs.
    use = f"llm=local_chat llm.model={model} \"llm.adapter='{run.summary['adapter']}'\""
    terminal().print(f"Use it: llmrl-train principal=llm {use} env=... agent=...", soft_wrap=True)


_COLUMNS = ("before", "after", "difference", "random", "incumbent")


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:.3g}"
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def main() -> None:
    """Console script. Hydra has printed why a composition failed; a mistyped field gets the list of valid ones too."""
    try:
        finetune()
    except SystemExit as stop:
        if stop.code == 1 and not isinstance(stop.__cause__, Exception):
            from llmrl.cli.hints import missing_field

            if hint := missing_field(sys.argv[1:], "finetune"):
                sys.stderr.write(f"\n{PROG}: {hint}\n")
        raise


if __name__ == "__main__":
    main()
