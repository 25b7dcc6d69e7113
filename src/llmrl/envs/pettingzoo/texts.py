"""What agents of a world are told in words, each of them in its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.records import embedded
from llmrl.core.spaces import EnvDescription, ParameterSpace
from llmrl.core.trust import Trust
from llmrl.envs import mechanism_text
from llmrl.envs.gym.channel_spaces import is_image
from llmrl.envs.texts import describer_of
from llmrl.envs.texts.describers import draft, draft_actions
from llmrl.envs.texts.env_arguments import EnvKwargs
from llmrl.envs.texts.instance_facts import changed, join_paragraphs, limit
from llmrl.envs.texts.observation_format import Tell, observation_formatter
from llmrl.envs.texts.schema import DECIMALS, Field, pairs

if TYPE_CHECKING:
    from llmrl.envs.gym.interfaces import Describer
    from llmrl.envs.pettingzoo.agent_channels import AgentView
    from llmrl.envs.pettingzoo.games import Game

TOLD = "text"
"""Entry of an agent's info that is told as it is, where a world puts itself into words."""


class Seat:
    """One agent's place in a world, in the shape in which describers expect an environment of Gymnasium.

    Attributes:
        observation_space, action_space: of the agent.
        env, unwrapped: the world.
        spec: its id, arguments, and limit of steps.
    """

    def __init__(self, world: Any, view: AgentView, id: str, kwargs: Mapping[str, Any], horizon: int | None) -> None:
        self.observation_space, self.action_space = view.space, view.action_space
        self.env, self.unwrapped = world, world.unwrapped
        self.spec = SimpleNamespace(id=id, kwargs=dict(kwargs), max_episode_steps=horizon)


class DraftDescriber:
    """`env.text=auto`: names and ranges as far as the spaces tell them, without pictures.

    Where infos have the entry `text`, this is told, and not the numbers.

    Args:
        seat: whose place is described; it is only looked at.
        agents: names of all agents.
        turns: whether they act one after another.
        worded: whether infos have the entry `text`.

    Attributes:
        game: what can be told before it begins.
    """

    def __init__(self, seat: Any, agents: Sequence[str], turns: bool, worded: bool) -> None:
        name = seat.spec.id
        fields: tuple[Field, ...] = ()
        self._worded = worded
        self._tell: Tell = _nothing
        if not worded and not is_image(seat.observation_space):
            fields = draft(seat.observation_space)
            self._tell = observation_formatter(seat.observation_space, fields, DECIMALS, f"the draft of {name}")
        players = f"{len(agents)} players ({', '.join(agents)})" if len(agents) > 1 else "one player"
        order = " They take turns." if turns and len(agents) > 1 else ""
        goal = join_paragraphs(
            f"The game is {name}, with {players}.{order} Collect as much reward as you can over an episode.",
            changed(EnvKwargs(seat)),
            limit(seat),
        )
        told = (("state", "what you know of the game"),) if worded else pairs(fields)
        self.game = EnvDescription(goal, told, draft_actions(seat.action_space))

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the named values as a JSON object."""
        told = {"state": str(info.get(TOLD, ""))} if self._worded else self._tell(observation)
        return json.dumps(told, ensure_ascii=False)


class WorldTexts:
    """Texts of all agents of a world.

    An agent that has nothing to decide is told nothing (""), so that no model is asked for it.

    Args:
        text: `auto`, or what `llmrl.envs.texts.describer_of` takes.
        game: a game that has begun; it is only looked at.
        views: view of each agent.
        id: the world's name for players.
        kwargs: arguments it was made with.
        turns: whether agents act one after another.
        space: the mechanism's values; None: there is no mechanism.
        shown: whether agents see these values.
        base_reward: reward before the mechanism, in words.
        rule: what holds whatever is set, in words.
        trust: modules in which a class may be defined.

    Attributes:
        description: what can be told before a game begins.

    Raises:
        ConfigError: see `describer_of`.
    """

    def __init__(
        self,
        text: str,
        game: Game,
        views: Mapping[str, AgentView],
        id: str,
        kwargs: Mapping[str, Any],
        turns: bool,
        space: ParameterSpace | None,
        shown: bool,
        base_reward: str,
        rule: str,
        trust: Trust,
    ) -> None:
        self._views, self._space, self._shown = views, space, shown
        self._describers: dict[str, Describer] = {}
        alike: list[tuple[AgentView, Describer]] = []
        worded = any(TOLD in info for info in game.infos.values())
        for agent, view in views.items():
            known = next((d for v, d in alike if (v.space, v.action_space) == (view.space, view.action_space)), None)
            if known is None:
                seat: Any = Seat(game.world, view, id, kwargs, game.horizon)
                known = (
                    DraftDescriber(seat, tuple(views), turns, worded)
                    if text == "auto"
                    else describer_of(text, seat, None, trust)
                )
                alike.append((view, known))
            self._describers[agent] = known
        described = [d.game for _, d in alike]
        widest = max(described, key=lambda each: len(each.actions))
        fields = {name: told for each in reversed(described) for name, told in each.observation}
        goal = widest.goal
        mechanism: tuple[tuple[str, str], ...] = ()
        if space is not None:
            goal = join_paragraphs(goal, mechanism_text.rules_in_words(space, base_reward, rule, shown))
            mechanism = _FIELDS[0 if shown else 1 :]
        own = (("you", "your name among the players"),) if len(views) > 1 else ()
        first = next(iter(game.seen))
        values = None if space is None else space.neutral
        self.description = EnvDescription(
            goal,
            (*own, *fields.items(), *mechanism),
            widest.actions,
            example=self.told(first, game.seen[first], game.infos[first], values, (0.0, 0.0)),
            states=widest.states,
        )

    def told(
        self,
        agent: str,
        seen: Any,
        info: Mapping[str, Any],
        values: np.ndarray | None,
        rewards: tuple[float, float] | None,
    ) -> str:
        """Return the observation of one agent.

        Args:
            agent: the agent.
            seen, info: its observation and info.
            values: the mechanism's values, [d]; None: there is no mechanism.
            rewards: sum of the agent's rewards since its last observation, before and after the mechanism; None before
                the first step.
        """
        text = self._describers[agent].describe(self._views[agent].picked(seen), info)
        said = embedded(text)
        you = {"you": agent} if len(self._views) > 1 else {}
        more: dict[str, Any] = {}
        if values is not None and self._space is not None:
            if self._shown:
                more["mechanism"] = dict(zip(self._space.names, _rounded(*values.tolist()), strict=True))
            if rewards is not None:
                before, after = rewards
                more["last_reward"] = dict(
                    zip(("before_payments", "payments"), _rounded(before, after - before), strict=True)
                )
        if not (you or more):
            return text
        told = said if isinstance(said, dict) else {"observation": said}
        return json.dumps({**you, **told, **more}, ensure_ascii=False)


_FIELDS = (
    ("mechanism", "the numbers that are set now"),
    (
        "last_reward",
        "the sum of your rewards since your last observation, in two parts. before_payments: what the game paid; "
        "payments: what was added or taken",
    ),
)


def _nothing(seen: Any) -> dict[str, Any]:
    return {}


def _rounded(*numbers: float) -> list[float]:
    return [round(float(number), mechanism_text.DIGITS) + 0.0 for number in numbers]
