"""Resources of a run: hardware settings, torch device, cores, language model and sinks of metrics, each made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.config.builder import Builder, Config
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.processes import local_device
from llmrl.llms.client import ChatClient
from llmrl.run.sink import Sink
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.machine import N_PARALLEL_RUNS_VARIABLE, Machine

if TYPE_CHECKING:
    from llmrl.loops.batched_executor import RunConnection

Model = ChatClient | Scorer | None

CALL_POLICY_KEYS = (
    "cache",
    "cache_dir",
    "share_cache",
    "failures",
    "retry",
    "limits",
    "budget",
    "max_invalid",
    "variants",
)
"""Keys of the config's `llm` that determine how a model is called; the other keys determine the model."""


class RunResources:
    """Resources of the run of a config; each is made on first use and then reused.

    Args:
        config: resolved config as plain data.
        make_model: function that builds the run's language model, unchecked, or returns None if no part uses one.
        connection: connection to an executor that several runs of this process share; None: the run answers its own
            requests.
    """

    def __init__(
        self,
        config: Config,
        make_model: Callable[[RunResources], Model] = lambda resources: None,
        connection: RunConnection | None = None,
    ) -> None:
        self.config, self._make_model, self.connection = config, make_model, connection

    @cached_property
    def builder(self) -> Builder:
        """Builder of the run's parts, which validates each node of the config once."""
        return Builder(trusted=self.config["trusted_modules"])

    @cached_property
    def model_nodes(self) -> tuple[Config, Config]:
        """The two nodes of `llm=` (`model_nodes`)."""
        return model_nodes(self.config["llm"])

    @cached_property
    def hardware(self) -> Hardware:
        """The option of `hardware=` as an object.

        Raises:
            ConfigError: an option is invalid.
        """
        hardware: Hardware = self.builder.build(self.config["hardware"], "hardware")
        return hardware

    @cached_property
    def device(self) -> str:
        """The torch device; the first access also sets the threads and precision of torch in this process.

        Raises:
            ConfigError: the device is a GPU, and torch sees none on this machine.
        """
        hardware = self.hardware
        local_hardware = replace(hardware, cores=hardware.cores_for(game_processes(self.config, self.builder)))
        return local_device(local_hardware.apply(dry=bool(self.config["dry_run"])))

    @cached_property
    def cores(self) -> int:
        """Number of cores for processes that play whole episodes.

        It is `hardware.cores`, or else the cores that this process may use, divided by the number of runs of a sweep on
        this machine.
        """
        if self.hardware.cores is not None:
            return self.hardware.cores
        return max(1, Machine.detect().cores // int(os.environ.get(N_PARALLEL_RUNS_VARIABLE, "1")))

    @cached_property
    def model(self) -> Model:
        """The language model, unchecked; None if no part uses one. Errors as for `models.build_used_model`."""
        return self._make_model(self)

    @cached_property
    def checked_model(self) -> Model:
        """The language model, after a check that it can answer; None if no part uses one.

        Raises:
            LLMError: the model cannot answer (missing key, server down).
        """
        if self.model is not None:
            self.model.check()
        return self.model

    def join_run(self, folder: Path, should_stop: Callable[[], bool]) -> Model:
        """Return the checked model, with its calls logged into the run folder.

        `should_stop` returns whether the run should stop.

        Raises:
            ConfigError, LLMError: as `model` and `checked_model`.
        """
        if isinstance(self.model, ChatClient):
            self.model.join_run(folder, should_stop)
        return self.checked_model

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        """The sinks that get metrics in addition to `metrics.jsonl`, by option name; they are not opened yet.

        Raises:
            ConfigError: an object is not a sink, has an invalid option, or needs a key or a library that is missing.
        """
        nodes: Config = self.config.get("loggers") or {}
        sinks = {name: self.builder.build(node, f"loggers.{name}") for name, node in nodes.items()}
        for name, sink in sinks.items():
            if not isinstance(sink, Sink | None):
                target = nodes[name]["_target_"]
                raise ConfigError(f"loggers.{name}._target_={target} is not a sink; derive it from llmrl.run.sink.Sink")
        return {name: sink for name, sink in sinks.items() if sink is not None}

    def check_sinks(self) -> None:
        """Raise ConfigError for an invalid option of a sink; nothing is built."""
        for name, node in (self.config.get("loggers") or {}).items():
            self.builder.validate(node, f"loggers.{name}")

    def detached(self) -> AbstractContextManager[None]:
        """Return a context manager for a long wait without requests, in which other runs do not wait for this one."""
        return nullcontext() if self.connection is None else self.connection.detached()

    def close(self) -> None:
        """Close the model, if there is one; the next access makes it again."""
        self.__dict__.pop("checked_model", None)
        if isinstance(model := self.__dict__.pop("model", None), ChatClient):
            model.close()


def model_options(llm: Config) -> dict[str, Any]:
    """Return the keys of an option of llm= that determine the model."""
    return {name: value for name, value in llm.items() if name not in CALL_POLICY_KEYS}


def model_nodes(llm: Config) -> tuple[Config, Config]:
    """Return the nodes to build the model of `llm` from: the model, and the client that calls it.

    A model that is trained has no client: invalid replies are expected until it has learned.
    """
    policies = {name: value for name, value in llm.items() if name in CALL_POLICY_KEYS and name != "variants"}
    return model_options(llm), {"_target_": "llmrl.llms.client.build_client", **policies}


def game_processes(config: Config, builder: Builder | None = None) -> int:
    """Return the number of game processes besides the run's own; 0 for a config without games, or for fine-tuning."""
    if "env" not in config or "method" in config:
        return 0  # in fine-tuning, games and training take turns
    env = (builder or Builder(trusted=config["trusted_modules"])).locate(config["env"]["_target_"], "env")
    count_processes = getattr(env, "game_processes", None)
    return 0 if count_processes is None else int(count_processes(config["env"]))
