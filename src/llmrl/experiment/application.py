"""The interface of the two applications: training in an environment, and fine-tuning of a language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from llmrl.config.builder import Config
from llmrl.experiment.prerequisites import ComputeRun
from llmrl.experiment.resources import Model, RunResources
from llmrl.run.run import Run

PlanRows = list[tuple[str, str]]
"""Printed rows of a plan: (subject, description)."""


class Application(ABC):
    """The part of an experiment that differs between training agents and fine-tuning a language model.

    Attributes:
        command: name of the console script.
    """

    command: str

    @abstractmethod
    def groups_in_name(self, config: Config) -> list[str]:
        """Return the groups whose option is part of the name of a run of the resolved `config`, typed or not."""

    @abstractmethod
    def with_digests(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a resolved config that its run reads, with digests of the files that affect results.

        Raises:
            ConfigError: a file is missing, or has changed since the run was submitted.
        """

    @abstractmethod
    def check_values(self, config: Config, resources: RunResources) -> None:
        """Raise ConfigError for values with which no run could be built, as far as this is known without building."""

    @abstractmethod
    def make_model(self, resources: RunResources) -> Model:
        """Build the language model that a run uses, unchecked; return None if it uses none."""

    @abstractmethod
    def plan(self, config: Config, resources: RunResources) -> PlanRows:
        """Build every part, return what the run would do, and close the parts again."""

    @abstractmethod
    def compute(self, config: Config, resources: RunResources, run: Run, compute_needed: ComputeRun) -> None:
        """Compute an open run: build every part once, run its loop, and close the parts. Sets `run.result`.

        Runs that this one needs are computed first, by `compute_needed`.
        """

    @abstractmethod
    def print_summary(self, run: Run) -> None:
        """Print a summary of a finished run."""
