"""Parts that another part builds, because only it knows some of the objects that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class PartFactory:
    """A part of a config that is built later, once for each call.

    A parameter with this type hint is given its config node validated, but unbuilt (`config.builder.Builder`).

    Args:
        build: builds the part with changed options and further injected objects.
        target: class or function that is called.
        where: place of the node in the config, for messages.
    """

    def __init__(self, build: Callable[[Mapping[str, Any], Mapping[str, Any]], Any], target: Any, where: str) -> None:
        self._build, self.target, self.where = build, target, where

    def __call__(self, changed: Mapping[str, Any] | None = None, **injected: Any) -> Any:
        """Build the part.

        Args:
            changed: options that replace those of the node.
            injected: objects by parameter name, which replace those given to its owner.

        Raises:
            ConfigError: as `Builder.build`.
        """
        return self._build(changed or {}, injected)
