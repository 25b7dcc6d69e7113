"""Progress in a notebook: a line below the cell that changes in place."""

from __future__ import annotations

import html
import importlib
import sys
import time
from typing import Any

EVERY_S = 0.25
"""Seconds between two changes of a line: each is a message to the browser."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookLine:
    """A text with a bar, shown at once.

    Args:
        text: what it says.
        share: how much of the bar is full, 0 to 1; None: there is no bar, as nobody knows the end.
    """

    def __init__(self, text: str, share: float | None) -> None:
        display: Any = importlib.import_module("IPython.display").display  # which has no types

        self._shown = time.monotonic()
        self._handle: Any = display(_Line(text, share), display_id=True)

    @property
    def due(self) -> bool:
        """Whether it was changed so long ago that it may be again."""
        return time.monotonic() - self._shown >= EVERY_S

    def update(self, text: str, share: float | None) -> None:
        """Say something else."""
        self._shown = time.monotonic()
        self._handle.update(_Line(text, share))


class _Line:
    def __init__(self, text: str, share: float | None) -> None:
        self._text, self._share = text, share

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = "" if self._share is None else f'<progress value="{self._share:.4f}" max="1"></progress> '
        return f"{bar}<code>{html.escape(self._text)}</code>"
