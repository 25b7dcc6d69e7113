"""Which experiments several processes can compute together (`llmrl.core.processes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.core.processes import ProcessGroup, placed
from llmrl.core.spaces import EnvSpec
from llmrl.experiment.resources import RunResources

Config = Mapping[str, Any]


def check_together(config: Config, resources: RunResources) -> None:
    """Raise ConfigError for an experiment of which several processes would compute the same, each all of it: those that
    are there, or those that jobs of a cluster will have."""
    n = max(resources.hardware.backend.processes, placed()[1])
    if n == 1:
        return
    fewer = "start it as one process: no torchrun, hardware.backend.nodes=1 hardware.backend.processes_per_node=1"
    if "method" in config:
        raise ConfigError(f"llmrl-finetune trains in one process, and there are {n}; {fewer}")
    builder = Builder(trusted=config["trusted_modules"])
    if not builder.needs(config["agent"], "processes", "agent"):
        works = ", ".join(
            name for name, option in options("agent").items() if Builder().needs(option, "processes", "agent")
        )
        raise ConfigError(
            f"{config['agent']['_target_'].rpartition('.')[2]} computes alone, so {n} processes would do the same {n} "
            f"times; agents that share their work: agent={works}. Else {fewer}"
        )
    for group in ("principal", "agent", "teacher"):
        if builder.needs(config[group], "llm", group):
            raise ConfigError(f"the chosen {group} asks a chat model, which {n} processes would ask {n} times; {fewer}")


def processes_here() -> ProcessGroup:
    """The processes that compute the run of this command together.

    Raises:
        ConfigError: there are several, and the command is none that they could share.
    """
    processes, n = ProcessGroup.joined(), placed()[1]
    if processes.world_size != n:
        raise ConfigError(
            f"only llmrl-train computes in several processes, and there are {n}; start this command as one"
        )
    return processes


def check_alike(spec: EnvSpec, processes: ProcessGroup) -> None:
    """Raise ConfigError for an environment whose games would not be the same in all of the processes."""
    if processes.world_size > 1 and not spec.deterministic:
        raise ConfigError(
            f"{spec.name}'s engine plays other games each time, and the {processes.world_size} processes of a run need "
            "the same ones; start it as one process"
        )
