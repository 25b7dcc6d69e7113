"""Construction of environments by their names on the command line, for any training code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from llmrl.core.errors import ConfigError
from llmrl.core.typed_values import typed

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv
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
    games = 1 if n_envs is None and api != "vec" else n_envs
    env_options = options if games is None else {**options, "n_envs": games}
    node, modules = compose_env(env, env_options)
    return build(node, api, render_mode, seed, device, modules)


def build(
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


def with_options(node: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `node` with some fields set; nested sections are merged."""
    changed = dict(node)
    for name, value in options.items():
        section = changed.get(name)
        is_section = isinstance(value, Mapping) and isinstance(section, Mapping) and "_target_" not in value
        changed[name] = with_options(section, value) if is_section and section is not None else value
    return changed


def compose_env(env: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the resolved option `env` of the group with some fields set, and the permissions that it needs."""
    from llmrl.experiment.experiment import Experiment

    words = [typed("env", env), *(typed(f"env.{name}", value) for name, value in options.items())]
    config = Experiment.compose(*words).config
    return config["env"], config["trusted_modules"]
