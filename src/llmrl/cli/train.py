"""`llmrl-train`: compose an experiment from config groups and run it.

Modules that are slow to import are imported in functions, so that `main` handles Ctrl-C during these imports, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmrl.cli.help import explain_options, print_help_if_requested
from llmrl.run.command_exit import end_composition, exit_on_error, handle_interrupt, print_message

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXPLAIN_FLAG = "--explain"


def run_task(name: str, config: DictConfig) -> float | None:
    """Compute the run of a composed config for the command `name`; return the scalar that a sweeper optimizes.

    The config is checked first; if a check fails, no run folder is created.

    Raises:
        SystemExit: the config is invalid, or the run did not finish.
    """
    from llmrl.core.privacy import restrict_file_permissions
    from llmrl.core.processes import read_rank_and_world_size
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.run_job import report_errors, run_and_print

    with exit_on_error(name):
        experiment = Experiment.from_hydra(config)
        end_composition()
        restrict_file_permissions(experiment.config.get("private", True))
        experiment.check()
        _, world_size = read_rank_and_world_size()
    backend = experiment.resources.hardware.backend
    if world_size == 1 and backend.scheduler is not None:
        print_message(name, f"{type(backend).__name__} is used only with --multirun; this process computes the run")
    with report_errors(name):
        return run_and_print(experiment)


def run_console_script(name: str, task_function: Callable[[DictConfig], float | None], config_name: str) -> None:
    """Run the console script `name`: Hydra composes the primary config `config_name` and calls `task_function` with it.

    Secrets in arguments are refused. Files that are created before the config is composed are private.
    """
    import hydra

    from llmrl.config.hydra_hooks import VERSION_BASE_ARGUMENTS, patch_hydra
    from llmrl.config.overrides import move_overrides_first, to_hydra_arguments
    from llmrl.core.privacy import restrict_file_permissions
    from llmrl.core.secrets import check_no_secrets_in_arguments
    from llmrl.core.terminal import guard_output

    guard_output()
    restrict_file_permissions()
    with exit_on_error(name):
        check_no_secrets_in_arguments(sys.argv[1:])
        if print_help_if_requested(name, config_name, sys.argv[1:]):
            return
        sys.argv[1:] = to_hydra_arguments(sys.argv[1:])
    sys.argv[1:] = move_overrides_first(sys.argv[1:])
    for problem in patch_hydra():
        print_message(name, problem)
    if EXPLAIN_FLAG in sys.argv:
        with exit_on_error(name):
            explain_options(config_name, [argument for argument in sys.argv[1:] if argument != EXPLAIN_FLAG])
        return
    hydra.main(config_path="pkg://llmrl.conf", config_name=config_name, **VERSION_BASE_ARGUMENTS)(task_function)()


def train(config: DictConfig) -> float | None:
    """Compute the run of a config that Hydra has composed; return the scalar that a sweeper optimizes."""
    return run_task("llmrl-train", config)


@handle_interrupt("llmrl-train", composes_config=True)
def main() -> None:
    """Run the console script `llmrl-train`."""
    run_console_script("llmrl-train", train, "train")


if __name__ == "__main__":
    main()
