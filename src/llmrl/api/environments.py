"""Construction of environments by their names on the command line, for any training code.

`trl_environment` makes environments for the multi-turn training of TRL (`GRPOTrainer(environment_factory=...)`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, overload

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.records import Observation, parse_if_json
from llmrl.core.typed_values import format_override

if TYPE_CHECKING:
    from llmrl.agents.llm_player.answer_format import AnswerFormat
    from llmrl.core.protocols import VecEnv
    from llmrl.core.spaces import EnvSpec
    from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter, GymnasiumVectorAdapter
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
    n_envs: int | None = None,
    api: Literal["gymnasium"],
    render_mode: Literal["rgb_array"] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> GymnasiumAdapter | GymnasiumVectorAdapter: ...
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
) -> VecEnv | GymnasiumAdapter | GymnasiumVectorAdapter | ParallelAdapter:
    """Make an environment as a run would.

    Args:
        env: name, as in `env=cleanup`.
        n_envs: number of games at once; None: that of the option, or one for the other interfaces.
        api: `vec`, the interface of this package, with all games and agents as arrays (`llmrl.core.protocols.VecEnv`);
            `gymnasium`, for environments of one agent: an `Env`, or a `VectorEnv` if `n_envs` is more than 1;
            `pettingzoo`: a `ParallelEnv` of one game.
        render_mode: `rgb_array`: `render()` of the other interfaces returns pictures.
        seed: root of the random numbers, as in `seed=1`; `reset(seed=...)` sets another one.
        device: device of environments made of tensors, e.g. `cuda`.
        options: fields of the option, e.g. `horizon=200`, `mechanism=None`; nested fields are merged:
            `task={"max_size": 8}`.

    Raises:
        ConfigError: there is no such environment, option or value; or it has several agents or games, and the interface
            is for one.

    Example:
        >>> env = make_env("cleanup", n_envs=4, horizon=100)  # doctest: +SKIP
        >>> env.reset(seed=1)["grid"].shape  # doctest: +SKIP
        torch.Size([4, 7, 11, 11, 4])
    """
    n_games = 1 if n_envs is None and api != "vec" else n_envs
    env_options = options if n_games is None else {**options, "n_envs": n_games}
    node, modules = compose_env_options(env, env_options)
    return build_from_node(node, api, render_mode, seed, device, modules)


def build_from_node(
    node: Mapping[str, Any], api: Interface, render_mode: str | None, seed: int, device: str, modules: Sequence[str]
) -> VecEnv | GymnasiumAdapter | GymnasiumVectorAdapter | ParallelAdapter:
    """Build an environment from section `env` of a config, which may name code of `modules`.

    The other arguments are those of `make_env`.
    """
    from llmrl.config.builder import Builder
    from llmrl.core.seeding import Seeds
    from llmrl.core.services import EnvServices
    from llmrl.experiment.build_env import build_env

    if api not in get_args(Interface):
        raise ConfigError(f"api={api!r} is unknown; use {', '.join(get_args(Interface))}")
    if render_mode is not None and "render" in node:
        node = {**node, "render": True}
    env = build_env(node, Builder(EnvServices(Seeds(seed).child("env"), device), modules))
    try:
        if api == "pettingzoo":
            from llmrl.envs.adapters.parallel import ParallelAdapter

            return ParallelAdapter(env, render_mode)
        if api == "gymnasium":
            from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter, GymnasiumVectorAdapter

            return (GymnasiumAdapter if env.spec.n_envs == 1 else GymnasiumVectorAdapter)(env, render_mode)
    except ConfigError:
        env.close()
        raise
    return env


def merge_options(node: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `node` with some fields set; nested sections are merged."""
    merged = dict(node)
    for name, value in options.items():
        nested = merged.get(name)
        is_nested = isinstance(value, Mapping) and isinstance(nested, Mapping) and "_target_" not in value
        merged[name] = merge_options(nested, value) if is_nested and nested is not None else value
    return merged


def compose_env_options(env: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the resolved option `env` of the group with some fields set, and the permissions that it needs."""
    from llmrl.experiment.experiment import Experiment

    overrides = [
        format_override("env", env),
        *(format_override(f"env.{name}", value) for name, value in options.items()),
    ]
    config = Experiment.compose(*overrides).config
    return config["env"], config["trusted_modules"]


class TextEnvironment:
    """One game that a language model plays by calls of the tool `act`; subclasses are made by `trl_environment`.

    TRL calls `reset` before a rollout, the tools of the class during it, and `get_reward` after it. Public functions of
    a subclass other than `reset` and `get_reward` are tools.
    """

    _options: ClassVar[Mapping[str, Any]]
    _seed: ClassVar[int]
    _modules: ClassVar[Sequence[str]]
    _instances: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        from llmrl.agents.llm_player.answer_format import make_answer_format
        from llmrl.core.option_files import load_option

        env: Any = build_from_node(self._options, "vec", None, self._seed + next(self._instances), "cpu", self._modules)
        self._env = env
        self._answers: AnswerFormat = make_answer_format(
            env.spec, "name", load_option("agent", "llm_player")["decimals"]
        )
        self._observation: Observation = {}
        self._return, self._is_over = 0.0, True

    def reset(self, seed: int | None = None, **_: Any) -> str:
        """Start an episode; return the rules of the game and its first observation.

        Args:
            seed: seed of the episode, e.g. a column of the training dataset, so that the rollouts of a group begin
                equally; None: the next episode of this object's own stream.
        """
        self._observation = self._env.reset(seed=seed)
        self._return, self._is_over = 0.0, False
        return f"{_describe_rules(self._env.spec, self._answers)}\n\n{self._observation_text()}"

    def get_reward(self) -> float:
        """Return the sum of the rewards of the episode so far."""
        return self._return

    def _step(self, text: str) -> str:
        """Take the action that a text names; return what the model reads next, a JSON object."""
        from llmrl.agents.llm_player.answer_format import parse_player_reply
        from llmrl.llms.invalid_reply import InvalidReply

        if self._is_over:
            return json.dumps({"error": "the episode is over"})
        mask = self._observation.get("action_mask")
        try:
            action = parse_player_reply(text, self._answers, None if mask is None else mask[0, 0].tolist()).action
        except InvalidReply as error:
            return json.dumps({"error": str(error)})
        step = self._env.step(np.array([[action]]))
        reward = float(step.reward[0][0])
        self._observation, self._return = step.observation, self._return + reward
        self._is_over = bool(step.terminated[0] or step.truncated[0])
        return self._observation_text(reward)

    def _observation_text(self, reward: float | None = None) -> str:
        content: dict[str, Any] = {"observation": parse_if_json(str(self._observation["text"][0, 0]))}
        if reward is not None:
            content["reward"] = round(reward, 6)
        if self._is_over:
            content["episode_is_over"] = True
        return json.dumps(content, ensure_ascii=False)


def trl_environment(env: str, /, *, seed: int = 0, **options: Any) -> type[TextEnvironment]:
    """Return a class of environments for `environment_factory` of TRL's `GRPOTrainer`.

    The reward of a rollout is the return of its episode. A tool call that names no legal action costs a turn, but no
    step of the game. `chat_learning` trains the same games with per-turn advantages and resumable runs
    (`llm/learn=grpo`).

    Args:
        env: name of an environment of one agent with texts, as in `env=taxi`.
        seed: root of the random numbers of episodes without a seed of their own.
        options: fields of the option, as in `make_env`.

    Raises:
        ConfigError: there is no such environment, option or value.
        Incompatible: the environment has several agents, or no texts.

    Example:
        >>> prompts = [[{"role": "user", "content": ""}]] * 64
        >>> trainer = GRPOTrainer(  # doctest: +SKIP
        ...     model="Qwen/Qwen3-0.6B",
        ...     train_dataset=Dataset.from_dict({"prompt": prompts, "seed": range(64)}),
        ...     environment_factory=llmrl.trl_environment("taxi"),
        ... )
    """
    node, modules = compose_env_options(env, {**options, "n_envs": 1})
    example_env: Any = build_from_node(node, "vec", None, seed, "cpu", modules)
    spec: EnvSpec = example_env.spec
    example_env.close()
    if spec.text is None or "text" not in spec.observation or spec.n_agents != 1:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"an environment of TRL needs one agent and observations in words; env={env} has {spec.n_agents} agents "
            f"and the channels {', '.join(spec.observation)}; set env.text or env.observe=[text] if it has that option",
        )

    class Environment(TextEnvironment):
        _options, _seed, _modules, _instances = node, seed, modules, itertools.count()

        def act(self, action: str) -> str:
            return self._step(action)

    names = ", ".join(name for name, _ in spec.text.actions)
    Environment.__name__ = "".join(word.capitalize() for word in env.split("_")) + "Environment"
    # TRL describes the tool to the model by this text.
    Environment.act.__doc__ = (
        f"Take an action of the game.\n\nArgs:\n    action: The action: {names}.\n\nReturns:\n    The next observation."
    )
    return Environment


def _describe_rules(spec: EnvSpec, answers: AnswerFormat) -> str:
    assert spec.text is not None
    lines = [spec.text.goal, "", "Each observation is a JSON object:"]
    lines += [f"- {name}: {description}" for name, description in spec.text.observation]
    lines += ["", "Call the tool `act` with one of these actions:"]
    lines += [f"- {name}: {description}" for name, description in answers.descriptions]
    return "\n".join(lines)
