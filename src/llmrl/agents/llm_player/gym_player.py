"""Language model as the player of a Gymnasium environment, for user programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.agents.llm_player.player_prompts import PlayerResources, PlayerSettings
from llmrl.agents.llm_player.policy import LLMPolicy
from llmrl.core.arguments import evaluate_type_hints, validate_argument
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.observers import Transition
from llmrl.core.option_files import load_option
from llmrl.core.records import Observation, PolicyOutput, Step
from llmrl.core.spaces import Channel, EnvDescription, EnvSpec
from llmrl.envs.gym.channel_spaces import convert_actions, find_continuous_actions
from llmrl.envs.gym.episode_scores import SuccessCriterion, SuccessQuantity
from llmrl.envs.texts import build_describer
from llmrl.envs.texts.describers import Describer
from llmrl.llms.by_name import chat_model

if TYPE_CHECKING:
    import gymnasium


_RUN_ONLY_OPTIONS = (
    *("players", "personas", "show_text", "show_frames", "frame_size"),
    *("message_interval", "message_recipients", "max_message_length"),
)
"""Options of `agent=llm_player` that only a run supports."""


class Player:
    """Chat model that plays one Gymnasium environment; created by `make_player`.

    >>> player = make_player(env, text="taxi", llm="gpt4o", temperature=0.0)              # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                                             # doctest: +SKIP
    >>> player.reset()                                                                    # doctest: +SKIP
    >>> done = False                                                                      # doctest: +SKIP
    >>> while not done:                                                                   # doctest: +SKIP
    ...     action = player.act(observation, info)
    ...     observation, reward, terminated, truncated, info = env.step(action)
    ...     player.on_step(reward, terminated, truncated)  # optional
    ...     done = terminated or truncated

    Attributes:
        note: description of the last action: reflection, reply, whether it was valid, tokens, cost.
        policy: policy of the player, with its counters.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], describer: Describer, policy: LLMPolicy) -> None:
        self.env, self.policy = env, policy
        self._describer = describer
        self.note: dict[str, Any] = {}
        self._is_episode_over = True
        self._last_inputs_and_output: tuple[Observation, PolicyOutput] | None = None
        self._has_unreported_step = False  # whether the result of the last action has not been reported

    def reset(self) -> None:
        """Start a new episode.

        The caller seeds the environment. The model's replies depend on the observations and on its own random stream.
        """
        self.policy.on_reset(np.array([True]), {})
        self.note, self._is_episode_over, self._has_unreported_step = {}, False, False

    def act(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Return the action for an observation in the form that the environment's `step` takes.

        `info` may contain an `action_mask`. Each call is one step of the episode.

        Raises:
            ValueError: the episode is over, or none was started.
            LLMError: the model could not be reached.
        """
        if self._is_episode_over:
            raise ValueError("the episode is over; call reset() first")
        if self._has_unreported_step:
            self.on_step(math.nan)
        text = np.empty((1, 1), dtype=object)
        text[0, 0] = self._describer.describe(observation, info or {})
        inputs: dict[str, Any] = {"text": text}
        if "action_mask" in self.policy.channels:
            n_actions = self.policy.spec.n_actions
            mask = (info or {}).get("action_mask")
            inputs["action_mask"] = (np.ones(n_actions, dtype=bool) if mask is None else np.asarray(mask, dtype=bool))[
                None, None
            ]
        output = self.policy.act(inputs)
        assert output.notes is not None
        self.note, self._last_inputs_and_output, self._has_unreported_step = output.notes[0][0], (inputs, output), True
        [action] = convert_actions(self.env.action_space, output.action.numpy())
        return action

    def on_step(self, reward: float, terminated: bool = False, truncated: bool = False) -> None:
        """Report the result of the last action, which the next observation, lessons and `last_episode` use.

        Without these calls, the player learns nothing of rewards, returns and ends of episodes.
        """
        done = terminated or truncated
        rewards = np.array([[reward]], dtype=np.float32)
        step = Step({}, rewards, rewards, np.array([terminated]), np.array([truncated]))
        if self._last_inputs_and_output is not None:
            self.policy.on_step(Transition(*self._last_inputs_and_output, step, np.array([done])))
        self._is_episode_over, self._has_unreported_step = done, False


def make_player(
    env: gymnasium.Env[Any, Any],
    text: str = "own",
    llm: str | ChatModel = "scripted",
    *,
    success: SuccessQuantity | None = None,
    success_threshold: float | None = None,
    prompts: Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Player:
    """Return a player for `env`.

    Args:
        env: any Gymnasium environment with a Discrete, MultiDiscrete, MultiBinary or bounded Box action.
        text: description of the environment in words: an included text (`taxi`), a file, `own` (the environment or a
            wrapper of it has `get_goal_description`, `get_observation_schema` and `get_action_schema`), or `auto`.
        llm: a model, or the name of an option of conf/llm.
        success: criterion of a successful episode, as in `env.success`; it is part of the prompt.
        success_threshold: threshold of this criterion, as in `env.success_threshold`.
        prompts: folder of prompts that take precedence over the package's.
        seed: seed of the model's random stream.
        options: options that replace defaults of `agent=llm_player` (`history=5`) or, if `llm` is a name, of that model
            (`temperature=0.0`).

    Raises:
        ConfigError: `env` is not an environment, an option is unknown or out of range, text and environment do not
            match, or the model does not exist.
        LLMError: the model cannot answer.
    """
    if not hasattr(env, "action_space") or not hasattr(env, "observation_space"):
        suggestion = f"gymnasium.make({env!r})" if isinstance(env, str) else "the result of gymnasium.make(id)"
        raise ConfigError(f"make_player needs an environment, got {env!r}; pass {suggestion}")
    type_hints = evaluate_type_hints(make_player)
    arguments = {"text": text, "success": success, "success_threshold": success_threshold, "prompts": prompts}
    for name, value in (arguments | {"seed": seed}).items():
        validate_argument(value, type_hints[name], name)
    setting_types = evaluate_type_hints(PlayerSettings)
    setting_values = {
        name: value for name, value in load_option("agent", "llm_player").items() if name in setting_types
    }
    setting_values |= {
        name: value for name, value in options.items() if name in setting_types and name not in _RUN_ONLY_OPTIONS
    }
    settings = PlayerSettings(
        **{name: validate_argument(value, setting_types[name], name) for name, value in setting_values.items()}
    )
    model_options = {
        name: value for name, value in options.items() if name not in setting_values or name in _RUN_ONLY_OPTIONS
    }
    if isinstance(llm, str):
        model: ChatModel = chat_model(llm, seed=seed, **model_options)
    elif model_options:
        raise ConfigError(
            f"{next(iter(model_options))} is not an option of make_player; options of a model need its name, e.g. "
            "llm='gpt4o'"
        )
    else:
        model = llm
    describer = build_describer(text, env, SuccessCriterion.from_options(success, success_threshold))
    return Player(env, describer, LLMPolicy(_make_spec(env, describer.game), model, settings, PlayerResources(prompts)))


def _make_spec(env: gymnasium.Env[Any, Any], text: EnvDescription) -> EnvSpec:
    """Return the spec of an environment with its description in words."""
    from gymnasium import spaces

    actions = env.action_space
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    n_actions = int(actions.n) if isinstance(actions, spaces.Discrete) else 0
    # Only the first info shows whether an environment reports legal actions; without a mask, all are legal.
    mask_channels = {"action_mask": Channel((n_actions,), "bool", 0, 1)} if n_actions else {}
    return EnvSpec(
        name=name,
        n_envs=1,
        n_agents=1,
        observation={"text": Channel((), "object"), **mask_channels},
        n_actions=n_actions,
        action_names=tuple(str(i) for i in range(n_actions)),
        horizon=None,
        continuous_actions=find_continuous_actions(actions, name),
        text=text,
    )
