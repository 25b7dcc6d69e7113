"""What every Hydra command does around a run: plain config in, exit code and a few lines for the user out."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from llmrl.cli.ending import EXIT_FAILED, EXIT_INTERRUPTED, ending, say

Config = dict[str, Any]
Resolve = Callable[[DictConfig], tuple[Config, list[str]]]
Compute = Callable[[Config, list[str]], float | None]
Check = Callable[[Config, list[str]], None]

_OPEN = re.compile(r"\w+(\.\w+)*\.(kwargs|arguments|replace)(\.\w+)*=")
"""Overrides of fields whose keys are not in the option's file: arguments of other people's classes, and texts to put in
place of others."""
_TALKATIVE = ("httpx", "httpcore", "LiteLLM", "transformers", "datasets")
"""Libraries that tell of every request or file; failures are told by us."""


def plain_config(config: DictConfig) -> Config:
    """A composed config as plain data; Hydra's own config must be set.

    Raises:
        ConfigError: a value is missing, or an option has been taken out, or is a secret, or is to be read from where
            secrets are.
    """
    from hydra.core.hydra_config import HydraConfig

    from llmrl.config.suggestions import removed
    from llmrl.core.errors import ConfigError
    from llmrl.core.secrets import refuse

    if out := removed(HydraConfig.get().overrides.task):
        raise ConfigError(out)
    unresolved = OmegaConf.to_container(config, resolve=False)
    assert isinstance(unresolved, dict)
    refuse(unresolved)
    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no default; add {error.full_key}=<value>") from error
    assert isinstance(container, dict)
    refuse(container)
    return {str(key): value for key, value in container.items()}


def task(name: str, config: DictConfig, resolve: Resolve, check: Check, compute: Compute) -> float | None:
    """The task Hydra calls for every job of the command `name`; returns what a sweeper optimises.

    What `check` refuses leaves no run folder behind.

    Raises:
        SystemExit: the config is wrong, or the run did not finish.
    """
    from llmrl.core.privacy import keep_private
    from llmrl.core.processes import placed

    with ending(name):
        plain, overrides = resolve(config)
        keep_private(plain.get("private", True))
        check(plain, overrides)
        _, world_size = placed()
    if plain["hardware"].get("launcher") == "slurm" and world_size == 1:
        sys.stderr.write(f"{name}: hardware=slurm_* submits with --multirun; without it the run is computed here\n")
    return reporting(name, compute, plain, overrides)


def starts_anew(config: Config, overrides: list[str]) -> bool:
    """Whether a run is to be computed that has no folder yet; what is wrong with one that has is recorded there.

    Raises:
        RunFolderError: there can be no such folder.
    """
    from pathlib import Path

    from llmrl.run.folder import find_folder

    root = Path(config["output_root"])
    return not config["dry_run"] and not find_folder(root, config["name"], config, overrides, config["seed"]).exists()


def reporting(name: str, compute: Compute, config: Config, overrides: list[str]) -> float | None:
    """`compute` as a command: what a user is to know goes to standard error, the rest is in the exit code. Of several
    processes of a run only the first speaks; what becomes of the others it learns.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.core.printable import print_records
    from llmrl.core.processes import leaving_together

    print_records()
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    with leaving_together():
        return _reporting(name, compute, config, overrides)


def _reporting(name: str, compute: Compute, config: Config, overrides: list[str]) -> float | None:
    from llmrl.core.errors import LlmrlError
    from llmrl.core.processes import Processes
    from llmrl.run.run import Stopped

    def tell(name: str, text: object) -> None:
        if Processes.joined().leads:
            say(name, text)

    try:
        with ending(name, tell):
            try:
                return compute(config, overrides)
            except KeyboardInterrupt as interrupt:
                tell(name, "stopped at once; the same command goes on from the last checkpoint")
                raise SystemExit(EXIT_INTERRUPTED) from interrupt
            except Stopped as stopped:
                tell(name, stopped)
                raise SystemExit(stopped.exit_code) from stopped
    except SystemExit as stop:
        cause = stop.__cause__
        if _under_another_launcher() and isinstance(cause, Exception) and not isinstance(cause, LlmrlError):
            raise cause from None
        raise


def _under_another_launcher() -> bool:
    """Whether this is a run of a sweep whose launcher is not ours: those take an exception for the end of that run, and
    an exit for the end of all."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized():
        return False
    own = HydraConfig.get()
    return own.mode == RunMode.MULTIRUN and not str(own.launcher.get("_target_")).startswith("hydra_plugins.llmrl")


def opened(argument: str) -> str:
    """A command-line argument, such that Hydra takes new keys where any key may be meant.

    >>> opened("env.kwargs.g=9.81"), opened("env.horizon=9")
    ('++env.kwargs.g=9.81', 'env.horizon=9')
    """
    return f"++{argument}" if _OPEN.match(argument) else argument


def console(name: str, app: Callable[[], Any], config_name: str) -> None:
    """Console script. Hydra has printed why a composition failed; what was mistyped gets what may have been meant.

    What is created before the config is known is private, and a secret that is typed gets no further than this.
    """
    from llmrl.config.again import repeated
    from llmrl.config.trusting import guard_hydra
    from llmrl.core.privacy import keep_private
    from llmrl.core.secrets import refuse_arguments
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    keep_private()
    with ending(name):
        refuse_arguments(sys.argv[1:])
        sys.argv[1:] = repeated(name, sys.argv[1:])
    sys.argv[1:] = [opened(argument) for argument in sys.argv[1:]]
    if any(argument.startswith(("--config-name", "-cn")) for argument in sys.argv[1:]):
        from llmrl.config.suggestions import saved_config

        if mistaken := saved_config(sys.argv[1:]):
            say(name, mistaken)
            raise SystemExit(EXIT_FAILED)
    guard_hydra()
    try:
        app()
    except SystemExit as stop:
        if stop.code == 1 and not isinstance(stop.__cause__, Exception):
            from llmrl.config.suggestions import hint

            if text := hint(sys.argv[1:], config_name):
                say(name, text)
        raise
