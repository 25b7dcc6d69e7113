"""The types and ranges of the options at the top level of a config: those of a run, and the sections of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmrl.core.arguments import evaluate_type_hints, validate_argument
from llmrl.core.errors import ErrorCollector
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt

Section = dict[str, Any]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; meanings are in `conf/_run.yaml`, `conf/train.yaml` and `conf/finetune.yaml`."""

    seed: NonNegativeInt
    name: str
    output_root: str
    dry_run: bool
    resume: bool
    rerun: bool
    checkpoint_seconds: NonNegativeFloat
    private: bool
    trusted_modules: list[str]
    loggers: Section
    observers: list[Section]
    regime_name: str
    regime_noise: NonNegativeFloat | None
    prompts: str | None
    trials_dir: str
    transfer: Section


TYPE_HINTS: Mapping[str, Any] = evaluate_type_hints(RunOptions)
"""The type hint of each option of a run."""
_PART_SECTIONS = (
    *("agent", "env", "hardware", "llm", "principal", "teacher", "dataset", "method"),
    *("clone", "design", "learn", "play", "report", "search", "evaluation", "rewards"),
)
"""Keys whose value is the options of a part."""


def check_run_options(config: Mapping[str, Any]) -> None:
    """Check the options of a run in a resolved config; a config may lack those of the other command.

    Raises:
        ConfigError: values of the wrong type or out of range, all of them.
    """
    errors = ErrorCollector()
    for key, hint in [*TYPE_HINTS.items(), *((key, Section) for key in _PART_SECTIONS)]:
        if key in config:
            with errors.collect():
                validate_argument(config[key], hint, key)
    errors.raise_all()
