"""Text observations for the agents of a PettingZoo environment (world)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.records import parse_if_json
from llmrl.core.spaces import EnvDescription, ParameterSpace
from llmrl.core.trust import Trust
from llmrl.envs import mechanism_text
from llmrl.envs.gym.channel_spaces import is_image
from llmrl.envs.mechanisms import RewardTax
from llmrl.envs.pettingzoo.agent_channels import TEXT_KEY, AgentInterface
from llmrl.envs.pettingzoo.factory import PettingZooSettings
from llmrl.envs.pettingzoo.games import AECGame, Game
from llmrl.envs.texts import build_describer
from llmrl.envs.texts.describers import (
    describe_changed_settings,
    describe_step_limit,
    draft_actions,
    draft_fields,
    join_paragraphs,
)
from llmrl.envs.texts.env_arguments import EnvArguments
from llmrl.envs.texts.observation_format import Formatter, build_formatter
from llmrl.envs.texts.schema import DECIMALS, Field, list_fields

if TYPE_CHECKING:
    from llmrl.envs.texts.describers import Describer


class DraftDescriber:
    """Describer for `env.text=auto`: names and ranges are derived from the spaces; images are omitted.

    If infos have the entry `text`, an observation consists of this entry instead of the numbers.

    Args:
        agent_env: one agent as an object with the attributes of a Gymnasium environment; it is only read.
        game: a game of the world; it is only read.
        has_text: whether infos have the entry `text`.

    Attributes:
        game: description of the world for players.
    """

    def __init__(self, agent_env: Any, game: Game, has_text: bool) -> None:
        name, agents = agent_env.spec.id, game.agents
        fields: tuple[Field, ...] = ()
        self._has_text = has_text
        self._formatter: Formatter = lambda observation: {}
        if not has_text and not is_image(agent_env.observation_space):
            fields = draft_fields(agent_env.observation_space)
            self._formatter = build_formatter(agent_env.observation_space, fields, DECIMALS, f"the draft of {name}")
        players = f"{len(agents)} players ({', '.join(agents)})" if len(agents) > 1 else "one player"
        turn_sentence = " They take turns." if isinstance(game, AECGame) and len(agents) > 1 else ""
        goal = join_paragraphs(
            f"The game is {name}, with {players}.{turn_sentence} Collect as much reward as you can over an episode.",
            describe_changed_settings(EnvArguments(agent_env)),
            describe_step_limit(agent_env),
        )
        observation_fields = (("state", "what you know of the game"),) if has_text else list_fields(fields)
        move_texts = getattr(agent_env.env, "action_names", None)
        actions = (
            draft_actions(agent_env.action_space)
            if move_texts is None
            else tuple((name, f"the move [{name}]") for name in move_texts)
        )
        self.game = EnvDescription(goal, observation_fields, actions)

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the text of an observation: its named values, or the state in words, as a JSON object."""
        fields = {"state": str(info.get(TEXT_KEY, ""))} if self._has_text else self._formatter(observation)
        return json.dumps(fields, ensure_ascii=False)


class WorldTexts:
    """Text interface of all agents of a world; agents with equal spaces share a describer.

    Args:
        settings: options of the environment; `text` is `auto`, or a value for `llmrl.envs.texts.build_describer`.
        game: a game that was reset; it is only read.
        interfaces: name of each agent -> its interface.
        mechanism_space: space of the mechanism's values; None: there is no mechanism.
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
        interfaces: Mapping[str, AgentInterface],
        mechanism_space: ParameterSpace | None,
        trust: Trust,
    ) -> None:
        assert settings.text is not None
        self._interfaces, self._mechanism_space = interfaces, mechanism_space
        self._shows_mechanism = settings.show_mechanism
        self._describers: dict[str, Describer] = {}
        describers: list[tuple[Any, Describer]] = []  # (spaces of an agent, its describer)
        has_text = any(TEXT_KEY in info for info in game.infos.values())
        for agent, interface in interfaces.items():
            agent_spaces = interface.observation_space, interface.action_space
            describer = next((describer for spaces, describer in describers if spaces == agent_spaces), None)
            if describer is None:
                # In the form of a Gymnasium environment, as describers expect it.
                env_spec = SimpleNamespace(
                    id=game.name, kwargs=dict(settings.kwargs or {}), max_episode_steps=game.horizon
                )
                agent_env: Any = SimpleNamespace(
                    observation_space=interface.observation_space,
                    action_space=interface.action_space,
                    env=game.world,
                    unwrapped=game.world.unwrapped,
                    spec=env_spec,
                )
                if settings.text == "auto":
                    describer = DraftDescriber(agent_env, game, has_text)
                else:
                    describer = build_describer(settings.text, agent_env, None, trust)
                describers.append((agent_spaces, describer))
            self._describers[agent] = describer
        descriptions = [describer.game for _, describer in describers]
        longest_description = max(descriptions, key=lambda description: len(description.actions))
        fields = {
            field: meaning for description in reversed(descriptions) for field, meaning in description.observation
        }
        goal = longest_description.goal
        mechanism_fields: tuple[tuple[str, str], ...] = ()
        if mechanism_space is not None:
            constant_rule = RewardTax.rule_text if settings.tax else ""
            base_reward, shows_values = RewardTax.base_reward_text, settings.show_mechanism
            rules_text = mechanism_text.describe_rules(mechanism_space, base_reward, constant_rule, shows_values)
            goal = join_paragraphs(goal, rules_text)
            mechanism_fields = _MECHANISM_FIELDS[0 if settings.show_mechanism else 1 :]
        name_field = (("you", "your name among the players"),) if len(interfaces) > 1 else ()
        agent_name = next(iter(game.observations))
        self.description = EnvDescription(
            goal,
            (*name_field, *fields.items(), *mechanism_fields),
            longest_description.actions,
            example=self.describe_observation(
                agent_name,
                game.observations[agent_name],
                game.infos[agent_name],
                values=None if mechanism_space is None else mechanism_space.neutral,
                rewards=(0.0, 0.0),
            ),
            states=longest_description.states,
        )

    def describe_observation(
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
            rewards: sums of the agent's rewards since its last observation, before and after the mechanism's payments;
                None before the first step.
        """
        text = self._describers[agent].describe(self._interfaces[agent].strip_mask(observation), info)
        content = parse_if_json(text)
        name_field = {"you": agent} if len(self._interfaces) > 1 else {}
        report: dict[str, Any] = {}
        if values is not None and self._mechanism_space is not None:
            if self._shows_mechanism:
                numbers = _round_numbers(*values.tolist())
                report["mechanism"] = dict(zip(self._mechanism_space.names, numbers, strict=True))
            if rewards is not None:
                before_payments, payments = _round_numbers(rewards[0], rewards[1] - rewards[0])
                report["last_reward"] = {"before_payments": before_payments, "payments": payments}
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


def _round_numbers(*numbers: float) -> list[float]:
    return [round(float(number), mechanism_text.N_DECIMALS) + 0.0 for number in numbers]
