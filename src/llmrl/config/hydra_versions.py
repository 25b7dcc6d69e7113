"""Arguments that differ between Hydra 1.3 and 1.4."""

from __future__ import annotations

from typing import Any

import hydra

VERSION = tuple(int(part) for part in hydra.__version__.split(".")[:2])
BASE: dict[str, Any] = {"version_base": "1.3"} if VERSION < (1, 4) else {}
"""Arguments of `hydra.main` and `initialize` that select the defaults of 1.3; Hydra 1.4 has no such choice."""
