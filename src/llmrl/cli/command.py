"""What every Hydra command does around a run: the arguments before Hydra sees them, and an exit code at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmrl.cli.help import answered
from llmrl.run.command_exit import EXIT_FAILED, begin_work, ending, say

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXPLAIN = "--explain"


def task(name: str, config: DictConfig) -> float | None:
    """The task that Hydra calls for every job of the command `name`; returns what a sweeper optimises.

    What is refused before it begins leaves no run folder behind.

    Raises:
        SystemExit: the config is wrong, or the run did not finish.
    """
    from llmrl.core.privacy import keep_private
    from llmrl.core.processes import placed
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.run_job import reporting, run_and_print

    with ending(name):
        experiment = Experiment.of_hydra(config)
        begin_work()
        keep_private(experiment.config.get("private", True))
        experiment.check()
        _, world_size = placed()
    backend = experiment.resources.hardware.backend
    if world_size == 1 and backend.scheduler is not None:
        way = f"{type(backend).__name__} submits runs of --multirun; without it the run is computed here"
        sys.stderr.write(f"{name}: {way}\n")
    with reporting(name):
        return run_and_print(experiment)


def console(name: str, job: Callable[[DictConfig], float | None], config_name: str) -> None:
    """Run a console script: have Hydra compose `config_name` and call `job` with the result.

    Hydra has printed why a composition failed; what was mistyped gets what may have been meant.

    What is created before the config is known is private, and a secret that is typed gets no further than this.
    """
    import hydra

    from llmrl.config.hydra_versions import BASE
    from llmrl.config.installed_options import offer_installed
    from llmrl.config.overrides import overrides_first, translated
    from llmrl.config.trust_options import guard_hydra
    from llmrl.core.option_files import hide_bases
    from llmrl.core.privacy import keep_private
    from llmrl.core.secrets import refuse_arguments
    from llmrl.core.terminal import guard_terminal
    from llmrl.experiment.repeat_run import repeated

    guard_terminal()
    keep_private()
    with ending(name):
        refuse_arguments(sys.argv[1:])
        if answered(name, config_name, sys.argv[1:]):
            return
        sys.argv[1:], said = translated(repeated(name, sys.argv[1:]))
    sys.argv[1:] = overrides_first(sys.argv[1:])
    for line in said:
        say(name, line)
    if any(argument.startswith(("--config-name", "-cn")) for argument in sys.argv[1:]):
        from llmrl.config.suggestions import saved_config

        if mistaken := saved_config(sys.argv[1:]):
            say(name, mistaken)
            raise SystemExit(EXIT_FAILED)
    guard_hydra()
    for problem in offer_installed():
        say(name, problem)
    hide_bases()
    if EXPLAIN in sys.argv:
        from llmrl.cli.explain import explain

        with ending(name):
            explain(config_name, [argument for argument in sys.argv[1:] if argument != EXPLAIN])
        return
    try:
        hydra.main(config_path="pkg://llmrl.conf", config_name=config_name, **BASE)(job)()
    except SystemExit as stop:
        if stop.code == 1 and not isinstance(stop.__cause__, Exception):
            from llmrl.config.suggestions import hint

            if text := hint(sys.argv[1:], config_name):
                say(name, text)
        raise
