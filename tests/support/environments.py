"""Environments built from the shipped option files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.option_files import load_option
from llmrl.core.seeding import Seeds


def make_env(env: str, /, seeds: Seeds | None = None, trusted: Sequence[str] = (), **options: Any) -> Any:
    """Build the environment of the option `env` with some options changed.

    Args:
        env: name of the option, as in `env=cleanup`.
        seeds: node of the seed tree for the environment; None for `Seeds(0)`.
        trusted: additional modules whose objects options may name.
        options: changed options; an object may replace a node with a `_target_`.
    """
    injected = {"seeds": seeds or Seeds(0), "device": "cpu"}
    return Builder(injected, trusted).build({**load_option("env", env), **options}, "env")
