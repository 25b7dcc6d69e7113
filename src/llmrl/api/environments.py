"""Construction of environments by the names of their options, for any training code.

`trl_environment` makes classes for the multi-turn training of TRL (`GRPOTrainer(environment_factory=...)`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, overload

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.override_text import format_override
from llmrl.core.records import Observation, parse_if_json

if TYPE_CHECKING:
    from llmrl.agents.llm_player.answer_format import AnswerFormat
    from llmrl.core.protocols import VecEnv
    from llmrl.core.spaces import EnvSpec
    from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter
    from llmrl.envs.adapters.parallel import ParallelAdapter

Interface = Literal["vec", "gymnasium", "pettingzoo"]


@overload
def make_env(
    env: str,
    /,
    *,
    n_envs: int | None = None,
    api: Literal["vec"] = "vec",
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> VecEnv: ...
@overload
def make_env(
    env: str,
    /,
    *,
    n_envs: Literal[1] | None = None,
    api: Literal["gymnasium"],
    render_mode: Literal["rgb_array"] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> GymnasiumAdapter: ...
@overload
def make_env(
    env: str,
    /,
    *,
    n_envs: Literal[1] | None = None,
    api: Literal["pettingzoo"],
    render_mode: Literal["rgb_array"] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> ParallelAdapter: ...


def make_env(
    env: str,
    /,
    *,
    n_envs: int | None = None,
    api: Interface = "vec",
    render_mode: Literal["rgb_array"] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> VecEnv | GymnasiumAdapter | ParallelAdapter:
    """Make an environment with the options that a run would use.

    Args:
        env: name of the option, such as `cleanup` for `env=cleanup`.
        n_envs: number of parallel games; None: for `vec` the number of the option, for other interfaces 1.
        api: interface of the environment. `vec`: `llmrl.core.protocols.VecEnv`, with all games and agents as arrays;
            `gymnasium`, for environments with one agent: an `Env` with one game; `pettingzoo`: a `ParallelEnv` with one
            game.
        render_mode: `rgb_array`: `render()` of a Gymnasium or PettingZoo environment returns images; None: no images.
        seed: root seed of the random numbers; `reset(seed=...)` sets another one.
        device: torch device of environments that compute with tensors.
        options: fields of the option, such as `horizon=200` or `mechanism=None`; nested fields are merged, such as
            `task={"max_size": 8}`.

    Raises:
        ConfigError: the environment, a field or a value does not exist; or the interface does not support its number of
            agents or games.

    Example:
        >>> env = make_env("cleanup", n_envs=4, horizon=100)  # doctest: +SKIP
        >>> env.reset(seed=1)["grid"].shape  # doctest: +SKIP
        torch.Size([4, 7, 11, 11, 4])
    """
    n_games = 1 if n_envs is None and api != "vec" else n_envs
    env_config, trusted = compose_env_config(env, options if n_games is None else {**options, "n_envs": n_games})
    return build_env_from_config(env_config, trusted, seed, api, render_mode, device)


def build_env_from_config(
    env_config: Mapping[str, Any],
    trusted: Sequence[str],
    seed: int,
    api: Interface = "vec",
    render_mode: str | None = None,
    device: str = "cpu",
) -> VecEnv | GymnasiumAdapter | ParallelAdapter:
    """Build an environment from section `env` of a config, whose code is of llmrl or of the packages `trusted`.

    The other arguments are those of `make_env`.
    """
    from llmrl.config.builder import Builder
    from llmrl.core.seeding import Seeds
    from llmrl.core.services import EnvServices
    from llmrl.experiment.build_env import build_env

    if api not in get_args(Interface):
        raise ConfigError(f"api={api!r} is unknown; use {', '.join(get_args(Interface))}")
    if render_mode is not None and "render" in env_config:
        env_config = {**env_config, "render": True}
    env = build_env(env_config, Builder(EnvServices(Seeds(seed).child("env"), device), trusted))
    try:
        if api == "pettingzoo":
            from llmrl.envs.adapters.parallel import ParallelAdapter

            return ParallelAdapter(env, render_mode)
        if api == "gymnasium":
            from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter

            return GymnasiumAdapter(env, render_mode)
    except ConfigError:
        env.close()
        raise
    return env


def merge_options(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `config` with the fields `options`; sections are merged, unless the new one has a `_target_`."""
    merged = dict(config)
    for name, value in options.items():
        section = merged.get(name)
        is_section = isinstance(value, Mapping) and isinstance(section, Mapping) and "_target_" not in value
        merged[name] = merge_options(section, value) if is_section and section is not None else value
    return merged


def compose_env_config(env: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return section `env` of the config with an environment option and changed fields, and its `trusted_modules`."""
    from llmrl.experiment.experiment import Experiment

    overrides = [
        format_override("env", env),
        *(format_override(f"env.{name}", value) for name, value in options.items()),
    ]
    config = Experiment.compose(*overrides).config
    return config["env"], config["trusted_modules"]


class TextEnvironment:
    """Base class of environments with one game that a language model plays by calling `act` (`trl_environment`).

    TRL calls `reset` before a rollout, the tools during it, and `get_reward` after it. All other public methods of a
    subclass are tools.
    """

    _env_config: ClassVar[Mapping[str, Any]]
    _seed: ClassVar[int]
    _trusted: ClassVar[Sequence[str]]
    _instance_counter: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        from llmrl.agents.llm_player.answer_format import make_answer_format
        from llmrl.core.option_files import load_option

        env: Any = build_env_from_config(self._env_config, self._trusted, self._seed + next(self._instance_counter))
        self._env = env
        self._answer_format: AnswerFormat = make_answer_format(
            env.spec, "name", load_option("agent", "llm_player")["decimals"]
        )
        self._observation: Observation = {}
        self._return, self._is_over = 0.0, True

    def reset(self, seed: int | None = None, **_: Any) -> str:
        """Start an episode; return the rules of the game and its first observation.

        Args:
            seed: seed of the episode, for example a column of the training dataset, so that the rollouts of a group
                have equal starts; None: the next episode in the random stream of this object.
        """
        self._observation = self._env.reset(seed=seed)
        self._return, self._is_over = 0.0, False
        return f"{_describe_rules(self._env.spec, self._answer_format)}\n\n{self._format_observation()}"

    def get_reward(self) -> float:
        """Return the sum of the rewards of the episode so far."""
        return self._return

    def _step(self, text: str) -> str:
        """Take the action that a text names; return the next observation, or an error, as a JSON object."""
        from llmrl.agents.llm_player.answer_format import parse_player_reply
        from llmrl.llms.invalid_reply import InvalidReply

        if self._is_over:
            return json.dumps({"error": "the episode is over"})
        mask = self._observation.get("action_mask")
        try:
            action = parse_player_reply(text, self._answer_format, None if mask is None else mask[0, 0].tolist()).action
        except InvalidReply as error:
            return json.dumps({"error": str(error)})
        step = self._env.step(np.array([[action]]))
        reward = float(step.reward[0][0])
        self._observation, self._return = step.observation, self._return + reward
        self._is_over = bool(step.terminated[0] or step.truncated[0])
        return self._format_observation(reward)

    def _format_observation(self, reward: float | None = None) -> str:
        content: dict[str, Any] = {"observation": parse_if_json(str(self._observation["text"][0, 0]))}
        if reward is not None:
            content["reward"] = round(reward, 6)
        if self._is_over:
            content["episode_is_over"] = True
        return json.dumps(content, ensure_ascii=False)


def trl_environment(env: str, /, *, seed: int = 0, **options: Any) -> type[TextEnvironment]:
    """Return a class of environments for `environment_factory` of TRL's `GRPOTrainer`.

    The reward of a rollout is the return of its episode. A tool call without a legal action uses a turn of the
    conversation but no step of the game. `chat_learning` (`llm/learn=grpo`) trains on the same games with per-turn
    advantages and resumable runs.

    Args:
        env: name of the option of an environment with one agent and text observations, such as `taxi`.
        seed: root seed of the random numbers of episodes that are reset without a seed.
        options: fields of the option (`make_env`).

    Raises:
        ConfigError: the environment, a field or a value does not exist.
        Incompatible: the environment has several agents, or no text observations.

    Example:
        >>> prompts = [[{"role": "user", "content": ""}]] * 64
        >>> trainer = GRPOTrainer(  # doctest: +SKIP
        ...     model="Qwen/Qwen3-0.6B",
        ...     train_dataset=Dataset.from_dict({"prompt": prompts, "seed": range(64)}),
        ...     environment_factory=llmrl.trl_environment("taxi"),
        ... )
    """
    env_config, trusted = compose_env_config(env, {**options, "n_envs": 1})
    example_env: Any = build_env_from_config(env_config, trusted, seed)
    spec: EnvSpec = example_env.spec
    example_env.close()
    if spec.text is None or "text" not in spec.observation or spec.n_agents != 1:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"an environment of TRL needs one agent and observations in words; env={env} has {spec.n_agents} agents "
            f"and the channels {', '.join(spec.observation)}; set env.text or env.observe=[text] if it has that option",
        )

    class Environment(TextEnvironment):
        _env_config, _seed, _trusted, _instance_counter = env_config, seed, trusted, itertools.count()

        def act(self, action: str) -> str:
            return self._step(action)

    names = ", ".join(name for name, _ in spec.text.actions)
    Environment.__name__ = "".join(word.capitalize() for word in env.split("_")) + "Environment"
    # TRL copies this docstring into the description of the tool in prompts.
    Environment.act.__doc__ = (
        f"Take an action of the game.\n\nArgs:\n    action: The action: {names}.\n\nReturns:\n    The next observation."
    )
    return Environment


def _describe_rules(spec: EnvSpec, answer_format: AnswerFormat) -> str:
    assert spec.text is not None
    lines = [spec.text.goal, "", "Each observation is a JSON object:"]
    lines += [f"- {name}: {description}" for name, description in spec.text.observation]
    lines += ["", "Call the tool `act` with one of these actions:"]
    lines += [f"- {name}: {description}" for name, description in answer_format.descriptions]
    return "\n".join(lines)
