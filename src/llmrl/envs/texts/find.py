"""From the value of `env.text` to a describer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import GameText
from llmrl.core.trust import Trust
from llmrl.envs.gym.success import Criterion
from llmrl.envs.texts.arguments import Arguments
from llmrl.envs.texts.circumstances import changed, limit, success, together
from llmrl.envs.texts.decoders import DECODERS, Decoder
from llmrl.envs.texts.filling import Filling
from llmrl.envs.texts.own import Drafted, OwnWords
from llmrl.envs.texts.schema import Text, pairs, read_text
from llmrl.envs.texts.telling import check_actions, states_rule, teller

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.protocols import Describer

FILES = Path(__file__).with_name("files")


def shipped() -> list[str]:
    """Names of the texts that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def find(text: str, env: gymnasium.Env[Any, Any], criterion: Criterion | None, trust: Trust) -> Describer:
    """See `llmrl.envs.texts.describer_of`."""
    if text == "own":
        return OwnWords(env, criterion)
    if text == "auto":
        return Drafted(env, criterion)
    if text in shipped():
        return Described(read_text(FILES / f"{text}.yaml"), env, criterion)
    if text.endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigError(f"env.text={text}: there is no such file")
        return Described(read_text(path), env, criterion)
    if "." not in text:
        raise ConfigError(
            f"env.text={text}: there are {', '.join(shipped())}, own, auto, a file my_text.yaml, and package.Class"
        )
    built = trust.locate(text, "env.text")(env)
    if not (isinstance(getattr(built, "game", None), GameText) and callable(getattr(built, "describe", None))):
        raise ConfigError(f"env.text={text}: it has no attribute game (a GameText) or no method describe")
    described: Describer = built
    return described


class Described:
    """An environment in the words of a `Text`.

    Args:
        text: what is said of it.
        env: the environment; it is only looked at.
        criterion: what makes an episode a success; None: nothing does.

    Attributes:
        game: what can be told before it begins.

    Raises:
        ConfigError: the text is about another observation, other actions, or other arguments.
    """

    def __init__(self, text: Text, env: gymnasium.Env[Any, Any], criterion: Criterion | None = None) -> None:
        self._decoder: Decoder | None = None
        if text.decoder:
            self._decoder = _decoder(text, env)
            states = self._decoder.states
        else:
            where = f"{text.where}: observation"
            self._tell = teller(env.observation_space, text.observation, text.decimals, where)
            states = states_rule(env.observation_space, text.observation)
        check_actions(text.actions, env.action_space, text.where)
        goal = self._goal(text, env, criterion)
        self.game = GameText(goal, pairs(text.observation), text.actions, states=states)

    def _goal(self, text: Text, env: gymnasium.Env[Any, Any], criterion: Criterion | None) -> str:
        """What the game is, with what holds of it as it was made."""
        arguments = Arguments(env)
        facts, known = ({}, ()) if self._decoder is None else (self._decoder.facts, self._decoder.arguments)
        filling = Filling(facts, arguments, text.arguments, text.where)
        return together(
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


def _decoder(text: Text, env: gymnasium.Env[Any, Any]) -> Decoder:
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
