"""From the value of `env.text` to a describer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvDescription
from llmrl.core.trust import Trust
from llmrl.envs.gym.success import SuccessCriterion
from llmrl.envs.texts.decoders import DECODERS, Decoder
from llmrl.envs.texts.describers import AutoDescriber, EnvDescriber
from llmrl.envs.texts.env_arguments import EnvKwargs
from llmrl.envs.texts.instance_facts import changed, join_paragraphs, limit, success
from llmrl.envs.texts.observation_format import check_actions, observation_formatter, states_rule
from llmrl.envs.texts.placeholders import Placeholders
from llmrl.envs.texts.schema import DescriptionFile, pairs, read_text

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.interfaces import Describer

FILES = Path(__file__).with_name("files")


def shipped() -> list[str]:
    """Names of the texts that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def find_describer(
    text: str, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None, trust: Trust
) -> Describer:
    """See `llmrl.envs.texts.describer_of`."""
    if text == "own":
        return EnvDescriber(env, criterion)
    if text == "auto":
        return AutoDescriber(env, criterion)
    if text in shipped():
        return FileDescriber(read_text(FILES / f"{text}.yaml"), env, criterion)
    if text.endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigError(f"env.text={text}: there is no such file")
        return FileDescriber(read_text(path), env, criterion)
    if "." not in text:
        raise ConfigError(
            f"env.text={text}: there are {', '.join(shipped())}, own, auto, a file my_text.yaml, and package.Class"
        )
    built = trust.locate(text, "env.text")(env)
    if not (isinstance(getattr(built, "game", None), EnvDescription) and callable(getattr(built, "describe", None))):
        raise ConfigError(f"env.text={text}: it has no attribute game (a GameText) or no method describe")
    described: Describer = built
    return described


class FileDescriber:
    """An environment in the words of a `DescriptionFile`.

    Args:
        text: what is said of it.
        env: the environment; it is only looked at.
        criterion: what makes an episode a success; None: nothing does.

    Attributes:
        game: what can be told before it begins.

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
            where = f"{text.where}: observation"
            self._tell = observation_formatter(env.observation_space, text.observation, text.decimals, where)
            states = states_rule(env.observation_space, text.observation)
        check_actions(text.actions, env.action_space, text.where)
        goal = self._goal(text, env, criterion)
        self.game = EnvDescription(goal, pairs(text.observation), text.actions, states=states)

    def _goal(self, text: DescriptionFile, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None) -> str:
        """What the game is, with what holds of it as it was made."""
        arguments = EnvKwargs(env)
        facts, known = ({}, ()) if self._decoder is None else (self._decoder.facts, self._decoder.arguments)
        filling = Placeholders(facts, arguments, text.arguments, text.where)
        return join_paragraphs(
            filling.fill(text.goal).rstrip(),
            filling.rest(text.goal),
            changed(arguments, {*known, *filling.told(text.goal)}),
            limit(env),
            success(criterion, text.success),
        )

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The named values as a JSON object."""
        told = self._tell(observation) if self._decoder is None else self._decoder.tell(observation, info)
        return json.dumps(told, ensure_ascii=False)


def _decoder(text: DescriptionFile, env: gymnasium.Env[Any, Any]) -> Decoder:
    """The decoder that a text names, which must tell what the text describes."""
    if text.decoder not in DECODERS:
        raise ConfigError(f"{text.where}: decoder={text.decoder}: there are {', '.join(DECODERS)}")
    decoder = DECODERS[text.decoder](env, text.where)
    described = [field.name for field in text.observation]
    if lacking := [name for name in decoder.names if name not in described]:
        raise ConfigError(f"{text.where}: observation lacks {lacking[0]!r}, which {text.decoder} tells")
    if unknown := [name for name in described if name not in decoder.names]:
        tells = ", ".join(decoder.names)
        raise ConfigError(f"{text.where}: observation has {unknown[0]!r}, and {text.decoder} tells {tells}")
    return decoder
