"""What is typed, before Hydra sees it."""

from __future__ import annotations

import re

_OPEN = re.compile(r"\w+(\.\w+)*\.(kwargs|arguments|replace)(\.\w+)*=")
"""Overrides of fields whose keys are not in the option's file: arguments of other people's classes, and texts to put in
place of others."""


def opened(argument: str) -> str:
    """Return a command-line argument such that Hydra takes new keys where any key may be meant.

    >>> opened("env.kwargs.g=9.81"), opened("env.horizon=9")
    ('++env.kwargs.g=9.81', 'env.horizon=9')
    """
    return f"++{argument}" if _OPEN.match(argument) else argument
