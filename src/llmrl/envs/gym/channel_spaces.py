"""Conversion of Gymnasium spaces to channels and actions of a `VecEnv`, and lazily computed texts of a channel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Channel, ContinuousActions

if TYPE_CHECKING:
    from gymnasium import Space, spaces

MIN_IMAGE_SIDE = 16
"""Minimum width and height, in pixels, of a Box of bytes that counts as an image; MiniGrid's code maps are smaller."""

Encoder = Callable[[Sequence[Any] | np.ndarray], np.ndarray]
"""Function from observations of n games to an array [n, 1, *channel.shape]."""


def build_channels(space: Space[Any]) -> dict[str, tuple[Channel, Encoder]]:
    """Return the numeric and image channels of an observation space, by name, each with its encoder.

    The channel `vector` contains every number of the observation, categories one-hot, in the order of
    `gymnasium.spaces.flatten`; texts and images are omitted. `state` is a Discrete observation, shifted to start at 0.
    `pixels` is an image.
    """
    from gymnasium import spaces

    channels: dict[str, tuple[Channel, Encoder]] = {}
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
    if (numeric_selection := select_numeric_part(space)) is not None:
        numeric_space, select = numeric_selection
        channel = Channel((spaces.flatdim(numeric_space),), "float32", parts=_find_member_slices(numeric_space))
        channels["vector"] = channel, _build_vector_encoder(numeric_space, select)
    return channels


def is_image(space: Space[Any]) -> bool:
    from gymnasium import spaces

    shape = space.shape
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and shape is not None
        and len(shape) == 3
        and min(shape[:2]) >= MIN_IMAGE_SIDE
    )


def select_numeric_part(space: Space[Any]) -> tuple[Space[Any], Callable[[Any], Any]] | None:
    """Return a space without texts and images and a function that converts observations to it; None if it is empty."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        member_keys: Any = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        parts = {key: part for key in member_keys if (part := select_numeric_part(space[key])) is not None}
        if not parts:
            return None

        is_dict = isinstance(space, spaces.Dict)

        def build_container(members: Iterable[Any]) -> Any:
            return dict(zip(parts, members, strict=True)) if is_dict else tuple(members)

        return (
            (spaces.Dict if is_dict else spaces.Tuple)(build_container(part for part, _ in parts.values())),
            lambda observation: build_container(select(observation[key]) for key, (_, select) in parts.items()),
        )
    numeric_types = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if is_image(space) or not isinstance(space, numeric_types):
        return None
    return space, lambda observation: observation


def _build_vector_encoder(space: Space[Any], select: Callable[[Any], Any]) -> Encoder:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return lambda observations: np.asarray(observations, dtype=np.float32)[:, None]
    if isinstance(space, spaces.Discrete):
        one_hot_table, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda observations: one_hot_table[np.asarray(observations, dtype=np.int64) - start][:, None]
    return lambda observations: np.array(
        [spaces.flatten(space, select(observation)) for observation in observations], dtype=np.float32
    )[:, None]


def _find_member_slices(space: Space[Any]) -> tuple[dict[str, slice], ...]:
    """Return the slice of each member of a Dict in the flat vector, by name; () for other spaces."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return ()
    ends = itertools.accumulate((spaces.flatdim(member) for member in space.spaces.values()), initial=0)
    return ({name: slice(*bounds) for name, bounds in zip(space.spaces, itertools.pairwise(ends), strict=True)},)


def find_continuous_actions(space: Space[Any], env_name: str) -> ContinuousActions | None:
    """Return names, bounds and types of the numbers in an action of the environment `env_name`; None if it is Discrete.

    Raises:
        ConfigError: an action has no bounds or an unsupported type.
    """
    from gymnasium import spaces

    return None if isinstance(space, spaces.Discrete) else _flatten_action_space(space, env_name)


def _flatten_action_space(space: Space[Any], env_name: str) -> ContinuousActions:
    """Return the numbers in an action: those of all members of a Dict or Tuple; a Discrete member is one integer."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple):
        low, high, is_integer = _find_bounds(space, env_name)
        names = tuple(f"action_{i}" for i in range(low.size))
        bounds = tuple(low.ravel().tolist()), tuple(high.ravel().tolist())
        return ContinuousActions(names, *bounds, (is_integer,) * low.size)
    member_fields = []
    for member_name, member in _list_members(space).items():
        numbers = _flatten_action_space(member, env_name)
        names = (
            (member_name,)
            if numbers.dim == 1
            else tuple(f"{member_name}_{number_name}" for number_name in numbers.names)
        )
        member_fields.append((names, numbers.low, numbers.high, numbers.is_integer))
    return ContinuousActions(*(tuple(itertools.chain(*fields)) for fields in zip(*member_fields, strict=True)))


def _find_bounds(space: Space[Any], env_name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the bounds of an action, float64 arrays of its shape, and whether its numbers are integers.

    Raises:
        ConfigError: an action has no bounds or an unsupported type.
    """
    from gymnasium import spaces

    low: Any
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"an action of {env_name} is a Box without bounds ({space}); bounds are required, e.g. by "
                "gymnasium.wrappers.RescaleAction"
            )
    elif isinstance(space, spaces.Discrete):
        low, high = np.array([space.start]), np.array([space.start + space.n - 1])
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(space.shape), np.ones(space.shape)
    else:
        raise ConfigError(
            f"an action of {env_name} is a {type(space).__name__}, which is not supported; use Discrete, "
            "MultiDiscrete, MultiBinary, a bounded Box, or a Dict or Tuple of these"
        )
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64), np.dtype(space.dtype).kind in "iu"


def _list_members(space: spaces.Dict | spaces.Tuple[Any]) -> dict[str, Space[Any]]:
    """Return the members of a Dict or Tuple by name, in order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return {f"part_{i}": member for i, member in enumerate(space.spaces)}


def convert_actions(space: Space[Any], action: np.ndarray, clip: bool = True) -> Sequence[Any] | np.ndarray:
    """Return actions of a `VecEnv`, [n, 1] indices or [n, 1, a] numbers, as elements of `space`.

    Integers are always clipped to their bounds, real numbers only with `clip`.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return np.asarray(action)[:, 0] + int(space.start)
    return _unflatten_actions(space, np.asarray(action), clip)


def _unflatten_actions(space: Space[Any], action: np.ndarray, clip: bool) -> Sequence[Any] | np.ndarray:
    """Return actions [n, 1, a], in which a Discrete member is a number, as elements of `space`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        members = _list_members(space)
        stops = np.cumsum([_flatten_action_space(member, name).dim for name, member in members.items()])
        member_actions = zip(members.values(), np.split(action, stops[:-1], axis=-1), strict=True)
        games = zip(*(_unflatten_actions(member, numbers, clip) for member, numbers in member_actions), strict=True)
        return [dict(zip(members, game, strict=True)) if isinstance(space, spaces.Dict) else game for game in games]
    assert space.shape is not None
    numbers: np.ndarray = action[:, 0].reshape(-1, *space.shape)
    low, high, is_integer = _find_bounds(space, "the game")
    if is_integer:
        numbers = np.rint(numbers)
    if clip or is_integer:
        numbers = np.clip(numbers, low, high)
    return numbers.astype(space.dtype)


class LazyTextArray:
    """Texts of k agents in each of n games, like an array [n, k] of `str`; a text is computed on first access.

    Args:
        shape: (n, k).
        describe: function from a game index and an agent index to a text; what it reads must not change.
    """

    dtype = np.dtype(object)

    def __init__(self, shape: tuple[int, int], describe: Callable[[int, int], str]) -> None:
        self.shape, self._describe = shape, describe
        self._texts: dict[tuple[int, int], str] = {}

    def __getitem__(self, index: Any) -> Any:
        """Return the text at (game, agent); for an index that is no tuple, the list of all texts of this game."""
        if not isinstance(index, tuple):
            return [self[index, agent] for agent in range(self.shape[1])]
        game, agent = index
        if not (0 <= game < self.shape[0] and 0 <= agent < self.shape[1]):
            raise IndexError(f"no agent {agent} of game {game} among texts of shape {self.shape}")
        if index not in self._texts:
            self._texts[index] = self._describe(game, agent)
        return self._texts[index]

    def tolist(self) -> list[list[str]]:
        return [[self[game, agent] for agent in range(self.shape[1])] for game in range(self.shape[0])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.tolist(), dtype=object)
