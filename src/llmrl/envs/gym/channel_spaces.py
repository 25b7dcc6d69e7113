"""From Gymnasium's spaces to channels and actions of a `VecEnv`."""

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
"""A Box of bytes is a picture from this many pixels a side on; MiniGrid's maps of codes are smaller."""

Encode = Callable[[Sequence[Any] | np.ndarray], np.ndarray]
"""Observations of n games -> [n, 1, *channel.shape]."""


def observation_channels(space: Space[Any]) -> dict[str, tuple[Channel, Encode]]:
    """What can be made of observations without words: `vector`, `state`, `pixels`, each with how it is made.

    `vector` holds every number of the observation, categories one-hot, in Gymnasium's own flat order; texts and
    pictures are left out. `state` is the number of a Discrete observation, from 0.
    """
    from gymnasium import spaces

    channels: dict[str, tuple[Channel, Encode]] = {}
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        channels["state"] = (
            Channel((), "int64", 0, float(space.n - 1)),
            lambda seen: (np.asarray(seen, dtype=np.int64) - start)[:, None],
        )
    if is_image(space):
        assert space.shape is not None
        channels["pixels"] = (Channel(space.shape, "uint8", 0, 255), lambda seen: np.asarray(seen)[:, None])
    numeric = numeric_part(space)
    if numeric is not None:
        part, pick = numeric
        size = spaces.flatdim(part)
        channels["vector"] = (Channel((size,), "float32", parts=_parts(part)), _flat(part, pick))
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
    """The part of a space that is numbers, and what picks it from an observation; None where there is none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        inner = {name: numeric_part(sub) for name, sub in space.spaces.items()}
        kept = {name: part for name, part in inner.items() if part is not None}
        picks = {name: pick for name, (_, pick) in kept.items()}
        if not kept:
            return None
        return (
            spaces.Dict({name: part for name, (part, _) in kept.items()}),
            lambda seen: {name: pick(seen[name]) for name, pick in picks.items()},
        )
    if isinstance(space, spaces.Tuple):
        members = [numeric_part(sub) for sub in space.spaces]
        chosen = [(i, *member) for i, member in enumerate(members) if member is not None]
        if not chosen:
            return None
        return (
            spaces.Tuple([part for _, part, _ in chosen]),
            lambda seen: tuple(pick(seen[i]) for i, _, pick in chosen),
        )
    plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if is_image(space) or not isinstance(space, plain):
        return None
    return space, lambda seen: seen


def _flat(space: Space[Any], pick: Callable[[Any], Any]) -> Encode:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return lambda seen: np.asarray(seen, dtype=np.float32)[:, None]
    if isinstance(space, spaces.Discrete):
        table, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda seen: table[np.asarray(seen, dtype=np.int64) - start][:, None]
    return lambda seen: np.array([spaces.flatten(space, pick(one)) for one in seen], dtype=np.float32)[:, None]


def _parts(space: Space[Any]) -> tuple[dict[str, slice], ...]:
    """Where the entries of a Dict are in its flat vector; nothing for spaces whose members have no names."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return ()
    parts, at = {}, 0
    for name, part in space.spaces.items():
        size = spaces.flatdim(part)
        parts[name] = slice(at, at + size)
        at += size
    return (parts,)


def continuous_actions(space: Space[Any], name: str) -> ContinuousActions | None:
    """What an action consists of where it is several numbers; None where it is one of several choices.

    Raises:
        ConfigError: an action without bounds, or of a kind that nobody here can choose.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return None
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(bound, dtype=np.float64).ravel() for bound in (space.low, space.high))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"an action of {name} is a Box without bounds ({space}), so nobody can be told what may be chosen; "
                "wrap it in gymnasium.wrappers.RescaleAction or another environment with bounds"
            )
        whole = (space.dtype.kind in "iu",) * low.size
        return ContinuousActions(_names(low.size), tuple(low.tolist()), tuple(high.tolist()), whole)
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
        return _together(_members(space), name)
    raise ConfigError(
        f"an action of {name} is a {type(space).__name__}; Discrete, MultiDiscrete, MultiBinary, bounded Box, and Dict "
        "and Tuple of these can be played"
    )


def _together(members: Mapping[str, Space[Any]], name: str) -> ContinuousActions:
    """What an action of several parts consists of: the numbers of all of them; a choice is one whole number."""
    from gymnasium import spaces

    names: list[str] = []
    low: list[float] = []
    high: list[float] = []
    whole: list[bool] = []
    for part, space in members.items():
        if isinstance(space, spaces.Discrete):
            start = float(space.start)
            own = ContinuousActions((part,), (start,), (start + float(space.n) - 1,), (True,))
        else:
            found = continuous_actions(space, name)
            assert found is not None
            own = replace(found, names=(part,) if found.dim == 1 else tuple(f"{part}_{each}" for each in found.names))
        names += own.names
        low += own.low
        high += own.high
        whole += own.whole
    return ContinuousActions(tuple(names), tuple(low), tuple(high), tuple(whole))


def _members(space: Space[Any]) -> dict[str, Space[Any]]:
    """The parts of a Dict or Tuple, by name, in their order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    assert isinstance(space, spaces.Tuple)
    return {f"part_{i}": part for i, part in enumerate(space.spaces)}


def _names(n: int) -> tuple[str, ...]:
    return tuple(f"action_{i}" for i in range(n))


def to_actions(space: Space[Any], action: np.ndarray, clip: bool = True) -> Sequence[Any] | np.ndarray:
    """Actions of a `VecEnv`, [n, 1] choices or [n, 1, a] numbers, as the games take them; numbers inside the bounds.

    Without `clip`, real numbers go to the game as they are.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return np.asarray(action)[:, 0] + int(space.start)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _structured(space, np.asarray(action), clip)
    assert space.shape is not None
    numbers: np.ndarray = np.asarray(action)[:, 0].reshape(-1, *space.shape)
    if isinstance(space, spaces.Box):
        numbers = np.rint(numbers) if space.dtype.kind in "iu" else numbers
        if clip or space.dtype.kind in "iu":
            numbers = np.clip(numbers, space.low, space.high)
        typed: np.ndarray = numbers.astype(space.dtype)
        return typed
    low: Any = np.asarray(space.start) if isinstance(space, spaces.MultiDiscrete) else 0
    high: Any = low + np.asarray(space.nvec) - 1 if isinstance(space, spaces.MultiDiscrete) else 1
    whole: np.ndarray = np.clip(np.rint(numbers), low, high).astype(space.dtype)
    return whole


def _structured(space: Space[Any], action: np.ndarray, clip: bool) -> list[Any]:
    """Actions of several parts, [n, 1, a], as the games take them: a dict or tuple a game."""
    from gymnasium import spaces

    parts: dict[str, Sequence[Any] | np.ndarray] = {}
    at = 0
    for name, part in _members(space).items():
        if isinstance(part, spaces.Discrete):
            first = int(part.start)
            parts[name] = np.clip(np.rint(action[:, 0, at]), first, first + int(part.n) - 1).astype(np.int64)
            at += 1
            continue
        own = continuous_actions(part, name)
        assert own is not None
        parts[name] = to_actions(part, action[..., at : at + own.dim], clip)
        at += own.dim
    games = [dict(zip(parts, each, strict=True)) for each in zip(*parts.values(), strict=True)]
    return games if isinstance(space, spaces.Dict) else [tuple(game.values()) for game in games]
