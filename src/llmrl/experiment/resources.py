"""Resources of a run, each created once: hardware settings, torch device, cores, language model, sinks of metrics."""

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
from llmrl.sweeps.machine import N_PARALLEL_PROCESSES_VARIABLE, Machine

if TYPE_CHECKING:
    from llmrl.loops.batched_executor import RunConnection

Model = ChatClient | Scorer | None

CALL_POLICY_KEYS = (
    *("cache", "cache_dir", "share_cache", "failures", "retry", "limits", "budget", "max_invalid", "variants"),
)
"""Keys of the config's node `llm` that do not determine its model, but how models are called, or other models."""


class RunResources:
    """Resources of the run of a config; each is created on first use and then reused.

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
        """The nodes of the language model and of its client (`split_llm_option`)."""
        return split_llm_option(self.config["llm"])

    @cached_property
    def hardware(self) -> Hardware:
        """The settings of the config's node `hardware`.

        Raises:
            ConfigError: an option is invalid.
        """
        return self.builder.build(self.config["hardware"], "hardware")

    @cached_property
    def device(self) -> str:
        """The torch device; the first access also sets the threads and precision of torch in this process.

        Raises:
            ConfigError: the device is a GPU, and torch sees none on this machine.
        """
        n_cores = self.hardware.count_cores(count_game_processes(self.config, self.builder))
        return local_device(replace(self.hardware, cores=n_cores).configure_torch(dry_run=bool(self.config["dry_run"])))

    @cached_property
    def cores(self) -> int:
        """Number of cores for processes that play whole episodes.

        It is `hardware.cores`. By default it is the number of cores that this process may use, divided by the number of
        runs that a sweep computes at the same time on this machine.
        """
        if self.hardware.cores is not None:
            return self.hardware.cores
        return max(1, Machine.detect().cores // int(os.environ.get(N_PARALLEL_PROCESSES_VARIABLE, "1")))

    @cached_property
    def model(self) -> Model:
        """The language model, unchecked; None if no part uses one. For errors see `models.build_used_model`."""
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
        """Log the model's calls in the run folder, and return the checked model.

        While `should_stop()` is true, the model makes no further calls.

        Raises:
            ConfigError, LLMError: see `model` and `checked_model`.
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
        """Return a context manager for slow work without requests; other runs of the process do not wait for it."""
        return nullcontext() if self.connection is None else self.connection.detached()

    def close(self) -> None:
        """Close the model, if there is one; the next access creates a new model."""
        self.__dict__.pop("checked_model", None)
        if isinstance(model := self.__dict__.pop("model", None), ChatClient):
            model.close()


def model_options(llm: Config) -> dict[str, Any]:
    """Return the part of an option of llm= that determines the model (without `CALL_POLICY_KEYS`)."""
    return {name: value for name, value in llm.items() if name not in CALL_POLICY_KEYS}


def split_llm_option(llm: Config) -> tuple[Config, Config]:
    """Split an option of llm= into the node of the model and the node of the client that calls it."""
    policies = {name: value for name, value in llm.items() if name in CALL_POLICY_KEYS and name != "variants"}
    return model_options(llm), {"_target_": "llmrl.llms.client.build_client", **policies}


def count_game_processes(config: Config, builder: Builder | None = None) -> int:
    """Return the number of processes that an environment starts for its games; 0 without games or for fine-tuning."""
    if "env" not in config or "method" in config:
        return 0  # in fine-tuning, games and training take turns
    env = (builder or Builder(trusted=config["trusted_modules"])).locate(config["env"]["_target_"], "env")
    count_processes = getattr(env, "game_processes", None)
    return 0 if count_processes is None else int(count_processes(config["env"]))
