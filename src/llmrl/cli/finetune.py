"""`llmrl-finetune`: train the language model that proposes policy parameters, and evaluate it before and after.

Only Hydra is imported here: `--help`, `--cfg job` and shell completion must answer at once.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from llmrl.cli import command
from llmrl.config.again import spelt

if TYPE_CHECKING:
    from llmrl.run.run import Run

PROG = "llmrl-finetune"


@hydra.main(config_path="pkg://llmrl.conf", config_name="finetune", version_base="1.3")
def finetune(config: DictConfig) -> float | None:
    """The task Hydra calls for every job; returns what a sweeper optimises."""
    return command.task(PROG, config, resolve, check, run_experiment)


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """A composed config as plain data, and what was typed for it; Hydra's own config must be set.

    Raises:
        ConfigError: a value is missing, data cannot be found, or a file says which code is to be trusted.
    """
    from llmrl.config.trusting import only_typed
    from llmrl.experiment.finetuning import with_digests

    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    plain = only_typed(command.plain_config(config), overrides)
    if not any(override.startswith("method=") for override in overrides):
        # Which method made a model belongs into the run's name, chosen or not.
        overrides.append(f"method={hydra_config.runtime.choices['method']}")
    return with_digests(plain), overrides


def check(config: dict[str, Any], overrides: list[str]) -> None:
    """Raise ConfigError or LLMError for a run that can be refused without building it."""
    from llmrl.experiment.finetuning import check_installed, check_values
    from llmrl.experiment.parts import build_model, check_means

    check_installed()
    check_values(config)
    if command.starts_anew(config, overrides):
        check_means(config, build_model)


def run_reporting(config: dict[str, Any], overrides: list[str]) -> float | None:
    """`run_experiment` as a command, see `command.reporting`."""
    return command.reporting(PROG, run_experiment, config, overrides)


def run_experiment(config: dict[str, Any], overrides: list[str]) -> float | None:
    """Run (or resume, or skip) the fine-tuning of a resolved config; the Python API behind `llmrl-finetune`.

    Returns the loop's result; None after a dry run.
    """
    from llmrl.cli.report import print_plan, print_skipped
    from llmrl.core.privacy import kept_private
    from llmrl.experiment.finetuning import build, check_installed, with_digests
    from llmrl.run.run import Run

    check_installed()
    config = with_digests(config)
    if config["dry_run"]:
        with build(config, None) as parts:
            print_plan(parts.plan())
        return None
    with (
        kept_private(config.get("private", True)),
        Run.open(
            Path(config["output_root"]),
            config["name"],
            config,
            overrides,
            config["seed"],
            resume=config["resume"],
            rerun=config["rerun"],
            checkpoint_every_s=config["checkpoint_seconds"],
        ) as run,
    ):
        if run.finished:
            print_skipped(run)
            return run.result
        with build(config, run) as parts:
            run.status.env, run.status.llm = parts.task.name, parts.client.label
            run.result = parts.loop.run(run)
    print_finished(run, overrides)
    return run.result


def print_finished(run: Run, overrides: list[str]) -> None:
    """What was reached, and how the adapter is used; `overrides` are those of the run."""
    from llmrl.cli.report import print_misgiving, print_rows, print_table, terminal
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
    print_misgiving(terminal(), run.summary)
    terminal().print(f"Use it: {use_of(run.config, run.summary['adapter'], overrides)}", soft_wrap=True)


def use_of(config: dict[str, Any], adapter: str, overrides: list[str]) -> str:
    """The command of a search whose prompts are like those that an adapter was trained on."""
    model = [
        f"llm.{key}={_for_hydra(value)}" for key, value in (("model", config["llm"]["model"]), ("adapter", adapter))
    ]
    same = [typed for typed in overrides if _SAME.match(typed)]
    told = [f"search.{name}={config['dataset'][name]}" for name in ("iterations", "episodes")]
    return shlex.join(["llmrl-train", "principal=llm", "llm=local_chat", *model, *same, *told])


def _for_hydra(value: str) -> str:
    """A text as the value of an override."""
    return value if _PLAIN.fullmatch(value) else spelt(value)


_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_SAME = re.compile(r"\+{0,2}((env|agent|prompts)[.=]|principal\.|llm\.(max_tokens|chat_template|context_window|dtype))")
_COLUMNS = ("before", "after", "difference", "random", "incumbent")


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:.3g}"
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def main() -> None:
    """Console script."""
    command.console(PROG, finetune, "finetune")


if __name__ == "__main__":
    main()
