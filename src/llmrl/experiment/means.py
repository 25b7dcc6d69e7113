"""What a run is computed with: the machine's share, the torch device and the language model, each made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.trusting import shell_keys
from llmrl.core.processes import local_device
from llmrl.core.protocols import Scorer
from llmrl.core.trust import Trust
from llmrl.llms.client import ChatClient
from llmrl.loops.requests import Seat
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.machine import RUNS_BESIDE, Machine

Config = Mapping[str, Any]
Model = ChatClient | Scorer | None


class Means:
    """What the run of a config is computed with. Each is made when it is first asked for, and then kept.

    Args:
        config: resolved, plain containers.
        make_model: makes the language model for the run on a device, unchecked; None: none is asked.
        seat: where the run's requests to play and to update are answered; None: where they are asked.
    """

    def __init__(
        self, config: Config, make_model: Callable[[Means], Model] = lambda means: None, seat: Seat | None = None
    ) -> None:
        self.config, self._make_model, self.seat = config, make_model, seat

    @cached_property
    def hardware(self) -> Hardware:
        """What `hardware=` says.

        Raises:
            ConfigError: a field makes no sense.
        """
        hardware: Hardware = Builder(trusted=self.config["trusted_modules"]).build(self.config["hardware"], "hardware")
        return hardware

    @cached_property
    def device(self) -> str:
        """The torch device, with torch set up on the way.

        Raises:
            ConfigError: hardware=gpu on a machine where torch sees none.
        """
        hardware = self.hardware
        own = replace(hardware, cores=hardware.cores_for(game_processes(self.config)))
        return local_device(own.apply(dry=bool(self.config["dry_run"])))

    @cached_property
    def cores(self) -> int:
        """Cores for worker processes that play whole episodes: the run's, or else all that this process may use, of
        which a run of a sweep has its share."""
        if self.hardware.cores is not None:
            return self.hardware.cores
        return max(1, Machine.this().cores // int(os.environ.get(RUNS_BESIDE, "1")))

    @cached_property
    def model(self) -> Model:
        """The language model, if a part asks for one; see `models.build_llm` for what it raises."""
        return self._make_model(self)

    @cached_property
    def checked_model(self) -> Model:
        """The language model, found able to answer.

        Raises:
            LLMError: it could never answer (missing key, server down).
        """
        if self.model is not None:
            self.model.check()
        return self.model

    def check(self) -> None:
        """Raise ConfigError or LLMError for a run that could not be computed here: there is no such device, or its
        language model could never answer."""
        _ = self.device, self.checked_model

    def join_run(self, folder: Path, stopping: Callable[[], bool]) -> Model:
        """Return the model, its calls from now on logged into the folder of a run, which `stopping` tells to stop.

        Raises:
            ConfigError, LLMError: as `model` and `checked_model`.
        """
        if isinstance(self.model, ChatClient):
            self.model.join_run(folder, stopping)
        return self.checked_model

    def away(self) -> AbstractContextManager[None]:
        """A span in which the run may wait for long and asks for nothing, so that runs beside it go on."""
        return nullcontext() if self.seat is None else self.seat.away()

    def close(self) -> None:
        """Let go of the model, if there is one; it can be made again."""
        self.__dict__.pop("checked_model", None)
        if isinstance(model := self.__dict__.pop("model", None), ChatClient):
            model.close()


def check_command_lines(config: Config) -> None:
    """Raise ConfigError for a config of jobs in which a file has put a command line that is not trusted."""
    trusted = config["trusted_modules"]
    Trust(tuple(trusted)).check_shell(shell_keys(config["hardware"], trusted))


def game_processes(config: Config) -> int:
    """Processes beside the run's own that its games keep busy; a model that is asked alone has no games."""
    if "env" not in config or "method" in config:
        return 0  # games of a model that is trained take turns with its training
    env = Builder(trusted=config["trusted_modules"]).locate(config["env"]["_target_"], "env")
    counted = getattr(env, "game_processes", None)
    return 0 if counted is None else int(counted(config["env"]))
