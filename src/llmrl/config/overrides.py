"""What is typed, before Hydra sees it: words of Hydra's users that are written otherwise here."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_OPEN = re.compile(r"\w+(\.\w+)*\.(kwargs|arguments|replace)(\.\w+)*=")
"""Overrides of fields whose keys are not in the option's file: arguments of other people's classes, and texts to put in
place of others."""
_LAUNCHERS = ("submitit_slurm", "submitit_local")
"""Launchers of Hydra's submitit plugin, in whose place ours submits with submitit, or computes here."""
_ON_SLURM = {"cpu": "slurm_cpu", "gpu": "slurm_gpu"}
"""Hardware of this machine, and what is like it on a cluster."""
_VALUED = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--package", "-p", "--cfg", "-c"),
    *("--info", "-i", "--experimental-rerun"),
)
"""Flags of Hydra that are followed by a value."""
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
_SUBMITIT = {
    "timeout_min": "hardware.backend.time_min",
    "partition": "hardware.backend.partition",
    "account": "hardware.backend.account",
    "qos": "hardware.backend.qos",
    "constraint": "hardware.backend.constraint",
    "setup": "hardware.backend.setup",
    "srun_args": "hardware.backend.srun_args",
    "additional_parameters": "hardware.backend.extra",
    "nodes": "hardware.backend.nodes",
    "tasks_per_node": "hardware.backend.processes_per_node",
    "cpus_per_task": "hardware.cores",
    "gpus_per_node": "hardware.gpus",
    "mem_gb": "hardware.memory_gb",
    "array_parallelism": "hardware.parallel",
}
"""Options of Hydra's submitit launchers, and what they are called here."""


def opened(argument: str) -> str:
    """Return a command-line argument such that Hydra takes new keys where any key may be meant.

    >>> opened("env.kwargs.g=9.81"), opened("env.horizon=9")
    ('++env.kwargs.g=9.81', 'env.horizon=9')
    """
    return f"++{argument}" if _OPEN.match(argument) else argument


def translated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return command-line arguments in the words of this package, and sentences that say what was changed.

    `+experiment=<option>` chooses as `experiment=<option>` does, `treatment=null` as `treatment=none`, in every group
    that has such an option, which Hydra cannot choose by `null`; `hydra/launcher=submitit_slurm` and `submitit_local`
    choose the hardware whose runs are computed so.

    >>> translated(["+experiment=search/table", "seed=1"])
    (['experiment=search/table', 'seed=1'], [])
    >>> translated(["treatment=null,props", "agent.init_from=null"])
    (['treatment=none,props', 'agent.init_from=null'], [])

    Raises:
        ConfigError: a word has no counterpart; which, and what to write.
    """
    typed = {argument.lstrip("+~").partition("=")[0]: argument.partition("=")[2] for argument in arguments}
    for key in (each for each in _FOLDERS if each in typed):
        raise ConfigError(
            f"{key}: a run's folder is named after what it computes, so that the same command finds it again; write "
            f"output_root={typed[key] or '<folder>'} for where folders are, and name=<name> for what is compared"
        )
    if typed.get("treatment", "").startswith("["):
        raise ConfigError("treatment= is one at a time; --multirun with treatment=a,b compares several")
    plain = (argument.removeprefix("+") if _adds_an_option(argument) else argument for argument in arguments)
    found = [opened(_none_for_null(argument)) for argument in plain]
    chosen = typed.get("hydra/launcher")
    if chosen not in _LAUNCHERS:
        return found, []
    for key in typed:
        if key.startswith("hydra.launcher.") and key != "hydra.launcher.wait":
            name = key.removeprefix("hydra.launcher.")
            there = _SUBMITIT.get(name)
            if there is None:
                raise ConfigError(f"{key} is no option here; those of jobs: {', '.join(sorted(_SUBMITIT.values()))}")
            raise ConfigError(f"{key} is written {there}={typed[key]}")
    found = [argument for argument in found if argument.partition("=")[0] != "hydra/launcher"]
    hardware = typed.get("hardware", "cpu")
    if chosen == "submitit_local":
        return found, [f"hydra/launcher={chosen}: llmrl's own launcher computes runs here, with hardware={hardware}"]
    there = _ON_SLURM.get(hardware, hardware)
    found = [*(argument for argument in found if argument.partition("=")[0] != "hardware"), f"hardware={there}"]
    other = f"; hardware={_ON_SLURM['gpu']} asks for GPUs" if there == _ON_SLURM["cpu"] else ""
    return found, [f"hydra/launcher={chosen}: llmrl's own launcher submits with submitit, with hardware={there}{other}"]


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments with all overrides before the flags, in their order.

    Hydra's parser takes overrides only where none stood before a flag with a value.

    >>> overrides_first(["env=nim", "--config-dir", "conf", "seed=1", "--multirun"])
    ['env=nim', 'seed=1', '--config-dir', 'conf', '--multirun']
    """
    overrides, flags = [], []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        if argument in _VALUED:
            flags += [value for value in [next(rest, None)] if value is not None]
    return [*overrides, *flags]


def _none_for_null(argument: str) -> str:
    """Return an argument with the choice of a group's option `none` where `null` is chosen.

    Raises:
        ConfigError: the group has no such option.
    """
    group, equals, value = argument.partition("=")
    if not equals or not group.isidentifier() or "null" not in value.split(","):
        return argument
    folder = resources.files("llmrl.conf") / group
    if not (folder / "none.yaml").is_file():
        if folder.is_dir():
            raise ConfigError(f"{argument}: null is no option of {group}; --list {group} shows its options")
        return argument
    return f"{group}={','.join('none' if each == 'null' else each for each in value.split(','))}"


def _adds_an_option(argument: str) -> bool:
    """Whether an argument adds an option of a group that every experiment has already."""
    group = argument.removeprefix("+").partition("=")[0]
    if not argument.startswith("+") or argument.startswith("++") or not group.isidentifier():
        return False
    return (resources.files("llmrl.conf") / group).is_dir()


MAX_RUNS = 100_000
"""Most runs of a sweep. Each is composed before the first one starts, at about 20 a second."""


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of every run of a sweep; of several for one key the last counts.

    Raises:
        ConfigError: a key is swept over an interval, which has no values to count, or there are more than `MAX_RUNS`
            runs.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            swept = itertools.islice(override.sweep_string_iterator(), MAX_RUNS + 1)
            values[key] = [f"{key}={value}" for value in swept]
        else:
            raise ConfigError(
                f"{key} is swept over an interval, which has no values to try one by one: name them "
                f"({key}=a,b,c), or search it with hydra/sweeper=optuna"
            )
    if math.prod(len(each) for each in values.values()) > MAX_RUNS:
        swept_keys = ", ".join(key for key, each in values.items() if len(each) > 1)
        raise ConfigError(f"a sweep over {swept_keys} has more than {MAX_RUNS:,} runs; launch it in parts")
    return [list(run) for run in itertools.product(*values.values())]
