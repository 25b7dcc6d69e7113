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
    def list_label_groups(self, config: Config) -> list[str]:
        """Return the config groups whose chosen option is always part of the label of the run folder."""

    @abstractmethod
    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a resolved config that its run reads, with digests of the files that affect results.

        Raises:
            ConfigError: a file is missing, or has changed since the run was submitted.
        """

    @abstractmethod
    def check_values(self, config: Config, resources: RunResources) -> None:
        """Raise ConfigError for invalid values and combinations that can be detected without building a part."""

    @abstractmethod
    def make_model(self, resources: RunResources) -> Model:
        """Build the language model that a run uses, unchecked; return None if it uses none."""

    @abstractmethod
    def plan(self, config: Config, resources: RunResources) -> PlanRows:
        """Build every part, return the plan of the run, and close the parts."""

    @abstractmethod
    def compute(self, config: Config, resources: RunResources, run: Run, compute_run: ComputeRun) -> None:
        """Compute an open run: build its parts, run its loop, set `run.result`, and close the parts.

        Prerequisite runs are computed first, by `compute_run`.
        """

    @abstractmethod
    def print_summary(self, run: Run) -> None:
        """Print a summary of a finished run."""
