"""Checks whether several processes can compute an experiment together (`llmrl.core.processes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.core.processes import ProcessGroup, rank_and_world_size
from llmrl.core.spaces import EnvSpec
from llmrl.experiment.resources import RunResources

Config = Mapping[str, Any]


def check_distributed(config: Config, resources: RunResources) -> None:
    """Raise ConfigError for an experiment that several processes would each compute completely.

    The processes are those of this run, or those that jobs of a cluster will have.
    """
    n = max(resources.hardware.backend.processes, rank_and_world_size()[1])
    if n == 1:
        return
    advice = (
        "start a single process, without torchrun, or with hardware.backend.nodes=1 "
        "hardware.backend.processes_per_node=1"
    )
    if "method" in config:
        raise ConfigError(f"llmrl-finetune trains in one process, and there are {n}; {advice}")
    builder = resources.builder
    model = config.get("llm") or {}
    learns, samples = ((model.get(name) or {}).get("_target_") is not None for name in ("learn", "sampler"))
    # A model that learns divides the requests of its players, unless a server samples the replies.
    players_learn = learns and not samples and builder.needs(config["agent"], "llm", "agent")
    if not (players_learn or builder.needs(config["agent"], "processes", "agent")):
        works = ", ".join(
            name for name, option in options("agent").items() if Builder().needs(option, "processes", "agent")
        )
        raise ConfigError(
            f"{config['agent']['_target_'].rpartition('.')[2]} computes alone, so {n} processes would do the same work "
            f"{n} times. Use an agent whose work can be divided, agent={works}, or agent=llm_player with llm/learn and "
            f"llm/sampler=none; or {advice}"
        )
    for group in ("principal", "teacher") if players_learn else ("principal", "agent", "teacher"):
        if builder.needs(config[group], "llm", group):
            raise ConfigError(
                f"the chosen {group} uses a chat model, to which {n} processes would send each request {n} times; "
                f"{advice}"
            )


def current_processes() -> ProcessGroup:
    """Return the processes that compute the run of this command together.

    Raises:
        ConfigError: there are several processes, but only `llmrl-train` can use them.
    """
    processes, n = ProcessGroup.joined(), rank_and_world_size()[1]
    if processes.world_size != n:
        raise ConfigError(
            f"only llmrl-train can use several processes, and there are {n}; start this command in a single process"
        )
    return processes


def check_deterministic(spec: EnvSpec, processes: ProcessGroup) -> None:
    """Raise ConfigError for an environment whose games would differ between the processes."""
    if processes.world_size > 1 and not spec.deterministic:
        raise ConfigError(
            f"the games of env={spec.name} are not deterministic, and the {processes.world_size} processes of a run "
            "need equal games; start a single process"
        )
