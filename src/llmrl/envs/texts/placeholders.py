"""Placeholders in braces in a text, and their values in one environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.envs.texts.env_arguments import EnvKwargs, format_value

_PLACEHOLDER = re.compile(r"( ?)\{([A-Za-z_]\w*)(?:\[(\d+)\])?\}")
OTHER = "other"
"""Case for all values that have no case of their own."""

Cases = Mapping[str, Mapping[str, str]]
"""Argument -> value (as `format_value` writes it) -> its meaning in a sentence, which may be empty."""


class Placeholders:
    """Fills the facts and arguments of one environment into a text.

    `{name}` is a fact, or else the sentence about the argument's value, or else the value itself. `{name[0]}` is a part
    of the value. In the sentence about an argument, its own name stands for the value.

    Args:
        facts: facts by name.
        arguments: arguments of the environment.
        cases: sentences about values of arguments.
        source: name of the text in messages.

    Raises:
        ConfigError: there are sentences about an argument that the environment does not have.
    """

    def __init__(self, facts: Mapping[str, str], arguments: EnvKwargs, cases: Cases, source: str) -> None:
        self._facts, self._arguments, self._cases, self._source = facts, arguments, cases, source
        if unknown := [name for name in cases if not arguments.has_value(name)]:
            raise ConfigError(f"{source}: arguments.{unknown[0]}: the environment has no such argument")

    def fill(self, text: str, argument: str = "") -> str:
        """Return `text` with all placeholders filled in; `argument` is the argument that the text is a sentence about.

        Raises:
            ConfigError: a name that stands for nothing.
        """
        return _PLACEHOLDER.sub(lambda match: self._replacement(match, argument), text)

    def remaining_sentences(self, text: str) -> str:
        """Return the sentences about arguments that have no placeholder in `text` or in another sentence."""
        names = self._placeholder_names(text)
        sentences = (self._sentence(name) for name in self._cases if name not in names)
        return " ".join(sentence for sentence in sentences if sentence)

    def mentioned_arguments(self, text: str) -> set[str]:
        """Return the names of the arguments that `text` and the sentences mention."""
        return (self._placeholder_names(text) | set(self._cases)) - {
            name for name in self._cases if self._case(name) is None
        }

    def _placeholder_names(self, text: str) -> set[str]:
        """Return the names of the placeholders in `text` or in a sentence about another argument."""
        names = {match[2] for match in _PLACEHOLDER.finditer(text)}
        for case_name, cases in self._cases.items():
            names |= {
                match[2] for case in cases.values() for match in _PLACEHOLDER.finditer(case) if match[2] != case_name
            }
        return names

    def _replacement(self, match: re.Match[str], case_name: str) -> str:
        prefix, name, part = match.groups()
        if name in self._facts and part is None:
            return prefix + self._facts[name]
        if not self._arguments.has_value(name):
            raise ConfigError(f"{self._source}: {{{name}}} stands for nothing: the environment has no such argument")
        if name in self._cases and name != case_name and part is None:
            sentence = self._sentence(name)
            return prefix + sentence if sentence else ""
        return prefix + format_value(self._part(name, part))

    def _part(self, name: str, part: str | None) -> Any:
        value = self._arguments.value(name)
        if part is None:
            return value
        if not isinstance(value, list | tuple) or int(part) >= len(value):
            raise ConfigError(f"{self._source}: there is no {{{name}[{part}]}}, as {name} is {format_value(value)}")
        return value[int(part)]

    def _case(self, name: str) -> str | None:
        cases = self._cases[name]
        return cases.get(format_value(self._arguments.value(name)), cases.get(OTHER))

    def _sentence(self, name: str) -> str:
        return self.fill(self._case(name) or "", argument=name).strip()
