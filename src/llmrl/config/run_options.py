"""Types and ranges of the options at the top level of a config: options of a run, and sections of parts."""

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
    """Options of a run, which `conf/_run.yaml`, `conf/train.yaml` and `conf/finetune.yaml` document."""

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
"""Type hints of the options of a run, by name."""
_SECTION_KEYS = (
    *("agent", "env", "hardware", "llm", "principal", "teacher", "dataset", "method"),
    *("clone", "design", "learn", "play", "report", "search", "evaluation", "rewards"),
)
"""Keys whose values are mappings with the options of a part or of a loop."""


def check_run_options(config: Mapping[str, Any]) -> None:
    """Check the options of a run in a resolved config, except missing ones, which belong to another command.

    Raises:
        ConfigError: values have the wrong type or are out of range; the message contains all of them.
    """
    errors = ErrorCollector()
    for key, hint in [*TYPE_HINTS.items(), *((key, Section) for key in _SECTION_KEYS)]:
        if key in config:
            with errors.collect():
                validate_argument(config[key], hint, key)
    errors.raise_all()
