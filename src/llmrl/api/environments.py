"""Make environments by the names of the command line, for training code of any kind."""

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
    trusted: Sequence[str] = (),
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
    trusted: Sequence[str] = (),
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
    trusted: Sequence[str] = (),
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
    trusted: Sequence[str] = (),
    **options: Any,
) -> VecEnv | GymnasiumAdapter | GymnasiumVectorAdapter | ParallelAdapter:
    """Make an environment as a run would.

    Args:
        env: its name, as in `env=cleanup`.
        n_envs: games side by side; None: as many as the option says, or for another interface one.
        api: `vec`, this package's own: all games and agents as arrays (`llmrl.core.protocols.VecEnv`); `gymnasium`, for
            environments of one agent: an `Env`, or a `VectorEnv` where `n_envs` is more than 1; `pettingzoo`: a
            `ParallelEnv` of one game.
        render_mode: `rgb_array`: `render()` of the other interfaces gives pictures.
        seed: root of its random numbers, as in `seed=1`; `reset(seed=...)` begins anew from another one.
        device: where an environment made of tensors keeps them, e.g. `cuda`.
        trusted: packages that the option may name although they are no part of llmrl.
        options: fields of the option, e.g. `horizon=200`, `mechanism=None`; of a field that has fields, some:
            `task={"max_size": 8}`.

    Raises:
        ConfigError: there is no such environment, option or value; it has several agents, or games, where the
            interface is for one.

    Example:
        >>> env = make_env("cleanup", n_envs=4, horizon=100)  # doctest: +SKIP
        >>> env.reset(seed=1)["grid"].shape  # doctest: +SKIP
        torch.Size([4, 7, 11, 11, 4])
    """
    games = 1 if n_envs is None and api != "vec" else n_envs
    own = options if games is None else {**options, "n_envs": games}
    return build(_composed(env, own, trusted), api, render_mode, seed, device, trusted)


def build(
    node: Mapping[str, Any], api: Interface, render_mode: str | None, seed: int, device: str, trusted: Sequence[str]
) -> VecEnv | GymnasiumAdapter | GymnasiumVectorAdapter | ParallelAdapter:
    """Build an environment from the config's `env`; else as `make_env`."""
    from llmrl.core.seeding import Seeds
    from llmrl.experiment.build_env import build_env

    if api not in get_args(Interface):
        raise ConfigError(f"api={api!r}: there is {', '.join(get_args(Interface))}")
    if render_mode is not None and "render" in node:
        node = {**node, "render": True}
    built = build_env(node, {"seeds": Seeds(seed).child("env"), "device": device}, trusted)
    try:
        if api == "pettingzoo":
            from llmrl.envs.adapters.parallel import ParallelAdapter

            return ParallelAdapter(built, render_mode)
        if api == "gymnasium":
            from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter, GymnasiumVectorAdapter

            return (GymnasiumAdapter if built.spec.n_envs == 1 else GymnasiumVectorAdapter)(built, render_mode)
    except ConfigError:
        built.close()
        raise
    return built


def with_options(node: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`node` with some fields set; of a field that has fields itself, those that are given."""
    changed = dict(node)
    for name, value in options.items():
        inside = changed.get(name)
        part = isinstance(value, Mapping) and isinstance(inside, Mapping) and "_target_" not in value
        changed[name] = with_options(inside, value) if part and inside is not None else value
    return changed


def _composed(env: str, options: Mapping[str, Any], trusted: Sequence[str]) -> dict[str, Any]:
    """The option of the group `env` with some fields set, resolved."""
    from llmrl.experiment.experiment import Experiment

    words = [typed("env", env), *(typed(f"env.{name}", value) for name, value in options.items())]
    if trusted:
        words.append(typed("trusted_modules", trusted))
    node: dict[str, Any] = Experiment.compose(*words).config["env"]
    return node
