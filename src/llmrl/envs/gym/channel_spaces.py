"""Conversion of Gymnasium's spaces to channels and actions of a `VecEnv`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
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

    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys: Any = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        inner = {key: numeric_part(space[key]) for key in keys}
        parts = {key: part for key, part in inner.items() if part is not None}
        if not parts:
            return None
        if isinstance(space, spaces.Dict):
            return (
                spaces.Dict({key: part for key, (part, _) in parts.items()}),
                lambda observation: {key: pick(observation[key]) for key, (_, pick) in parts.items()},
            )
        return (
            spaces.Tuple([part for part, _ in parts.values()]),
            lambda observation: tuple(pick(observation[key]) for key, (_, pick) in parts.items()),
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
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _combine_numbers(_members(space), name)
    low, high, integral = _bounds(space, name)
    names = tuple(f"action_{i}" for i in range(low.size))
    return ContinuousActions(names, tuple(low.ravel().tolist()), tuple(high.ravel().tolist()), (integral,) * low.size)


def _bounds(space: Space[Any], name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the lowest and highest numbers of an action, float64 of its shape, and whether they are integers.

    Raises:
        ConfigError: an action without bounds, or of an unsupported kind.
    """
    from gymnasium import spaces

    low: Any
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"an action of {name} is a Box without bounds ({space}); bounds are required, e.g. by "
                "gymnasium.wrappers.RescaleAction"
            )
        integral = space.dtype.kind in "iu"
    elif isinstance(space, spaces.Discrete):
        low, high, integral = np.array([space.start]), np.array([space.start + space.n - 1]), True
    elif isinstance(space, spaces.MultiDiscrete):
        low, high, integral = space.start, space.start + space.nvec - 1, True
    elif isinstance(space, spaces.MultiBinary):
        low, high, integral = np.zeros(space.shape), np.ones(space.shape), True
    else:
        raise ConfigError(
            f"an action of {name} is a {type(space).__name__}, which is not supported; use Discrete, MultiDiscrete, "
            "MultiBinary, a bounded Box, or a Dict or Tuple of these"
        )
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64), integral


def _combine_numbers(members: Mapping[str, Space[Any]], name: str) -> ContinuousActions:
    """Return the numbers of an action of several parts: those of all parts. A discrete part is one integer."""
    parts = []
    for part, space in members.items():
        numbers = continuous_actions(space, name)
        if numbers is None:
            low, high, _ = _bounds(space, name)
            numbers = ContinuousActions((part,), (float(low[0]),), (float(high[0]),), (True,))
        names = (part,) if numbers.dim == 1 else tuple(f"{part}_{suffix}" for suffix in numbers.names)
        parts.append((names, numbers.low, numbers.high, numbers.whole))
    return ContinuousActions(*(tuple(itertools.chain(*columns)) for columns in zip(*parts, strict=True)))


def _members(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the parts of a Dict or Tuple by name, in order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    assert isinstance(space, spaces.Tuple)
    return {f"part_{i}": part for i, part in enumerate(space.spaces)}


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
    low, high, integral = _bounds(space, "the game")
    if integral:
        numbers = np.rint(numbers)
    if clip or integral:
        numbers = np.clip(numbers, low, high)
    return numbers.astype(space.dtype)


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
