"""Observations that need more than their space to be understood: maps, and what an agent sees of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.sentences import carried, sentences


class Decoder(Protocol):
    """Tells what one environment shows.

    Attributes:
        names: of what it tells; the text's observation describes each.
        facts: that the text's goal may name as `{name}`.
        arguments: of the environment, which the facts and what is told of an observation speak of.
        states: see `EnvDescription.states`.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def facts(self) -> Mapping[str, str]: ...

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def states(self) -> str: ...

    def tell(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        """Named values that JSON can hold."""
        ...


class FrozenLake:
    """Row, column and surroundings on the map that is really played, whatever its size."""

    names = ("row", "column", "neighbours")
    arguments = ("desc", "map_name", "is_slippery", "success_rate")
    _TILES = {"S": "start", "F": "ice", "H": "hole", "G": "goal"}
    _MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}

    def __init__(self, env: Any, where: str) -> None:
        game = env.unwrapped
        if not hasattr(game, "desc") or not hasattr(game, "P"):
            raise ConfigError(f"{where}: the decoder frozen_lake is for FrozenLake, not for {env}")
        self._map = [[bytes(tile).decode() for tile in row] for row in game.desc]
        self._n_columns = len(self._map[0])
        self.facts = {"map": "\n".join("".join(row) for row in self._map), "slips": _slips(game, "The ice")}
        self.states = _cells(self._n_columns)

    def tell(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        row, column = divmod(int(observation), self._n_columns)
        neighbours = {}
        for name, (down, right) in self._MOVES.items():
            y, x = row + down, column + right
            inside = 0 <= y < len(self._map) and 0 <= x < self._n_columns
            neighbours[name] = self._TILES[self._map[y][x]] if inside else "edge of the map"
        return {"row": row, "column": column, "neighbours": neighbours}


class CliffWalking:
    """Row and column, and whether the ground is slippery."""

    names = ("row", "column")
    arguments = ("is_slippery",)

    def __init__(self, env: Any, where: str) -> None:
        game = env.unwrapped
        if len(getattr(game, "shape", ())) != 2 or not hasattr(game, "P"):
            raise ConfigError(f"{where}: the decoder cliff_walking is for CliffWalking, not for {env}")
        self._n_columns = int(game.shape[1])
        self.facts = {"slips": _slips(game, "The ground")}
        self.states = _cells(self._n_columns)

    def tell(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        row, column = divmod(int(observation), self._n_columns)
        return {"row": row, "column": column}


def _slips(game: Any, what: str) -> str:
    """Where a step goes, of one of Gymnasium's tables: the middle one of its outcomes is the way that was chosen."""
    outcomes = {(s, a): game.P[s][a] for s in game.P for a in game.P[s]}
    if all(len(after) == 1 for after in outcomes.values()):
        return f"{what} is not slippery: you always move where you want."
    # From a state whose neighbours all differ it is told apart.
    straight = min(after[len(after) // 2][0] for after in outcomes.values())
    return (
        f"{what} is slippery: you move where you want with probability {straight:.2g}, and otherwise to one of the two "
        "sides, at right angles to it, with equal probability."
    )


def _cells(n_columns: int) -> str:
    return f"row = s // {n_columns}, column = s % {n_columns}"


class GridView:
    """MiniGrid's and BabyAI's partial view as sentences, in the words of BabyAI-Text (arXiv 2302.02662)."""

    names = ("mission", "facing", "carrying", "view")
    facts: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    states = ""
    _FACING = ("east", "south", "west", "north")

    def __init__(self, env: Any, where: str) -> None:
        from gymnasium import spaces

        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not {"image", "direction", "mission"} <= set(space.spaces):
            raise ConfigError(
                f"{where}: the decoder grid_view is for MiniGrid and BabyAI, whose observations have image, direction "
                f"and mission; this one is {space}"
            )

    def tell(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        image = observation["image"]
        return {
            "mission": str(observation["mission"]),
            "facing": self._FACING[int(observation["direction"])],
            "carrying": carried(image) or "nothing",
            "view": [said for said in sentences(image) if not said.startswith("You carry")],
        }


class Board:
    """Two planes of a board, what is yours and what is your opponent's, as rows of letters, the top one first.

    Args:
        env: the game; its observation is [rows, columns, 2].
        where: the text's name for messages.
        by_columns: whether the first axis counts columns, as in pictures of PettingZoo's tic-tac-toe.
    """

    names = ("board",)
    facts: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    states = ""
    _LETTERS = ".xo"

    def __init__(self, env: Any, where: str, by_columns: bool = False) -> None:
        shape: tuple[int, ...] = getattr(env.observation_space, "shape", None) or ()
        if len(shape) != 3 or shape[-1] != 2:
            raise ConfigError(
                f"{where}: the decoder board is for observations [rows, columns, 2], yours and your opponent's; this "
                f"one is {env.observation_space}"
            )
        self._by_columns = by_columns

    def tell(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        codes = observation[..., 0] + 2 * observation[..., 1]
        rows = (codes.T if self._by_columns else codes).tolist()
        return {"board": ["".join(self._LETTERS[int(code)] for code in row) for row in rows]}


DECODERS: dict[str, Callable[[Any, str], Decoder]] = {
    "frozen_lake": FrozenLake,
    "cliff_walking": CliffWalking,
    "grid_view": GridView,
    "board": Board,
    "board_by_columns": lambda env, where: Board(env, where, by_columns=True),
}
"""By the name that a text gives as `decoder`; called with one environment and the text's name for messages."""
