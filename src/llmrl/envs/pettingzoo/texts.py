"""Texts for the agents of a world, each with its own describer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.records import parse_if_json
from llmrl.core.spaces import EnvDescription, ParameterSpace
from llmrl.core.trust import Trust
from llmrl.envs import mechanism_text
from llmrl.envs.gym.channel_spaces import is_image
from llmrl.envs.mechanisms import RewardTax
from llmrl.envs.pettingzoo.agent_channels import TEXT_KEY
from llmrl.envs.pettingzoo.factory import PettingZooSettings
from llmrl.envs.texts import build_describer
from llmrl.envs.texts.describers import (
    describe_changed_settings,
    describe_step_limit,
    draft_actions,
    draft_fields,
    join_paragraphs,
)
from llmrl.envs.texts.env_arguments import EnvKwargs
from llmrl.envs.texts.observation_format import Formatter, build_formatter
from llmrl.envs.texts.schema import DECIMALS, Field, describe_fields

if TYPE_CHECKING:
    from llmrl.envs.pettingzoo.agent_channels import AgentView
    from llmrl.envs.pettingzoo.games import Game
    from llmrl.envs.texts.describers import Describer


class DraftDescriber:
    """`env.text=auto`: names and ranges derived from the spaces, without images.

    If infos have the entry `text`, an observation consists of this entry instead of the numbers.

    Args:
        agent_env: agent to describe; it is only inspected.
        agents: names of all agents.
        is_turn_based: whether they act one after another.
        has_text: whether infos have the entry `text`.

    Attributes:
        game: description of the world for players.
    """

    def __init__(self, agent_env: Any, agents: Sequence[str], is_turn_based: bool, has_text: bool) -> None:
        name = agent_env.spec.id
        fields: tuple[Field, ...] = ()
        self._has_text = has_text
        self._format: Formatter = lambda observation: {}
        if not has_text and not is_image(agent_env.observation_space):
            fields = draft_fields(agent_env.observation_space)
            self._format = build_formatter(agent_env.observation_space, fields, DECIMALS, f"the draft of {name}")
        players = f"{len(agents)} players ({', '.join(agents)})" if len(agents) > 1 else "one player"
        order = " They take turns." if is_turn_based and len(agents) > 1 else ""
        goal = join_paragraphs(
            f"The game is {name}, with {players}.{order} Collect as much reward as you can over an episode.",
            describe_changed_settings(EnvKwargs(agent_env)),
            describe_step_limit(agent_env),
        )
        observation_fields = (("state", "what you know of the game"),) if has_text else describe_fields(fields)
        names = getattr(agent_env.env, "action_names", None)
        actions = (
            draft_actions(agent_env.action_space)
            if names is None
            else tuple((name, f"the move [{name}]") for name in names)
        )
        self.game = EnvDescription(goal, observation_fields, actions)

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the named values as a JSON object."""
        fields = {"state": str(info.get(TEXT_KEY, ""))} if self._has_text else self._format(observation)
        return json.dumps(fields, ensure_ascii=False)


class WorldTexts:
    """Texts of all agents of a world.

    The text of an agent that has nothing to decide is "", so that no model is called for it.

    Args:
        settings: options of the environment; `text` is `auto`, or a value for `llmrl.envs.texts.build_describer`.
        game: a game that has begun; it is only inspected.
        views: view of each agent.
        name: the world's name for players.
        is_turn_based: whether agents act one after another.
        space: the mechanism's values; None: there is no mechanism.
        trust: modules in which a class may be defined.

    Attributes:
        description: description of the world for players.

    Raises:
        ConfigError: see `build_describer`.
    """

    def __init__(
        self,
        settings: PettingZooSettings,
        game: Game,
        views: Mapping[str, AgentView],
        name: str,
        is_turn_based: bool,
        space: ParameterSpace | None,
        trust: Trust,
    ) -> None:
        assert settings.text is not None
        self._views, self._space, self._shows_mechanism = views, space, settings.show_mechanism
        self._describers: dict[str, Describer] = {}
        view_describers: list[tuple[AgentView, Describer]] = []
        has_text = any(TEXT_KEY in info for info in game.infos.values())
        for agent, view in views.items():
            describer = next(
                (d for v, d in view_describers if (v.space, v.action_space) == (view.space, view.action_space)), None
            )
            if describer is None:
                agent_env = _agent_env(game, view, name, settings.kwargs or {})
                describer = (
                    DraftDescriber(agent_env, tuple(views), is_turn_based, has_text)
                    if settings.text == "auto"
                    else build_describer(settings.text, agent_env, None, trust)
                )
                view_describers.append((view, describer))
            self._describers[agent] = describer
        descriptions = [d.game for _, d in view_describers]
        widest = max(descriptions, key=lambda description: len(description.actions))
        fields = {
            field: meaning for description in reversed(descriptions) for field, meaning in description.observation
        }
        goal = widest.goal
        mechanism: tuple[tuple[str, str], ...] = ()
        if space is not None:
            rule = RewardTax.rule_text if settings.tax else ""
            rules = mechanism_text.describe_rules(space, RewardTax.base_reward_text, rule, settings.show_mechanism)
            goal = join_paragraphs(goal, rules)
            mechanism = _MECHANISM_FIELDS[0 if settings.show_mechanism else 1 :]
        name_field = (("you", "your name among the players"),) if len(views) > 1 else ()
        agent_name = next(iter(game.observations))
        self.description = EnvDescription(
            goal,
            (*name_field, *fields.items(), *mechanism),
            widest.actions,
            example=self.observation_text(
                agent_name,
                game.observations[agent_name],
                game.infos[agent_name],
                None if space is None else space.neutral,
                (0.0, 0.0),
            ),
            states=widest.states,
        )

    def observation_text(
        self,
        agent: str,
        observation: Any,
        info: Mapping[str, Any],
        values: np.ndarray | None,
        rewards: tuple[float, float] | None,
    ) -> str:
        """Return the text observation of one agent.

        Args:
            agent: name of the agent.
            observation: its observation.
            info: its info.
            values: the mechanism's values, [d]; None: there is no mechanism.
            rewards: sum of the agent's rewards since its last observation, before and after the mechanism; None before
                the first step.
        """
        text = self._describers[agent].describe(self._views[agent].strip_mask(observation), info)
        content = parse_if_json(text)
        name_field = {"you": agent} if len(self._views) > 1 else {}
        report: dict[str, Any] = {}
        if values is not None and self._space is not None:
            if self._shows_mechanism:
                report["mechanism"] = dict(zip(self._space.names, _round(*values.tolist()), strict=True))
            if rewards is not None:
                base_reward, total_reward = rewards
                report["last_reward"] = dict(
                    zip(("before_payments", "payments"), _round(base_reward, total_reward - base_reward), strict=True)
                )
        if not (name_field or report):
            return text
        fields = content if isinstance(content, dict) else {"observation": content}
        return json.dumps({**name_field, **fields, **report}, ensure_ascii=False)


_MECHANISM_FIELDS = (
    ("mechanism", "the numbers that are set now"),
    (
        "last_reward",
        "the sum of your rewards since your last observation, in two parts. before_payments: what the game paid; "
        "payments: what was added or taken",
    ),
)


def _agent_env(game: Game, view: AgentView, name: str, kwargs: Mapping[str, Any]) -> Any:
    """Return one agent of a world in the form of a Gymnasium environment, as describers expect it."""
    return SimpleNamespace(
        observation_space=view.space,
        action_space=view.action_space,
        env=game.world,
        unwrapped=game.world.unwrapped,
        spec=SimpleNamespace(id=name, kwargs=dict(kwargs), max_episode_steps=game.horizon),
    )


def _round(*numbers: float) -> list[float]:
    return [round(float(number), mechanism_text.DIGITS) + 0.0 for number in numbers]
