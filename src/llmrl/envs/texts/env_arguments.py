"""Arguments of an environment, inferred from the environment object, and placeholders for them in texts."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.env_factory import find_step_limit

if TYPE_CHECKING:
    import gymnasium

_RENDERING_ARGUMENTS = (
    *("render_mode", "camera_id", "camera_name", "default_camera_config", "max_geom", "visual_options"),
    *("screen_size", "screen_width", "screen_height", "screen_scaling", "tile_size", "highlight", "agent_pov"),
)
"""Arguments for rendering, which are irrelevant to language-model players; MuJoCo also has `width` and `height`."""
_MAX_VALUE_LENGTH = 100
"""Maximum length of the text for a value, in characters."""
_PLACEHOLDER_PATTERN = re.compile(r"( ?)\{([A-Za-z_]\w*)(?:\[(\d+)\])?\}")
OTHER_VALUES_KEY = "other"
"""Key of the sentence about all values that have no sentence of their own."""

ArgumentSentences = Mapping[str, Mapping[str, str]]
"""Argument -> value (formatted by `format_value`) -> sentence about its meaning, which may be empty."""


class EnvArguments:
    """The constructor arguments of one environment.

    The value of an argument is the one passed to `gymnasium.make`, else the environment's attribute with the same name
    (with or without a leading underscore), else the default in the constructor of its class.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        import gymnasium

        game = env.unwrapped
        parameters = inspect.signature(type(game).__init__).parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._kwargs: Mapping[str, Any] | None = None if env.spec is None else env.spec.kwargs
        registered_spec = None if env.spec is None else gymnasium.registry.get(env.spec.id)
        self._registered_kwargs: Mapping[str, Any] = {} if registered_spec is None else registered_spec.kwargs
        # `vars` excludes properties, because some depend on the current state.
        self._attributes = vars(game)
        self._ignored_names = {*_RENDERING_ARGUMENTS, *(("max_steps",) if find_step_limit(env) is not None else ())}
        if any(base.__name__ == "MujocoEnv" for base in type(game).__mro__):
            self._ignored_names |= {"width", "height"}

    def has_value(self, name: str) -> bool:
        """Return whether the argument exists and its value is known."""
        return name in (self._kwargs or {}) or name in self._defaults

    def get_value(self, name: str) -> Any:
        """Return the value of an argument.

        Raises:
            KeyError: the value is unknown.
        """
        if self._kwargs is not None and name in self._kwargs:
            value = self._kwargs[name]
        else:
            default = self._defaults[name]
            value = self._attributes.get(f"_{name}", self._attributes.get(name, default))
        # Environments accept 1 and 0 for true and false.
        return bool(value) if isinstance(self._defaults.get(name), bool) and isinstance(value, int) else value

    def find_changed_arguments(self) -> dict[str, Any]:
        """Return name -> value of the arguments that differ from the defaults of the environment's id and class.

        Arguments for rendering and the step limit are omitted.
        """
        defaults = {**self._defaults, **self._registered_kwargs}
        if self._kwargs is not None:
            names = list(self._kwargs)
        else:
            # Attributes may differ from arguments of other types, e.g. after a conversion.
            names = [name for name, x in defaults.items() if isinstance(x, bool | int | float)]
        values = {name: self.get_value(name) for name in names if name not in self._ignored_names}
        return {
            name: x
            for name, x in values.items()
            if name not in defaults or format_value(x) != format_value(defaults[name])
        }


def format_value(value: Any) -> str:
    """Return a value as text for language-model players.

    >>> format_value(1e-4), format_value(True), format_value((0.7, float("inf")))
    ('0.0001', 'true', '(0.7, infinity)')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value).replace("inf", "infinity")
    if isinstance(value, list | tuple):
        return f"({', '.join(format_value(x) for x in value)})"[:_MAX_VALUE_LENGTH]
    return " ".join(str(value).split())[:_MAX_VALUE_LENGTH]


class Placeholders:
    """Replacement of the placeholders in texts about one environment by its facts and arguments.

    `{name}` is replaced by the fact `name`, or else by the sentence about the value of the argument `name`, or else by
    the value. `{name[0]}` is replaced by an element of the value. In a sentence about an argument, the name of this
    argument is replaced by the value.

    Args:
        facts: name -> fact.
        arguments: arguments of the environment.
        sentences: sentences about values of arguments.
        source: name of the text file, for messages.

    Raises:
        ConfigError: there are sentences about an argument that the environment does not have.
    """

    def __init__(
        self, facts: Mapping[str, str], arguments: EnvArguments, sentences: ArgumentSentences, source: str
    ) -> None:
        self._facts, self._arguments, self._sentences, self._source = facts, arguments, sentences, source
        if unknown := [name for name in sentences if not arguments.has_value(name)]:
            raise ConfigError(f"{source}: arguments.{unknown[0]}: the environment has no such argument")

    def fill(self, text: str, argument: str = "") -> str:
        """Return `text` with all placeholders replaced; if it is a sentence about an argument, `argument` is the name.

        Raises:
            ConfigError: the name of a placeholder is unknown.
        """
        return _PLACEHOLDER_PATTERN.sub(lambda match: self._replace_placeholder(match, argument), text)

    def join_remaining_sentences(self, text: str) -> str:
        """Return the joined sentences about arguments without a placeholder in `text` or in another sentence."""
        names = self._find_placeholder_names(text)
        sentences = (self._fill_sentence(name) for name in self._sentences if name not in names)
        return " ".join(sentence for sentence in sentences if sentence)

    def find_mentioned_arguments(self, text: str) -> set[str]:
        """Return the names of the arguments that `text` or a sentence mentions, or whose value has a sentence."""
        return (self._find_placeholder_names(text) | set(self._sentences)) - {
            name for name in self._sentences if self._find_sentence(name) is None
        }

    def _find_placeholder_names(self, text: str) -> set[str]:
        """Return the names of the placeholders in `text` or in a sentence about another argument."""
        names = {match[2] for match in _PLACEHOLDER_PATTERN.finditer(text)}
        return names | {
            match[2]
            for argument, sentences_by_value in self._sentences.items()
            for sentence in sentences_by_value.values()
            for match in _PLACEHOLDER_PATTERN.finditer(sentence)
            if match[2] != argument
        }

    def _replace_placeholder(self, match: re.Match[str], sentence_argument: str) -> str:
        space, name, index = match.groups()
        if name in self._facts and index is None:
            return space + self._facts[name]
        if not self._arguments.has_value(name):
            raise ConfigError(f"{self._source}: {{{name}}} is unknown; use an argument of the environment or a fact")
        if name in self._sentences and name != sentence_argument and index is None:
            sentence = self._fill_sentence(name)
            return space + sentence if sentence else ""
        value = self._arguments.get_value(name)
        if index is None:
            return space + format_value(value)
        if not isinstance(value, list | tuple) or int(index) >= len(value):
            raise ConfigError(f"{self._source}: there is no {{{name}[{index}]}}, as {name} is {format_value(value)}")
        return space + format_value(value[int(index)])

    def _find_sentence(self, name: str) -> str | None:
        """Return the sentence about the value of an argument; None if this value has none."""
        sentences, value = self._sentences[name], format_value(self._arguments.get_value(name))
        return sentences.get(value, sentences.get(OTHER_VALUES_KEY))

    def _fill_sentence(self, name: str) -> str:
        return self.fill(self._find_sentence(name) or "", argument=name).strip()
