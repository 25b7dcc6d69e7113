"""Decoders of observations whose meaning the observation space does not define, such as views and boards.

Text file: a YAML file that describes an environment for language-model players (`schema.DescriptionFile`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.language import describe_view, find_carried_object


class Decoder(ABC):
    """Base class of decoders, which convert the observations of one environment into named values.

    Attributes:
        value_names: names of the values; a text file with this decoder must describe all of them.
        facts: name -> fact about the environment, which replaces `{name}` in the goal of the text file.
        described_arguments: names of the environment's arguments that the facts or the values describe.
        states: rule to compute the values from a state index, or "" (see `EnvDescription.states`).
    """

    value_names: tuple[str, ...]
    facts: Mapping[str, str] = {}
    described_arguments: tuple[str, ...] = ()
    states = ""

    @abstractmethod
    def decode(self, observation: Any) -> dict[str, Any]:
        """Return name -> value, with values that JSON can represent."""


class CliffWalking(Decoder):
    """Decoder of CliffWalking to row and column; the fact `slips` describes whether the ground is slippery."""

    value_names = ("row", "column")
    described_arguments = ("is_slippery",)

    def __init__(self, env: Any, source: str) -> None:
        game = env.unwrapped
        if len(getattr(game, "shape", ())) != 2 or not hasattr(game, "P"):
            raise ConfigError(f"{source}: the decoder cliff_walking is for CliffWalking, not for {env}")
        self._n_columns = int(game.shape[1])
        self.facts = {"slips": _describe_slipping(game, "The ground")}
        self.states = _build_cell_rule(self._n_columns)

    def decode(self, observation: Any) -> dict[str, Any]:
        row, column = divmod(int(observation), self._n_columns)
        return {"row": row, "column": column}


class FrozenLake(Decoder):
    """Decoder of FrozenLake with any map to row, column and neighboring tiles; the facts are `map` and `slips`."""

    value_names = ("row", "column", "neighbors")
    described_arguments = ("desc", "map_name", "is_slippery", "success_rate")
    _TILE_NAMES = {"S": "start", "F": "ice", "H": "hole", "G": "goal"}
    _NEIGHBOR_OFFSETS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}

    def __init__(self, env: Any, source: str) -> None:
        game = env.unwrapped
        if not hasattr(game, "desc") or not hasattr(game, "P"):
            raise ConfigError(f"{source}: the decoder frozen_lake is for FrozenLake, not for {env}")
        rows = ["".join(bytes(tile).decode() for tile in row) for row in game.desc]
        self._n_columns = len(rows[0])
        self._tiles = {(y, x): self._TILE_NAMES[tile] for y, row in enumerate(rows) for x, tile in enumerate(row)}
        self.facts = {"map": "\n".join(rows), "slips": _describe_slipping(game, "The ice")}
        self.states = _build_cell_rule(self._n_columns)

    def decode(self, observation: Any) -> dict[str, Any]:
        row, column = divmod(int(observation), self._n_columns)
        neighbors = {
            name: self._tiles.get((row + down, column + right), "edge of the map")
            for name, (down, right) in self._NEIGHBOR_OFFSETS.items()
        }
        return {"row": row, "column": column, "neighbors": neighbors}


def _describe_slipping(game: Any, ground_name: str) -> str:
    """Return a sentence about slipping, derived from the transition table `P` of a Gymnasium environment.

    In a list of several outcomes, the middle one is a move in the chosen direction.
    """
    transitions = [game.P[state][action] for state in game.P for action in game.P[state]]
    if all(len(outcomes) == 1 for outcomes in transitions):
        return f"{ground_name} is not slippery: you always move where you want."
    # In some states several outcomes have the same next state and share a probability; the minimum excludes these.
    p_straight = min(outcomes[len(outcomes) // 2][0] for outcomes in transitions)
    return (
        f"{ground_name} is slippery: you move where you want with probability {p_straight:.2g}, and otherwise "
        "to one of the two sides, at right angles to it, with equal probability."
    )


def _build_cell_rule(n_columns: int) -> str:
    return f"row = s // {n_columns}, column = s % {n_columns}"


class GridView(Decoder):
    """Decoder of MiniGrid's and BabyAI's partial view to sentences, as in BabyAI-Text (arXiv 2302.02662)."""

    value_names = ("mission", "facing", "carrying", "view")
    _HEADINGS = ("east", "south", "west", "north")

    def __init__(self, env: Any, source: str) -> None:
        from gymnasium import spaces

        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not {"image", "direction", "mission"} <= set(space.spaces):
            raise ConfigError(
                f"{source}: the decoder grid_view is for MiniGrid and BabyAI, whose observations have image, direction "
                f"and mission; this observation space is {space}"
            )

    def decode(self, observation: Any) -> dict[str, Any]:
        image = observation["image"]
        return {
            "mission": str(observation["mission"]),
            "facing": self._HEADINGS[int(observation["direction"])],
            "carrying": find_carried_object(image) or "nothing",
            "view": [sentence for sentence in describe_view(image) if not sentence.startswith("You carry")],
        }


class Board(Decoder):
    """Decoder of boards to rows of letters from top to bottom: `x` for the player, `o` for the opponent, `.` for empty.

    Args:
        env: environment with observations [rows, columns, 2]; the last axis is (player, opponent).
        source: name of the text file, for messages.
        has_columns_first: whether the first axis is that of columns, as in PettingZoo's tic-tac-toe.
    """

    value_names = ("board",)
    _SYMBOLS = ".xo"

    def __init__(self, env: Any, source: str, has_columns_first: bool = False) -> None:
        shape: tuple[int, ...] = getattr(env.observation_space, "shape", None) or ()
        if len(shape) != 3 or shape[-1] != 2:
            raise ConfigError(
                f"{source}: the decoder board is for observations [rows, columns, 2], of the player and the opponent; "
                f"this observation space is {env.observation_space}"
            )
        self._has_columns_first = has_columns_first

    def decode(self, observation: Any) -> dict[str, Any]:
        codes = observation[..., 0] + 2 * observation[..., 1]
        rows = (codes.T if self._has_columns_first else codes).tolist()
        return {"board": ["".join(self._SYMBOLS[int(code)] for code in row) for row in rows]}


DECODERS: dict[str, Callable[[Any, str], Decoder]] = {
    "frozen_lake": FrozenLake,
    "cliff_walking": CliffWalking,
    "grid_view": GridView,
    "board": Board,
    "board_by_columns": lambda env, source: Board(env, source, has_columns_first=True),
}
"""Value of `decoder` in a text file -> function that returns the decoder, given the environment and the file's name."""
