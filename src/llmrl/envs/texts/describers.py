"""Environments that put themselves into words, and a draft for those that nobody has put into words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvDescription
from llmrl.envs.gym.channel_spaces import continuous_actions
from llmrl.envs.gym.success import SuccessCriterion
from llmrl.envs.texts.env_arguments import EnvKwargs
from llmrl.envs.texts.instance_facts import changed, join_paragraphs, limit, success
from llmrl.envs.texts.observation_format import check_actions, observation_formatter, states_rule
from llmrl.envs.texts.schema import DECIMALS, Field, pairs, parse_text

if TYPE_CHECKING:
    import gymnasium

METHODS = ("get_goal_description", "get_observation_schema", "get_action_schema")
"""What an environment, or a wrapper around it, offers that speaks for itself: a text; a mapping of the names of an
observation to texts or to mappings with a `description`; and a mapping of actions to texts. An action's key is what a
player answers."""


class EnvDescriber:
    """`env.text=own`: the environment, or a wrapper around it, has the methods of `METHODS`.

    What it says is told as it is: what its arguments mean is its own business.

    Raises:
        ConfigError: it lacks one of them, or what they give does not fit its spaces.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None) -> None:
        name = _name(env)
        goal, observation, actions = (_called(env, method, name) for method in METHODS)
        # `type` is customary there; what a value may be is told by the other keys.
        fields = {str(n): _without_type(entry) for n, entry in dict(observation).items()}
        keys = sorted(actions) if all(isinstance(key, int) for key in actions) else list(actions)
        where = f"{name} (its own words)"
        text = parse_text(
            {"goal": goal, "observation": fields, "actions": {str(key): str(actions[key]) for key in keys}}, where
        )
        self._tell = observation_formatter(env.observation_space, text.observation, text.decimals, where)
        check_actions(text.actions, env.action_space, where)
        states = states_rule(env.observation_space, text.observation)
        goal = join_paragraphs(text.goal, limit(env), success(criterion))
        self.game = EnvDescription(goal, pairs(text.observation), text.actions, states=states)

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        return json.dumps(self._tell(observation), ensure_ascii=False)


class AutoDescriber:
    """`env.text=auto`: names and ranges as far as the spaces tell them. Good enough to try; a text of one's own is
    better."""

    def __init__(self, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None) -> None:
        fields = draft(env.observation_space)
        self._tell = observation_formatter(env.observation_space, fields, DECIMALS, f"the draft of {_name(env)}")
        goal = join_paragraphs(
            f"The game is {_name(env)} of Gymnasium. Collect as much reward as you can over an episode.",
            changed(EnvKwargs(env)),
            limit(env),
            success(criterion),
        )
        self.game = EnvDescription(goal, pairs(fields), draft_actions(env.action_space))

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        return json.dumps(self._tell(observation), ensure_ascii=False)


def draft(space: Any) -> tuple[Field, ...]:
    """A field for each member of an observation, with what the space tells of it."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return tuple(_drafted(name, sub) for name, sub in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return tuple(_drafted(f"part_{i}", sub) for i, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        bounds = zip(space.low.tolist(), space.high.tolist(), strict=True)
        return tuple(Field(f"number_{i}", "a number", range=_range(*ends)) for i, ends in enumerate(bounds))
    return (_drafted("observation", space),)


def draft_actions(space: Any) -> tuple[tuple[str, str], ...]:
    """(what to answer, what it does), as far as the space tells."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return tuple((str(int(space.start) + i), f"action {int(space.start) + i}") for i in range(int(space.n)))
    if isinstance(space, spaces.Box):
        ends = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
        return tuple((f"action_{i}", f"a number from {low:g} to {high:g}") for i, (low, high) in enumerate(ends))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        numbers = continuous_actions(space, "a game")
        assert numbers is not None
        told = zip(numbers.names, numbers.low, numbers.high, numbers.whole, strict=True)
        return tuple((name, f"a {'whole ' * whole}number from {low:g} to {high:g}") for name, low, high, whole in told)
    return tuple((f"action_{i}", "a whole number") for i in range(int(np.prod(space.shape))))


def _drafted(name: str, space: Any) -> Field:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        last = int(space.start) + int(space.n) - 1
        return Field(name, "a whole number", range=(int(space.start), last))
    if isinstance(space, spaces.Box):
        size = int(np.prod(space.shape))
        words = "a number" if size == 1 else f"{' x '.join(map(str, space.shape))} numbers"
        return Field(name, words, range=_range(float(space.low.min()), float(space.high.max())))
    if isinstance(space, spaces.Text):
        return Field(name, "a text")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return Field(name, "several things", fields=draft(space))
    return Field(name, f"a {type(space).__name__} of Gymnasium")


def _range(low: float, high: float) -> tuple[float | str, float | str] | None:
    return (low, high) if np.isfinite(low) and np.isfinite(high) and abs(high) < 1e6 and abs(low) < 1e6 else None


def _called(env: Any, name: str, where: str) -> Any:
    """What a method of the environment or of a wrapper around it gives, the outermost first."""
    layer = env
    while True:
        # A wrapper of Gymnasium hides nothing it does not define.
        method = vars(type(layer)).get(name) or getattr(type(layer), name, None)
        if method is not None:
            return getattr(layer, name)()
        if not hasattr(layer, "env"):
            raise ConfigError(
                f"{where} does not put itself into words: it has no method {name}; env.text=own needs "
                f"{', '.join(METHODS)}"
            )
        layer = layer.env


def _name(env: Any) -> str:
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__


def _without_type(entry: Any) -> Any:
    return {k: v for k, v in entry.items() if k != "type"} if isinstance(entry, Mapping) else entry
