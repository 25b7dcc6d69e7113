"""Environments as their option files describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.option_files import load_option
from llmrl.core.seeding import Seeds


def make_env(env: str, /, seeds: Seeds | None = None, trusted: Sequence[str] = (), **options: Any) -> Any:
    """Return the environment of the option `env` with some options changed.

    Args:
        env: name of the option, as in `env=cleanup`.
        seeds: the environment's node of the seed tree; None: `Seeds(0)`.
        trusted: modules that options may name in addition.
        options: changed options; objects in place of nodes with a `_target_` are taken as they are.
    """
    injected = {"seeds": seeds or Seeds(0), "device": "cpu"}
    return Builder(injected, trusted).build({**load_option("env", env), **options}, "env")
