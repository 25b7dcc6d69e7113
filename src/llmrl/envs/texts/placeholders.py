"""Names in braces in a text, and what they stand for in one environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.envs.texts.env_arguments import EnvKwargs, shown

_PLACE = re.compile(r"( ?)\{([A-Za-z_]\w*)(?:\[(\d+)\])?\}")
OTHER = "other"
"""The case of all values that have no case of their own."""

Cases = Mapping[str, Mapping[str, str]]
"""Of an argument, what each of its values (as `shown` writes it) means, in a sentence, which may be empty."""


class Placeholders:
    """Puts facts and arguments of one environment into a text.

    `{name}` is a fact, or else the sentence about the argument's value, or else the value itself; `{name[0]}` is a part
    of the value, and in the sentence about an argument its own name is the value.

    Args:
        facts: by name.
        arguments: of the environment.
        cases: sentences about values.
        where: the text's name in messages.

    Raises:
        ConfigError: there are sentences about an argument that the environment does not have.
    """

    def __init__(self, facts: Mapping[str, str], arguments: EnvKwargs, cases: Cases, where: str) -> None:
        self._facts, self._arguments, self._cases, self._where = facts, arguments, cases, where
        if unknown := [name for name in cases if not arguments.known(name)]:
            raise ConfigError(f"{where}: arguments.{unknown[0]}: the environment has no such argument")

    def fill(self, text: str, own: str = "") -> str:
        """`text` with everything in its place; `own` is the argument that it is a sentence about.

        Raises:
            ConfigError: a name that stands for nothing.
        """
        return _PLACE.sub(lambda place: self._put(place, own), text)

    def rest(self, text: str) -> str:
        """The sentences about arguments that neither `text` nor another sentence has a place for."""
        placed = self._named(text)
        said = (self._sentence(name) for name in self._cases if name not in placed)
        return " ".join(sentence for sentence in said if sentence)

    def told(self, text: str) -> set[str]:
        """The arguments that `text` and the sentences say something about."""
        return (self._named(text) | set(self._cases)) - {name for name in self._cases if self._case(name) is None}

    def _named(self, text: str) -> set[str]:
        """Names that have a place in `text`, or in a sentence about another argument."""
        names = {place[2] for place in _PLACE.finditer(text)}
        for own, cases in self._cases.items():
            names |= {place[2] for case in cases.values() for place in _PLACE.finditer(case) if place[2] != own}
        return names

    def _put(self, place: re.Match[str], own: str) -> str:
        before, name, part = place.groups()
        if name in self._facts and part is None:
            return before + self._facts[name]
        if not self._arguments.known(name):
            raise ConfigError(f"{self._where}: {{{name}}} stands for nothing: the environment has no such argument")
        if name in self._cases and name != own and part is None:
            sentence = self._sentence(name)
            return before + sentence if sentence else ""
        return before + shown(self._part(name, part))

    def _part(self, name: str, part: str | None) -> Any:
        value = self._arguments.value(name)
        if part is None:
            return value
        if not isinstance(value, list | tuple) or int(part) >= len(value):
            raise ConfigError(f"{self._where}: there is no {{{name}[{part}]}}, as {name} is {shown(value)}")
        return value[int(part)]

    def _case(self, name: str) -> str | None:
        cases = self._cases[name]
        return cases.get(shown(self._arguments.value(name)), cases.get(OTHER))

    def _sentence(self, name: str) -> str:
        return self.fill(self._case(name) or "", own=name).strip()
