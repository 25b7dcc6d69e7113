"""Prompts as Jinja files `prompts/<name>.j2` of the packages that use them, which files of a user may replace."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmrl.core.errors import ConfigError

PACKAGE_PREFIX = "ours"
"""Prefix of the package's prompts in a user's prompts, which can extend them: `{% extends "ours/cleanup.j2" %}`."""


@dataclass(frozen=True)
class Prompt:
    """Rendered prompt with its `name` (`<family>/<name>`) and the `hash` of its file (`PromptFamily.hash`)."""

    text: str
    name: str = ""
    hash: str = ""


class PromptFamily:
    """Prompts of one family, such as `principal`.

    Templates are sandboxed: they can neither modify their variables nor access Python's internals. An undefined
    variable is an error, not an empty string.

    Args:
        family: name of the family.
        folder: folder of the package's prompts.
        user_folder: folder of a user, whose files `<family>/<name>.j2` replace prompts of the package; None: no folder.

    Raises:
        ConfigError: `user_folder` is not a folder.
    """

    def __init__(self, family: str, folder: Path, user_folder: Path | None = None) -> None:
        self.family, self.folder = family, folder
        if user_folder is not None and not user_folder.is_dir():
            raise ConfigError(
                f"prompts={user_folder} is not a folder; put your own prompts into {user_folder}/{family}/<name>.j2"
            )
        self.user_folder = None if user_folder is None else user_folder / family

    @property
    def names(self) -> list[str]:
        """Sorted names of the prompts, without included parts, whose names begin with `_`."""
        return sorted(stem for stem in self._stems() if not stem.startswith("_"))

    def render(self, name: str, /, **variables: object) -> Prompt:
        """Render the prompt `name` with `variables`.

        Raises:
            ConfigError: the prompt does not exist, is not a valid template, or uses an unknown variable or a forbidden
                operation.
        """
        try:
            text = self._environment.get_template(f"{name}.j2").render(**variables).strip() + "\n"
            return Prompt(text, f"{self.family}/{name}", self.hash(name))
        except jinja2.TemplateNotFound as error:
            reference = "" if error.name == f"{name}.j2" else f" extends or includes {error.name}, which"
            raise ConfigError(
                f"the prompt {self.family}/{name}.j2{reference} does not exist; use one of {', '.join(self._stems())}, "
                f"or {PACKAGE_PREFIX}/<name>.j2 for the package's prompts"
            ) from error
        except jinja2.UndefinedError as error:
            names = ", ".join(sorted(variables))
            raise ConfigError(f"the prompt {self.family}/{name}: {error}; its variables are {names}") from error
        except jinja2.TemplateSyntaxError as error:
            location = f"{error.filename or name}, line {error.lineno}"
            raise ConfigError(f"the prompt {self.family}/{name} ({location}): {error.message}") from error
        except jinja2.exceptions.SecurityError as error:
            raise ConfigError(f"the prompt {self.family}/{name} uses a forbidden operation: {error}") from error
        except jinja2.TemplateRuntimeError as error:
            file = self._environment.get_template(f"{name}.j2").filename
            raise ConfigError(f"the prompt {self.family}/{name} ({file}): {error}") from error

    def hash(self, name: str) -> str:
        """Return 12 hexadecimal digits of the SHA-256 of the prompt's file and of all files it extends or includes."""
        assert self._environment.loader is not None
        sources: dict[str, str] = {}
        remaining_templates = [f"{name}.j2"]
        while remaining_templates:
            template = remaining_templates.pop()
            sources[template], _, _ = self._environment.loader.get_source(self._environment, template)
            remaining_templates += [name for name in _find_references(sources[template]) if name not in sources]
        digest = hashlib.sha256()
        for template, source in sorted(sources.items()):
            digest.update(f"{template}\0{source}\0".encode())
        return digest.hexdigest()[:12]

    def _stems(self) -> list[str]:
        folders = [self.folder] if self.user_folder is None else [self.folder, self.user_folder]
        return sorted({path.stem for folder in folders for path in folder.glob("*.j2")})

    @property
    def _environment(self) -> jinja2.Environment:
        return _build_environment(self.folder, self.user_folder)


_JINJA_OPTIONS: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}


@functools.lru_cache(maxsize=64)
def _build_environment(folder: Path, user_folder: Path | None) -> jinja2.Environment:
    """Return the environment of a family, which all runs of a process share, because compilation is slow."""
    package_loader = jinja2.FileSystemLoader(folder)
    user_loaders = [] if user_folder is None else [jinja2.FileSystemLoader(user_folder)]
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.ChoiceLoader(
            [*user_loaders, package_loader, jinja2.PrefixLoader({PACKAGE_PREFIX: package_loader})]
        ),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # prompts are plain text, not HTML
        **_JINJA_OPTIONS,
    )
    environment.filters["num"] = format_number
    environment.filters["exact"] = lambda value: repr(float(value)).removesuffix(".0")
    environment.filters["nums"] = lambda values: ", ".join(format_number(value) for value in values)
    return environment


@functools.lru_cache(maxsize=512)
def _find_references(source: str) -> tuple[str, ...]:
    """Return the names of the templates that a source text extends or includes.

    Raises:
        jinja2.TemplateSyntaxError: the source text is not a valid template.
    """
    references = meta.find_referenced_templates(ImmutableSandboxedEnvironment(**_JINJA_OPTIONS).parse(source))
    return tuple(reference for reference in references if reference is not None)


def compute_folder_digest(user_folder: Path) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the names and contents of all prompts in a user's folder."""
    digest = hashlib.sha256()
    for path in sorted(user_folder.rglob("*.j2")):
        digest.update(f"{path.relative_to(user_folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def format_number(value: float) -> str:
    """Format a number for a prompt: four significant digits, or one decimal if 1e4 <= |value| < 1e9.

    >>> [format_number(x) for x in (0.5, -0.0, 47.3649, 12345.67)]
    ['0.5', '0', '47.36', '12345.7']
    """
    value = float(value) + 0.0  # converts -0.0 to 0.0
    return f"{value:.1f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
