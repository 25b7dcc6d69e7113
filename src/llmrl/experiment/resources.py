"""Resources of a run: hardware settings, torch device, processor cores and language model, each made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.trust_options import shell_keys
from llmrl.core.model_protocols import Scorer
from llmrl.core.processes import local_device
from llmrl.core.trust import Trust
from llmrl.llms.client import ChatClient
from llmrl.loops.compute_requests import ExecutorSeat
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.machine import RUNS_BESIDE, Machine

Config = Mapping[str, Any]
Model = ChatClient | Scorer | None


class RunResources:
    """Resources of the run of a config; each is made on first use, and then kept.

    Args:
        config: resolved config in plain containers.
        make_model: function that makes the run's language model, unchecked, or returns None if no part uses one.
        seat: place at an executor that several runs of this process share; None: the run answers its own requests.
    """

    def __init__(
        self,
        config: Config,
        make_model: Callable[[RunResources], Model] = lambda means: None,
        seat: ExecutorSeat | None = None,
    ) -> None:
        self.config, self._make_model, self.seat = config, make_model, seat

    @cached_property
    def hardware(self) -> Hardware:
        """The option of `hardware=` as an object.

        Raises:
            ConfigError: an option is invalid.
        """
        hardware: Hardware = Builder(trusted=self.config["trusted_modules"]).build(self.config["hardware"], "hardware")
        return hardware

    @cached_property
    def device(self) -> str:
        """The torch device; the first access also sets the threads and precision of torch in this process.

        Raises:
            ConfigError: the device is a GPU, and torch sees none on this machine.
        """
        hardware = self.hardware
        own = replace(hardware, cores=hardware.cores_for(game_processes(self.config)))
        return local_device(own.apply(dry=bool(self.config["dry_run"])))

    @cached_property
    def cores(self) -> int:
        """Number of cores for processes that play whole episodes: `hardware.cores`, or else the cores that this process
        may use, divided by the number of runs of a sweep on this machine."""
        if self.hardware.cores is not None:
            return self.hardware.cores
        return max(1, Machine.this().cores // int(os.environ.get(RUNS_BESIDE, "1")))

    @cached_property
    def model(self) -> Model:
        """The language model, unchecked; None if no part uses one. Errors as for `models.model_asked`."""
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

    def check(self) -> None:
        """Raise ConfigError or LLMError if the run cannot be computed here: its device is missing, or its language
        model cannot answer."""
        _ = self.device, self.checked_model

    def join_run(self, folder: Path, stopping: Callable[[], bool]) -> Model:
        """Return the checked model, with its calls logged into the run folder; `stopping` says if the run is to stop.

        Raises:
            ConfigError, LLMError: as `model` and `checked_model`.
        """
        if isinstance(self.model, ChatClient):
            self.model.join_run(folder, stopping)
        return self.checked_model

    def away(self) -> AbstractContextManager[None]:
        """Return a context in which the run may wait for long and makes no requests; other runs do not wait for it."""
        return nullcontext() if self.seat is None else self.seat.away()

    def close(self) -> None:
        """Close the model, if there is one; the next access makes it again."""
        self.__dict__.pop("checked_model", None)
        if isinstance(model := self.__dict__.pop("model", None), ChatClient):
            model.close()


def check_command_lines(config: Config) -> None:
    """Raise ConfigError if a file has set a command line of jobs that is not trusted."""
    trusted = config["trusted_modules"]
    Trust(tuple(trusted)).check_shell(shell_keys(config["hardware"], trusted))


def game_processes(config: Config) -> int:
    """Return the number of game processes beside the run's own; 0 for a config without games, or for fine-tuning."""
    if "env" not in config or "method" in config:
        return 0  # in fine-tuning, games and training take turns
    env = Builder(trusted=config["trusted_modules"]).locate(config["env"]["_target_"], "env")
    counted = getattr(env, "game_processes", None)
    return 0 if counted is None else int(counted(config["env"]))
