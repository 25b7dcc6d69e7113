"""A player for a Gymnasium environment in a program of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.agents.llm_player.answer_format import AnswerWith
from llmrl.agents.llm_player.conversation import SHOWN, Show
from llmrl.agents.llm_player.player_settings import PlayerSettings
from llmrl.agents.llm_player.policy import LLMPolicy
from llmrl.core.arguments import checked, type_hints_of
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.observers import Transition
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import Observation, PolicyOutput, Step
from llmrl.core.spaces import Channel, EnvDescription, EnvSpec
from llmrl.envs.gym.channel_spaces import continuous_actions, to_actions
from llmrl.envs.gym.interfaces import Describer
from llmrl.envs.gym.success import Success, SuccessCriterion
from llmrl.envs.texts import describer_of
from llmrl.llms.by_name import chat_model

if TYPE_CHECKING:
    import gymnasium


class Player:
    """A chat model that plays one Gymnasium environment; make it with `make_player`.

    >>> player = make_player(env, text="taxi", llm="gpt4o", temperature=0.0)              # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                                             # doctest: +SKIP
    >>> player.reset()                                                                    # doctest: +SKIP
    >>> over = False                                                                      # doctest: +SKIP
    >>> while not over:                                                                   # doctest: +SKIP
    ...     action = player.act(observation, info)
    ...     observation, reward, terminated, truncated, info = env.step(action)
    ...     player.on_step(reward, terminated, truncated)  # may be left out
    ...     over = terminated or truncated

    Attributes:
        note: what there is to say about the last action: reflection, reply, whether it was valid, tokens, cost.
        policy: what decides, with its counters.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], describer: Describer, policy: LLMPolicy) -> None:
        self.env, self.policy = env, policy
        self._describer = describer
        self.note: dict[str, Any] = {}
        self._over = True
        self._acted: tuple[Observation, PolicyOutput] | None = None
        self._untold = False  # an action was taken, and nobody has said what it led to

    def reset(self) -> None:
        """A new episode begins. What the environment is seeded with is the caller's business: the model's replies
        depend on what is seen, and on its own stream."""
        self.policy.on_reset(np.array([True]), {})
        self.note, self._over, self._untold = {}, False, False

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """The action for an observation, as the environment's `step` takes it; `info` may hold an `action_mask`.

        Each call is one step of the episode.

        Raises:
            ValueError: the episode is over, or none has begun.
            LLMError: the model could not be reached.
        """
        if self._over:
            raise ValueError("the episode is over; call reset() first")
        if self._untold:
            self.on_step(math.nan)
        told = np.empty((1, 1), dtype=object)
        told[0, 0] = self._describer.describe(observation, info or {})
        seen: dict[str, Any] = {"text": told}
        if "action_mask" in self.policy.channels:
            n = self.policy.spec.n_actions
            mask = (info or {}).get("action_mask")
            seen["action_mask"] = (np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool))[None, None]
        act = self.policy.act(seen)
        assert act.notes is not None
        self.note, self._acted, self._untold = act.notes[0][0], (seen, act), True
        [action] = to_actions(self.env.action_space, act.action.numpy())
        return action

    def on_step(self, reward: float, terminated: bool = False, truncated: bool = False) -> None:
        """What the action led to: what is shown with the next observation, and what lessons and `last_episode` need.

        A player who is not told plays on without rewards, returns and ends of episodes.
        """
        over = terminated or truncated
        rewards = np.array([[reward]], dtype=np.float32)
        step = Step({}, rewards, rewards, np.array([terminated]), np.array([truncated]))
        if self._acted is not None:
            self.policy.on_step(Transition(*self._acted, step, np.array([over])))
        self._over, self._untold = over, False


def make_player(
    env: gymnasium.Env[Any, Any],
    text: str = "own",
    llm: str | ChatModel = "scripted",
    *,
    history: NonNegativeInt = 10,
    action_every: PositiveInt = 1,
    reflection: bool = True,
    require_reflection: bool = True,
    show: Sequence[Show] = SHOWN,
    lessons: NonNegativeInt = 0,
    answer_with: AnswerWith = "name",
    legal_only: bool = True,
    decimals: NonNegativeInt = 2,
    repair_turns: NonNegativeInt = 1,
    sliding_history: bool = False,
    plan: bool = False,
    success: Success | None = None,
    success_at: float | None = None,
    prompts: Path | None = None,
    seed: int = 0,
    **settings: Any,
) -> Player:
    """A player for `env`.

    Args:
        env: any Gymnasium environment with a Discrete, MultiDiscrete, MultiBinary or bounded Box action.
        text: what puts it into words: a shipped text (`taxi`), a file, `own` (the environment or a wrapper around it
            has `get_goal_description`, `get_observation_schema` and `get_action_schema`), or `auto`.
        llm: a model, or the name of an option of conf/llm, with `settings` in place of its own.
        history, action_every, reflection, require_reflection, show, lessons, answer_with, legal_only, decimals,
            repair_turns, sliding_history, plan: as in `agent=llm_player`.
        success, success_at: what makes an episode a success, as in `env.success`; the model is told.
        prompts: a folder of prompts that come before the package's.
        seed: of the model's stream.

    Raises:
        ConfigError: no environment, an argument that cannot be, text and environment that do not fit together, or no
            such model.
        LLMError: the model could never answer.
    """
    _check(env, dict(locals()))
    if isinstance(llm, str):
        model: ChatModel = chat_model(llm, seed=seed, **settings)
    elif settings:
        raise ConfigError(f"{next(iter(settings))}: settings are for models that are named, as in llm='gpt4o'")
    else:
        model = llm
    describer = describer_of(text, env, SuccessCriterion.of(success, success_at))
    spec = _spec(env, describer.game)
    told = PlayerSettings(
        history=history,
        action_every=action_every,
        reflection=reflection,
        require_reflection=require_reflection,
        show=show,
        lessons=lessons,
        answer_with=answer_with,
        legal_only=legal_only,
        decimals=decimals,
        repair_turns=repair_turns,
        prompt_folder=prompts,
        sliding_history=sliding_history,
        plan=plan,
    )
    policy = LLMPolicy(spec, model, told)
    return Player(env, describer, policy)


def _check(env: Any, given: dict[str, Any]) -> None:
    """Raise ConfigError for arguments of `make_player` that could not be; `given` holds them by name."""
    if not hasattr(env, "action_space") or not hasattr(env, "observation_space"):
        cure = f"gymnasium.make({env!r})" if isinstance(env, str) else "what gymnasium.make(id) returns"
        raise ConfigError(f"make_player takes an environment, not {env!r}: pass {cure}")
    for name, hint in type_hints_of(make_player).items():
        if name in given and name not in ("llm", "settings"):
            checked(given[name], hint, name)


def _spec(env: gymnasium.Env[Any, Any], text: EnvDescription) -> EnvSpec:
    from gymnasium import spaces

    actions = env.action_space
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    n_actions = int(actions.n) if isinstance(actions, spaces.Discrete) else 0
    spec = EnvSpec(
        name=name,
        n_envs=1,
        n_agents=1,
        observation={"text": Channel((), "object")},
        n_actions=n_actions,
        action_names=tuple(str(i) for i in range(n_actions)),
        horizon=None,
        continuous_actions=continuous_actions(actions, name),
        text=text,
    )
    # Whether an environment tells which actions are legal is seen in its first info; all are, where it does not.
    masked = {"action_mask": Channel((n_actions,), "bool", 0, 1)} if n_actions else {}
    return replace(spec, observation={**spec.observation, **masked})
