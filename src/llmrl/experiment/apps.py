"""Which command a config belongs to, for what handles runs of any of them: launchers, sweepers, `llmrl-sweep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class App:
    """A command that computes runs.

    Attributes:
        name: of the command.
        resolve: a composed config as plain data, and what was typed for it.
        run_experiment: computes a run.
        run_reporting: the same as a command, see `compute`.
        check_values: raises ConfigError for values that no run could be built with.
        game_processes: processes beside the run's own that it keeps busy.
    """

    name: str
    resolve: Callable[[Any], tuple[Config, list[str]]]
    run_experiment: Callable[[Config, list[str]], float | None]
    run_reporting: Callable[[Config, list[str]], float | None]
    check_values: Callable[[Config], None]
    game_processes: Callable[[Config], int]


def app_of(config: Mapping[Any, Any]) -> App:
    """The command of a config, composed or resolved: what has a method of training is for `llmrl-finetune`."""
    if "method" in config:
        from llmrl.cli import finetune
        from llmrl.experiment import finetuning as finetune_parts

        return App(
            "llmrl-finetune",
            finetune.resolve,
            finetune.run_experiment,
            finetune.run_reporting,
            finetune_parts.check_values,
            finetune_parts.game_processes,
        )
    from llmrl.cli import train
    from llmrl.experiment import parts as compose

    return App(
        "llmrl-train",
        train.resolve,
        train.run_experiment,
        train.run_reporting,
        compose.check_values,
        compose.game_processes,
    )


def compute(config: Config, overrides: list[str]) -> float | None:
    """Compute a run with the command it belongs to: what a user is to know goes to standard error, the rest is in the
    exit code.

    Raises:
        SystemExit: the run did not finish.
    """
    return app_of(config).run_reporting(config, overrides)
