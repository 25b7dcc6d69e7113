"""Scripted players of the substrates, for the Melting Pot engine and the native engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from llmrl.envs.substrate.maps import GameMap

MOVES = ("forward", "step_right", "backward", "step_left")
EXPLORATION_RATE = 0.1
"""Probability of a uniformly random action, which prevents players from getting stuck."""


@dataclass
class WorldState:
    """Observations of players in B games: positions and headings [B, N], presence of apples and dirt [B, n_sites]."""

    x: np.ndarray
    y: np.ndarray
    heading: np.ndarray
    apple: np.ndarray
    dirt: np.ndarray


Script = Callable[[WorldState, np.random.Generator], np.ndarray]
"""Function from the observations to the actions of all players, [B, N]."""


def make_uniform_script(game_map: GameMap, actions: tuple[str, ...]) -> Script:
    """Return a script in which all actions are equally probable."""
    return lambda world, rng: rng.integers(0, len(actions), world.x.shape)


def make_weighted_script(weights: list[float]) -> Script:
    """Return a script that samples actions with probabilities proportional to `weights`."""
    edges = np.cumsum(weights)[:-1] / np.sum(weights)
    return lambda world, rng: np.searchsorted(edges, rng.random(world.x.shape), side="right")


def make_forager_script(game_map: GameMap, actions: tuple[str, ...]) -> Script:
    """Return a script that walks to the nearest apple, without turning."""
    places = np.array([game_map.find_position(int(cell)) for cell in game_map.apple_cells])
    action_for = np.array([actions.index(name) for name in MOVES])

    def act(world: WorldState, rng: np.random.Generator) -> np.ndarray:
        dx, dy, has_target = _find_nearest(world, places, world.apple)
        actions_ = action_for[(_compute_direction(dx, dy) - world.heading) % 4]
        return _add_exploration(actions_, has_target, world, rng, len(actions))

    return act


def make_cleaner_script(game_map: GameMap, actions: tuple[str, ...]) -> Script:
    """Return a script that walks to the nearest dirt and, within two cells of it, turns to it and cleans."""
    places = np.array([game_map.find_position(int(cell)) for cell in game_map.dirt_cells])
    action_for = np.array([actions.index(name) for name in MOVES])
    close_actions = np.array([actions.index(name) for name in ("clean", "turn_right", "turn_right", "turn_left")])

    def act(world: WorldState, rng: np.random.Generator) -> np.ndarray:
        dx, dy, has_target = _find_nearest(world, places, world.dirt)
        distance = abs(dx) + abs(dy)
        relative = (_compute_direction(dx, dy) - world.heading) % 4
        actions_ = np.where(distance <= 2, close_actions[relative], action_for[relative])
        actions_ = np.where(distance == 0, actions.index("forward"), actions_)
        return _add_exploration(actions_, has_target, world, rng, len(actions))

    return act


def make_mixed_script(game_map: GameMap, actions: tuple[str, ...]) -> Script:
    """Return a script in which the first four players forage.

    The others clean, or act at random where there is no river.
    """
    forager_script = make_forager_script(game_map, actions)
    rest = (make_cleaner_script if len(game_map.dirt_cells) else make_uniform_script)(game_map, actions)

    def act(world: WorldState, rng: np.random.Generator) -> np.ndarray:
        return np.where(np.arange(world.x.shape[1]) < 4, forager_script(world, rng), rest(world, rng))

    return act


SCRIPTS: Mapping[str, Callable[[GameMap, tuple[str, ...]], Script]] = {
    "uniform": make_uniform_script,
    "forager": make_forager_script,
    "cleaner": make_cleaner_script,
    "mixed": make_mixed_script,
}


def _find_nearest(
    world: WorldState, places: np.ndarray, is_present: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the x and y offsets to the nearest present site, and whether any site is present, [B, N] each.

    Args:
        world: observations of the players.
        places: positions of the sites, [A, 2].
        is_present: whether each site is present, [B, A].
    """
    dx = places[:, 0] - world.x[..., None]
    dy = places[:, 1] - world.y[..., None]
    distance = np.where(is_present[:, None], abs(dx) + abs(dy), 1000)
    site = distance.argmin(-1)[..., None]
    has_target = is_present.any(-1)[:, None] & np.ones(world.x.shape, bool)
    return np.take_along_axis(dx, site, -1)[..., 0], np.take_along_axis(dy, site, -1)[..., 0], has_target


def _compute_direction(dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return the direction of the larger offset: 0 north, 1 east, 2 south, 3 west."""
    return np.where(abs(dx) >= abs(dy), np.where(dx > 0, 1, 3), np.where(dy > 0, 2, 0))


def _add_exploration(
    actions: np.ndarray, has_target: np.ndarray, world: WorldState, rng: np.random.Generator, n: int
) -> np.ndarray:
    whim = rng.random(actions.shape) < EXPLORATION_RATE
    return np.where(has_target & ~whim, actions, rng.integers(0, n, actions.shape))
