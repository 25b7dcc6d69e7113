"""Describers of environments, from three sources: a text file, methods of the environment, or its spaces (draft)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvDescription
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.gym.channel_spaces import find_continuous_actions
from llmrl.envs.gym.env_factory import EnvFactory, find_step_limit, make_gymnasium_env
from llmrl.envs.gym.episode_scores import SuccessCriterion
from llmrl.envs.texts.decoders import DECODERS, Decoder
from llmrl.envs.texts.env_arguments import EnvArguments, Placeholders, format_value
from llmrl.envs.texts.observation_format import Formatter, build_formatter, check_action_count, describe_state_rule
from llmrl.envs.texts.schema import DECIMALS, DescriptionFile, Field, list_fields, parse_description, read_description

if TYPE_CHECKING:
    import gymnasium

TEXTS_DIR = Path(__file__).with_name("files")
DESCRIPTION_METHODS = ("get_goal_description", "get_observation_schema", "get_action_schema")
"""Methods of an environment, or of a wrapper around it, that describe it. The first returns the goal. The second
returns name of an observed value -> text, or mapping with a `description`. The third returns action -> text about its
effect; players answer with a key of this mapping."""


class Describer(Protocol):
    """Text interface of one environment. `game` is the description that players read before an episode."""

    game: EnvDescription

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the text for an observation and its `info`."""
        ...


def list_shipped_texts() -> list[str]:
    """Return the names of the text files in this package."""
    return sorted(path.stem for path in TEXTS_DIR.glob("*.yaml"))


def build_describer(
    text: str,
    env: gymnasium.Env[Any, Any] | EnvFactory,
    criterion: SuccessCriterion | None = None,
    trust: Trust = NO_FURTHER_TRUST,
) -> Describer:
    """Return the text interface of an environment.

    Args:
        text: name of a text file in this package (`taxi`), path of a text file (`my/game.yaml`), class
            (`package.module.Class`, called with the environment), `own` (see `EnvDescriber`) or `auto` (see
            `AutoDescriber`).
        env: environment to describe, which is only read; or its factory, whose stock engine is used.
        criterion: success criterion, which becomes part of the goal, except with a class; None: there is none.
        trust: modules in which a class may be defined; for a factory, its attribute `trust` is used instead.

    Raises:
        ConfigError: the text does not exist, is incomplete or describes another environment, or its class is not
            trusted; see also `EnvFactory.make`.
    """
    if isinstance(env, EnvFactory):
        with contextlib.closing(make_gymnasium_env(env, render=False)) as instance:
            return build_describer(text, instance, criterion, env.trust)
    if text == "own":
        return EnvDescriber(env, criterion)
    if text == "auto":
        return AutoDescriber(env, criterion)
    if text in list_shipped_texts():
        return FileDescriber(read_description(TEXTS_DIR / f"{text}.yaml"), env, criterion)
    if text.endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigError(f"env.text={text}: there is no such file")
        return FileDescriber(read_description(path), env, criterion)
    if "." not in text:
        raise ConfigError(
            f"env.text={text} does not exist; use {', '.join(list_shipped_texts())}, own, auto, a file (my_text.yaml), "
            "or a class (package.Class)"
        )
    describer = trust.locate(text, "env.text")(env)
    has_description = isinstance(getattr(describer, "game", None), EnvDescription)
    if not has_description or not callable(getattr(describer, "describe", None)):
        raise ConfigError(
            f"env.text={text} must create an object with an attribute game (an EnvDescription) and a method describe"
        )
    return cast("Describer", describer)


class JsonDescriber:
    """Base class of describers that return the named values of an observation as a JSON object.

    Attributes:
        game: description of the environment.
    """

    game: EnvDescription
    _formatter: Formatter

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        return json.dumps(self._formatter(observation), ensure_ascii=False)


class EnvDescriber(JsonDescriber):
    """Describer for `env.text=own`, with texts from the `DESCRIPTION_METHODS` of an environment or its wrappers.

    The texts are used unchanged. They must explain the arguments of the environment, because no sentences are added.

    Raises:
        ConfigError: a method is missing, or its result does not match the spaces.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None) -> None:
        name = _find_env_name(env)
        goal, observation, actions = (_call_description_method(env, method, name) for method in DESCRIPTION_METHODS)
        # Mappings of a schema often have the key `type`, which a field of a text file cannot have.
        fields = {
            str(field): {k: x for k, x in content.items() if k != "type"} if isinstance(content, Mapping) else content
            for field, content in dict(observation).items()
        }
        keys = sorted(actions) if all(isinstance(key, int) for key in actions) else list(actions)
        source = f"{name} (its own words)"
        description = parse_description(
            {"goal": goal, "observation": fields, "actions": {str(key): str(actions[key]) for key in keys}}, source
        )
        self._formatter = build_formatter(env.observation_space, description.observation, description.decimals, source)
        check_action_count(description.actions, env.action_space, source)
        states = describe_state_rule(env.observation_space, description.observation)
        goal = join_paragraphs(description.goal, describe_step_limit(env), describe_success(criterion))
        self.game = EnvDescription(goal, list_fields(description.observation), description.actions, states=states)


class AutoDescriber(JsonDescriber):
    """Describer for `env.text=auto`, with names and ranges from the spaces.

    It is sufficient for first experiments; a text file for the environment is better.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None) -> None:
        fields = draft_fields(env.observation_space)
        self._formatter = build_formatter(
            env.observation_space, fields, DECIMALS, f"the draft of {_find_env_name(env)}"
        )
        goal = join_paragraphs(
            f"The game is {_find_env_name(env)} of Gymnasium. Collect as much reward as you can over an episode.",
            describe_changed_settings(EnvArguments(env)),
            describe_step_limit(env),
            describe_success(criterion),
        )
        self.game = EnvDescription(goal, list_fields(fields), draft_actions(env.action_space))


def draft_fields(space: Any) -> tuple[Field, ...]:
    """Return a field for each member of an observation space, with its range as description."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return tuple(_draft_field(name, subspace) for name, subspace in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return tuple(_draft_field(f"part_{i}", subspace) for i, subspace in enumerate(space.spaces))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        bounds = zip(space.low.tolist(), space.high.tolist(), strict=True)
        return tuple(Field(f"number_{i}", "a number", range=_find_finite_range(*b)) for i, b in enumerate(bounds))
    return (_draft_field("observation", space),)


def draft_actions(space: Any) -> tuple[tuple[str, str], ...]:
    """Return (answer, effect) of each action; an effect is the number of an action or a range of numbers."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return tuple((str(int(space.start) + i), f"action {int(space.start) + i}") for i in range(int(space.n)))
    if isinstance(space, spaces.Box):
        bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
        return tuple((f"action_{i}", f"a number from {low:g} to {high:g}") for i, (low, high) in enumerate(bounds))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        numbers = find_continuous_actions(space, "a game")
        assert numbers is not None
        components = zip(numbers.names, numbers.low, numbers.high, numbers.is_integer, strict=True)
        return tuple(
            (name, f"a {'whole ' * is_integer}number from {low:g} to {high:g}")
            for name, low, high, is_integer in components
        )
    return tuple((f"action_{i}", "a whole number") for i in range(int(np.prod(space.shape))))


def _draft_field(name: str, space: Any) -> Field:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Field(name, "a whole number", range=(int(space.start), int(space.start) + int(space.n) - 1))
    if isinstance(space, spaces.Box):
        size = int(np.prod(space.shape))
        description = "a number" if size == 1 else f"{' x '.join(map(str, space.shape))} numbers"
        return Field(name, description, range=_find_finite_range(float(space.low.min()), float(space.high.max())))
    if isinstance(space, spaces.Text):
        return Field(name, "a text")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return Field(name, "several things", fields=draft_fields(space))
    return Field(name, f"a {type(space).__name__} of Gymnasium")


def _find_finite_range(low: float, high: float) -> tuple[float | str, float | str] | None:
    return (low, high) if np.isfinite(low) and np.isfinite(high) and abs(high) < 1e6 and abs(low) < 1e6 else None


def _call_description_method(env: Any, method: str, env_name: str) -> Any:
    """Return the result of a method of the environment or of the outermost wrapper that has it."""
    layer = env
    while True:
        # A Gymnasium wrapper forwards the attributes that it does not define.
        if hasattr(type(layer), method):
            return getattr(layer, method)()
        if not hasattr(layer, "env"):
            methods = ", ".join(DESCRIPTION_METHODS)
            raise ConfigError(f"{env_name} has no method {method}; env.text=own requires the methods {methods}")
        layer = layer.env


def _find_env_name(env: Any) -> str:
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__


def describe_step_limit(env: gymnasium.Env[Any, Any]) -> str:
    """Return a sentence about the maximum number of steps of an episode; "" if it is unlimited or unknown."""
    steps = find_step_limit(env)
    return "" if steps is None else f"An episode ends after {steps} step{'s' * (steps != 1)} at the latest."


def describe_changed_settings(arguments: EnvArguments, excluded: Collection[str] = ()) -> str:
    """Return a sentence about arguments that differ from their defaults, without those in `excluded`; "" if none do."""
    changed = arguments.find_changed_arguments()
    settings = [f"{name} = {format_value(x)}" for name, x in changed.items() if name not in excluded]
    return f"Changed settings of the game: {', '.join(settings)}." if settings else ""


def describe_success(criterion: SuccessCriterion | None, meanings: Mapping[str, str] | None = None) -> str:
    """Return a sentence about the success criterion; "" if there is none.

    Args:
        criterion: success criterion; None: there is none.
        meanings: `str(criterion)` -> its meaning in this environment, as the end of a sentence.
    """
    if criterion is None:
        return ""
    meaning = (meanings or {}).get(str(criterion))
    if meaning is None and criterion.threshold is None:
        meaning = "the game ends by itself, not because the steps have run out"
    elif meaning is None:
        quantity = "the sum of its rewards" if criterion.quantity == "return" else "the reward of one of its steps"
        meaning = f"{quantity} is {criterion.threshold:g} or more"
    return f"An episode is a success if {meaning}."


def join_paragraphs(*sentences: str) -> str:
    """Return the non-empty texts as paragraphs."""
    return "\n".join(sentence for sentence in sentences if sentence)


class FileDescriber(JsonDescriber):
    """Describer with the texts of a text file.

    Args:
        description: content of the text file.
        env: environment to describe; it is only read.
        criterion: success criterion; None: there is none.

    Raises:
        ConfigError: the text file describes another observation, other actions, or other arguments.
    """

    def __init__(
        self, description: DescriptionFile, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None
    ) -> None:
        decoder = _build_decoder(description, env) if description.decoder else None
        if decoder is not None:
            self._formatter, states = decoder.decode, decoder.states
        else:
            fields, source = description.observation, f"{description.source}: observation"
            self._formatter = build_formatter(env.observation_space, fields, description.decimals, source)
            states = describe_state_rule(env.observation_space, fields)
        check_action_count(description.actions, env.action_space, description.source)
        arguments = EnvArguments(env)
        facts, described_arguments = ({}, ()) if decoder is None else (decoder.facts, decoder.described_arguments)
        placeholders = Placeholders(facts, arguments, description.arguments, description.source)
        mentioned_arguments = {*described_arguments, *placeholders.find_mentioned_arguments(description.goal)}
        goal = join_paragraphs(
            placeholders.fill(description.goal).rstrip(),
            placeholders.join_remaining_sentences(description.goal),
            describe_changed_settings(arguments, mentioned_arguments),
            describe_step_limit(env),
            describe_success(criterion, description.success),
        )
        self.game = EnvDescription(goal, list_fields(description.observation), description.actions, states=states)


def _build_decoder(description: DescriptionFile, env: gymnasium.Env[Any, Any]) -> Decoder:
    """Return the decoder that a text file names, after checking that the file describes the decoder's values."""
    name, source = description.decoder, description.source
    if name not in DECODERS:
        raise ConfigError(f"{source}: decoder={name} does not exist; use one of {', '.join(DECODERS)}")
    decoder = DECODERS[name](env, source)
    field_names = [field.name for field in description.observation]
    if missing := [value for value in decoder.value_names if value not in field_names]:
        raise ConfigError(f"{source}: observation lacks {missing[0]!r}, which the decoder {name} returns")
    if unknown := [field for field in field_names if field not in decoder.value_names]:
        names = ", ".join(decoder.value_names)
        raise ConfigError(f"{source}: observation has {unknown[0]!r}, and {name} returns {names}")
    return decoder
