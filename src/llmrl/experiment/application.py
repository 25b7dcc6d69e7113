"""The two things that an experiment can be asked to do: train in an environment, or fine-tune a language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrl.experiment.prerequisites import Compute
from llmrl.experiment.resources import Model, RunResources

if TYPE_CHECKING:
    from llmrl.run.run import Run

Config = Mapping[str, Any]
Rows = list[tuple[str, str]]
"""What is printed of a plan: (what, value)."""


class Application(ABC):
    """What differs between a command that trains agents and one that trains a language model.

    Attributes:
        command: its console script.
        primary: the config in conf/ that it composes.
    """

    command: str
    primary: str

    @abstractmethod
    def named(self, config: Config) -> list[str]:
        """Groups whose option belongs into the name of a run of the resolved `config`, typed or not."""

    @abstractmethod
    def with_digests(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return of a resolved config what its run reads, with digests of the files that decide results.

        Raises:
            ConfigError: a file is not there, or no longer what it was when the run was submitted.
        """

    @abstractmethod
    def check_values(self, config: Config, resources: RunResources) -> None:
        """Raise ConfigError for values that no run could be built with, as far as that is known without building."""

    @abstractmethod
    def make_model(self, resources: RunResources) -> Model:
        """Make the language model that a run asks, unchecked; None where it asks none."""

    @abstractmethod
    def plan(self, config: Config, resources: RunResources) -> Rows:
        """Build every part, return what the run would do, and close the parts again."""

    @abstractmethod
    def compute(self, config: Config, resources: RunResources, run: Run, compute_needed: Compute) -> None:
        """Compute an open run: build every part once, play its loop, and close the parts; sets `run.result`.

        Runs that this one needs are computed first, by `compute_needed`.
        """

    @abstractmethod
    def print_end(self, run: Run) -> None:
        """Print what a run came to."""
