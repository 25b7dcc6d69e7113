"""Prompts are files, `prompts/<family>/<name>.j2`, beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

PROMPTS = Path(__file__).parent / "prompts"


def render(name: str, /, **variables: object) -> str:
    """The prompt `name`, e.g. `principal/cleanup`, with its variables filled in.

    Templates run sandboxed: they can neither change what they are given nor reach Python's internals.
    A variable the template names and the caller does not give is an error, not an empty string.

    Raises:
        jinja2.UndefinedError: a variable is missing.
        jinja2.TemplateNotFound: there is no such prompt.
    """
    return _environment().get_template(f"{name}.j2").render(**variables).strip() + "\n"


def names(family: str) -> list[str]:
    """The prompts of a family that can be rendered, e.g. `principal` -> cleanup, generic, ...; parts start with `_`."""
    return sorted(path.stem for path in (PROMPTS / family).glob("*.j2") if not path.stem.startswith("_"))


@cache
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(PROMPTS),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # prompts are plain text, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["num"] = format_number
    environment.filters["exact"] = lambda value: repr(float(value)).removesuffix(".0")
    environment.filters["nums"] = lambda values: ", ".join(format_number(value) for value in values)
    return environment


def format_number(value: float) -> str:
    """Four significant digits or one decimal, without trailing zeros: what a reader, human or model, can use.

    >>> [format_number(x) for x in (0.5, -0.0, 47.3649, 12345.67)]
    ['0.5', '0', '47.36', '12345.7']
    """
    value = float(value) + 0.0  # no negative zero
    return f"{value:.1f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
