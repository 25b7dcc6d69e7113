"""Selection of the describer for the option `env.text`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvDescription
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.gym.gymnasium_games import make
from llmrl.envs.gym.success import SuccessCriterion
from llmrl.envs.texts.decoders import DECODERS, Decoder
from llmrl.envs.texts.describers import (
    AutoDescriber,
    EnvDescriber,
    changed_settings_text,
    join_paragraphs,
    step_limit_text,
    success_text,
)
from llmrl.envs.texts.env_arguments import EnvKwargs
from llmrl.envs.texts.observation_format import check_actions, observation_formatter, states_rule
from llmrl.envs.texts.placeholders import Placeholders
from llmrl.envs.texts.schema import DescriptionFile, field_descriptions, read_text

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.env_factory import EnvFactory
    from llmrl.envs.gym.interfaces import Describer

FILES = Path(__file__).with_name("files")


def shipped_texts() -> list[str]:
    """Return the names of the texts in this package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def describer(text: str, env_factory: EnvFactory, criterion: SuccessCriterion | None = None) -> Describer:
    """Return `describer_of` an environment that `env_factory` makes, always with Gymnasium's own engine.

    Raises:
        ConfigError: see `describer_of` and `EnvFactory.make`.
    """
    env = make(env_factory, render=False)
    try:
        return describer_of(text, env, criterion, env_factory.trust)
    finally:
        env.close()


def describer_of(
    text: str, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None, trust: Trust = NOBODY
) -> Describer:
    """Return the text interface of an environment.

    Args:
        text: a shipped text (`taxi`), a file (`my/game.yaml`), a class (`package.module.Class`, called with the
            environment), `own` (the environment's own texts, see `describers.EnvDescriber`) or `auto` (names and ranges
            of its spaces).
        env: environment to describe; it is only inspected.
        criterion: criterion of a successful episode, which the text states (a class must state it itself); None: none.
        trust: modules in which a class may be defined.

    Raises:
        ConfigError: there is no such text, its class is not trusted, it is incomplete, or it describes another
            environment.
    """
    if text == "own":
        return EnvDescriber(env, criterion)
    if text == "auto":
        return AutoDescriber(env, criterion)
    if text in shipped_texts():
        return FileDescriber(read_text(FILES / f"{text}.yaml"), env, criterion)
    if text.endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigError(f"env.text={text}: there is no such file")
        return FileDescriber(read_text(path), env, criterion)
    if "." not in text:
        raise ConfigError(
            f"env.text={text} does not exist; use {', '.join(shipped_texts())}, own, auto, a file (my_text.yaml), or a "
            "class (package.Class)"
        )
    instance = trust.locate(text, "env.text")(env)
    if not (
        isinstance(getattr(instance, "game", None), EnvDescription) and callable(getattr(instance, "describe", None))
    ):
        raise ConfigError(
            f"env.text={text} must make an object with an attribute game (an EnvDescription) and a method describe"
        )
    return cast("Describer", instance)


class FileDescriber:
    """A describer with the texts of a `DescriptionFile`.

    Args:
        text: content of the text file.
        env: environment to describe; it is only inspected.
        criterion: criterion of success; None: there is none.

    Attributes:
        game: description of the game.

    Raises:
        ConfigError: the text is about another observation, other actions, or other arguments.
    """

    def __init__(
        self, text: DescriptionFile, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None
    ) -> None:
        self._decoder: Decoder | None = None
        if text.decoder:
            self._decoder = _decoder(text, env)
            states = self._decoder.states
        else:
            origin = f"{text.source}: observation"
            self._format = observation_formatter(env.observation_space, text.observation, text.decimals, origin)
            states = states_rule(env.observation_space, text.observation)
        check_actions(text.actions, env.action_space, text.source)
        goal = self._goal(text, env, criterion)
        self.game = EnvDescription(goal, field_descriptions(text.observation), text.actions, states=states)

    def _goal(self, text: DescriptionFile, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None) -> str:
        """Return the goal with its placeholders filled in and with the settings of this environment."""
        arguments = EnvKwargs(env)
        facts, names = ({}, ()) if self._decoder is None else (self._decoder.facts, self._decoder.arguments)
        filling = Placeholders(facts, arguments, text.arguments, text.source)
        return join_paragraphs(
            filling.fill(text.goal).rstrip(),
            filling.remaining_sentences(text.goal),
            changed_settings_text(arguments, {*names, *filling.mentioned_arguments(text.goal)}),
            step_limit_text(env),
            success_text(criterion, text.success),
        )

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the named values of an observation as a JSON object."""
        fields = self._format(observation) if self._decoder is None else self._decoder.decode(observation, info)
        return json.dumps(fields, ensure_ascii=False)


def _decoder(text: DescriptionFile, env: gymnasium.Env[Any, Any]) -> Decoder:
    """Return the decoder that a text names, after checking that the text describes its values."""
    if text.decoder not in DECODERS:
        raise ConfigError(f"{text.source}: decoder={text.decoder}: there are {', '.join(DECODERS)}")
    decoder = DECODERS[text.decoder](env, text.source)
    field_names = [field.name for field in text.observation]
    if lacking := [name for name in decoder.names if name not in field_names]:
        raise ConfigError(f"{text.source}: observation lacks {lacking[0]!r}, which {text.decoder} tells")
    if unknown := [name for name in field_names if name not in decoder.names]:
        tells = ", ".join(decoder.names)
        raise ConfigError(f"{text.source}: observation has {unknown[0]!r}, and {text.decoder} tells {tells}")
    return decoder
