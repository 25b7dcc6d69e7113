"""Options of worlds of PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.ranges import PositiveInt

Library = Literal["pettingzoo", "openspiel", "textarena", "openenv"]


@dataclass(frozen=True)
class PettingZooSettings:
    """Options of `PettingZooEnv`; meanings, units and ranges are in `conf/env/pettingzoo.yaml`."""

    id: str
    name: str | None
    library: Library
    kwargs: Mapping[str, Any] | None
    n_envs: PositiveInt
    horizon: PositiveInt | None
    tax: bool
    show_mechanism: bool
    text: str | None
    render: bool
