"""Conversion of Gymnasium's spaces to channels and actions of a `VecEnv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Channel, ContinuousActions

if TYPE_CHECKING:
    from gymnasium import Space

IMAGE_SIDE = 16
"""A Box of bytes is an image if its sides have at least this many pixels; MiniGrid's maps of codes are smaller."""

Encode = Callable[[Sequence[Any] | np.ndarray], np.ndarray]
"""Function from observations of n games to an array [n, 1, *channel.shape]."""


def observation_channels(space: Space[Any]) -> dict[str, tuple[Channel, Encode]]:
    """Return the channels of an observation space without texts, by name, each with its encoder.

    The channel `vector` contains every number of the observation, categories one-hot, in Gymnasium's own flat order;
    texts and images are left out. `state` is the number of a Discrete observation, from 0. `pixels` is an image.
    """
    from gymnasium import spaces

    channels: dict[str, tuple[Channel, Encode]] = {}
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        channels["state"] = (
            Channel((), "int64", 0, float(space.n - 1)),
            lambda observation: (np.asarray(observation, dtype=np.int64) - start)[:, None],
        )
    if is_image(space):
        assert space.shape is not None
        channels["pixels"] = (
            Channel(space.shape, "uint8", 0, 255),
            lambda observation: np.asarray(observation)[:, None],
        )
    numeric = numeric_part(space)
    if numeric is not None:
        part, pick = numeric
        size = spaces.flatdim(part)
        channels["vector"] = (Channel((size,), "float32", parts=_parts(part)), _vector_encoder(part, pick))
    return channels


def is_image(space: Space[Any]) -> bool:
    from gymnasium import spaces

    shape = space.shape
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and shape is not None
        and len(shape) == 3
        and min(shape[:2]) >= IMAGE_SIDE
    )


def numeric_part(space: Space[Any]) -> tuple[Space[Any], Callable[[Any], Any]] | None:
    """Return the numeric part of a space and a function that selects it from an observation; None if there is none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        inner = {name: numeric_part(sub) for name, sub in space.spaces.items()}
        numeric_parts = {name: part for name, part in inner.items() if part is not None}
        picks = {name: pick for name, (_, pick) in numeric_parts.items()}
        if not numeric_parts:
            return None
        return (
            spaces.Dict({name: part for name, (part, _) in numeric_parts.items()}),
            lambda observation: {name: pick(observation[name]) for name, pick in picks.items()},
        )
    if isinstance(space, spaces.Tuple):
        members = [numeric_part(sub) for sub in space.spaces]
        numeric_members = [(i, *member) for i, member in enumerate(members) if member is not None]
        if not numeric_members:
            return None
        return (
            spaces.Tuple([part for _, part, _ in numeric_members]),
            lambda observation: tuple(pick(observation[i]) for i, _, pick in numeric_members),
        )
    plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if is_image(space) or not isinstance(space, plain):
        return None
    return space, lambda observation: observation


def _vector_encoder(space: Space[Any], pick: Callable[[Any], Any]) -> Encode:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return lambda observations: np.asarray(observations, dtype=np.float32)[:, None]
    if isinstance(space, spaces.Discrete):
        table, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda observations: table[np.asarray(observations, dtype=np.int64) - start][:, None]
    return lambda observations: np.array(
        [spaces.flatten(space, pick(observation)) for observation in observations], dtype=np.float32
    )[:, None]


def _parts(space: Space[Any]) -> tuple[dict[str, slice], ...]:
    """Return the position of each entry of a Dict in its flat vector; () for spaces whose members have no names."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return ()
    parts, offset = {}, 0
    for name, part in space.spaces.items():
        size = spaces.flatdim(part)
        parts[name] = slice(offset, offset + size)
        offset += size
    return (parts,)


def continuous_actions(space: Space[Any], name: str) -> ContinuousActions | None:
    """Return the numbers of an action; None if an action is one of several choices.

    Raises:
        ConfigError: an action without bounds, or of an unsupported kind.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return None
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(bound, dtype=np.float64).ravel() for bound in (space.low, space.high))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"an action of {name} is a Box without bounds ({space}); bounds are required, e.g. by "
                "gymnasium.wrappers.RescaleAction"
            )
        integral = (space.dtype.kind in "iu",) * low.size
        return ContinuousActions(_names(low.size), tuple(low.tolist()), tuple(high.tolist()), integral)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start).ravel()
        high = start + np.asarray(space.nvec).ravel() - 1
        return ContinuousActions(
            _names(start.size), tuple(map(float, start)), tuple(map(float, high)), (True,) * start.size
        )
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ContinuousActions(_names(size), (0.0,) * size, (1.0,) * size, (True,) * size)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _combine_numbers(_members(space), name)
    raise ConfigError(
        f"an action of {name} is a {type(space).__name__}, which is not supported; use Discrete, MultiDiscrete, "
        "MultiBinary, a bounded Box, or a Dict or Tuple of these"
    )


def _combine_numbers(members: Mapping[str, Space[Any]], name: str) -> ContinuousActions:
    """Return the numbers of an action of several parts: those of all parts. A discrete part is one integer."""
    from gymnasium import spaces

    names: list[str] = []
    low: list[float] = []
    high: list[float] = []
    integral: list[bool] = []
    for part, space in members.items():
        if isinstance(space, spaces.Discrete):
            start = float(space.start)
            numbers = ContinuousActions((part,), (start,), (start + float(space.n) - 1,), (True,))
        else:
            actions = continuous_actions(space, name)
            assert actions is not None
            numbers = replace(
                actions, names=(part,) if actions.dim == 1 else tuple(f"{part}_{suffix}" for suffix in actions.names)
            )
        names += numbers.names
        low += numbers.low
        high += numbers.high
        integral += numbers.whole
    return ContinuousActions(tuple(names), tuple(low), tuple(high), tuple(integral))


def _members(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the parts of a Dict or Tuple by name, in order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    assert isinstance(space, spaces.Tuple)
    return {f"part_{i}": part for i, part in enumerate(space.spaces)}


def _names(n: int) -> tuple[str, ...]:
    return tuple(f"action_{i}" for i in range(n))


def to_actions(space: Space[Any], action: np.ndarray, clip: bool = True) -> Sequence[Any] | np.ndarray:
    """Return actions of a `VecEnv`, [n, 1] choices or [n, 1, a] numbers, as elements of `space`.

    Numbers are clipped to their bounds. Without `clip`, real numbers are not.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return np.asarray(action)[:, 0] + int(space.start)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _nested_actions(space, np.asarray(action), clip)
    assert space.shape is not None
    numbers: np.ndarray = np.asarray(action)[:, 0].reshape(-1, *space.shape)
    if isinstance(space, spaces.Box):
        numbers = np.rint(numbers) if space.dtype.kind in "iu" else numbers
        if clip or space.dtype.kind in "iu":
            numbers = np.clip(numbers, space.low, space.high)
        cast_numbers: np.ndarray = numbers.astype(space.dtype)
        return cast_numbers
    low: Any = np.asarray(space.start) if isinstance(space, spaces.MultiDiscrete) else 0
    high: Any = low + np.asarray(space.nvec) - 1 if isinstance(space, spaces.MultiDiscrete) else 1
    integers: np.ndarray = np.clip(np.rint(numbers), low, high).astype(space.dtype)
    return integers


def _nested_actions(space: Space[Any], action: np.ndarray, clip: bool) -> list[Any]:
    """Return actions of several parts, [n, 1, a], as a list with one dict or tuple per game."""
    from gymnasium import spaces

    parts: dict[str, Sequence[Any] | np.ndarray] = {}
    offset = 0
    for name, part in _members(space).items():
        if isinstance(part, spaces.Discrete):
            start = int(part.start)
            parts[name] = np.clip(np.rint(action[:, 0, offset]), start, start + int(part.n) - 1).astype(np.int64)
            offset += 1
            continue
        numbers = continuous_actions(part, name)
        assert numbers is not None
        parts[name] = to_actions(part, action[..., offset : offset + numbers.dim], clip)
        offset += numbers.dim
    games = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    return games if isinstance(space, spaces.Dict) else [tuple(game.values()) for game in games]
