"""What every principal needs of the environment it governs."""

from __future__ import annotations

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, MechanismSpec


def mechanism_of(spec: EnvSpec, principal: str) -> MechanismSpec:
    """The mechanism of the environment, or a ConfigError that names both parts."""
    if spec.mechanism is None:
        raise ConfigError(
            f"principal={principal} has nothing to set in env={spec.name}, which has no mechanism. "
            "Choose an environment with one (cleanup, harvest, escape_room), or principal=none."
        )
    return spec.mechanism


def n_rows(spec: EnvSpec) -> int:
    """Rows of a table with one row a context; 1 where the environment has none."""
    return max(len(spec.contexts), 1)


def row_of(spec: EnvSpec, context: int | None) -> int:
    """The table row of a context.

    Raises:
        ValueError: the environment has contexts and `context` is not one of them, or it has none and one is given.
    """
    if not spec.contexts and context is None:
        return 0
    if context is None or not 0 <= context < len(spec.contexts):
        raise ValueError(f"context {context!r} is none of {spec.name}'s {len(spec.contexts)} contexts {spec.contexts}")
    return context
