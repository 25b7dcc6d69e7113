"""Detection of optional packages without importing them, which would slow test collection down."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_without(*packages: str) -> None:
    """Skip the calling test module unless all `packages` are installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
