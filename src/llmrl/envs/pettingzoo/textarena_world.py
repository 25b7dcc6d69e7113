"""Games of TextArena as worlds of PettingZoo, whose actions are a list of moves.

TextArena (arXiv 2504.11442) accepts any text as a move. A world of this module has a fixed list of moves, so that it
works with every agent that chooses one of several actions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.pettingzoo.agent_channels import MASK, TEXT_KEY
from llmrl.envs.pettingzoo.listed_moves import ListedMovesWorld

_DIRECTIONS = ("up", "down", "left", "right")
MOVES: Mapping[str, tuple[str, ...]] = {
    "2048": _DIRECTIONS,
    "Bandit": ("red", "blue", "green", "yellow", "purple"),
    "Blackjack": ("hit", "stand"),
    "ConnectFour": tuple(f"col {i}" for i in range(7)),
    "FrozenLake": _DIRECTIONS,
    "GuessTheNumber": tuple(str(i) for i in range(1, 21)),
    "IteratedMatchingPennies": ("heads", "tails"),
    "IteratedRockPaperScissors": ("rock", "paper", "scissors"),
    "KuhnPoker": ("check", "bet", "call", "fold"),
    "Nim": tuple(f"{pile} {count}" for pile, size in enumerate((3, 4, 5)) for count in range(1, size + 1)),
    "Othello": tuple(f"{row}, {column}" for row in range(8) for column in range(8)),
    "PigDice": ("roll", "hold"),
    "Secretary": ("accept", "continue"),
    "Snake": _DIRECTIONS,
    "Sokoban": _DIRECTIONS,
    "TicTacToe": tuple(str(i) for i in range(9)),
    "TowerOfHanoi": tuple(f"{start} {end}" for start in "ABC" for end in "ABC" if start != end),
}
"""Moves of games in their first version, by the id without version; other games need `moves`."""
_MAX_PLAYERS = 15
"""Maximum number of players of a game of TextArena."""
_LEGAL_MOVES = re.compile(r"(?:available|valid|legal) (?:moves|actions)[^:\n]*:([^\n]*)", re.IGNORECASE)
"""Line of an observation that lists legal moves."""
_BRACKETS = re.compile(r"\[([^\[\]\n]+)\]")


class TextArenaWorld(ListedMovesWorld):
    """One game of TextArena.

    A turn is one text of one player: a move in brackets. The observation is the game's text, in the entry `text` of the
    player's info. Moves are legal if the latest line of the text that lists legal moves contains them; all moves are
    legal if there is no such line. Rewards are paid at the end. An illegal move is the game's matter: most games
    request another move once, and end with a loss at the second one.

    TextArena draws from Python's and NumPy's global generators. Each game has states of its own, which are exchanged
    with the global ones during a call, so a game depends on its seed and moves only.

    Args:
        id: id of the game, e.g. `TicTacToe-v0`; variants such as `TicTacToe-v0-train` differ in their texts.
        moves: texts of the moves, without brackets; None: those of `MOVES`.
        num_players: number of players; None: the smallest number that the game accepts.
        kwargs: further arguments of the game.

    Raises:
        ConfigError: there is no such game, or its moves are unknown.
        ModuleNotFoundError: TextArena is not installed.
    """

    def __init__(
        self, id: str, moves: Sequence[str] | None = None, num_players: int | None = None, **kwargs: Any
    ) -> None:
        names = _moves(id, moves)
        self._id, self._kwargs = id, kwargs
        self._generators: tuple[Any, Any] = random.Random(0).getstate(), np.random.RandomState(0).get_state()
        self._num_players = self._smallest_size() if num_players is None else num_players
        super().__init__(id, [f"player_{i}" for i in range(self._num_players)], names)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        if seed is not None:
            self._generators = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        self._begin_episode()
        with self._exchanged_generators():
            self._start(self._num_players)
            self._look()

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Return the legal moves of an agent; all moves while it is not its turn."""
        legal = super().observe(agent)[MASK]
        if agent == self.agent_selection and (lines := _LEGAL_MOVES.findall(self.infos[agent][TEXT_KEY])):
            listed = {" ".join(move.lower().split()) for move in _BRACKETS.findall(lines[-1])}
            mask = np.array([name.lower() in listed for name in self.action_names], dtype=np.int8)
            legal = mask if mask.any() else legal
        return {MASK: legal}

    def step(self, action: Any) -> None:
        """Play the move with the index `action` for the player whose turn it is."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        with self._exchanged_generators():
            done, _ = self._game.step(f"[{self.action_names[int(action)]}]")
            if done:
                rewards, _ = self._game.close()
                for i, player in enumerate(self.possible_agents):
                    self.rewards[player] = float((rewards or {}).get(i, 0.0))
                self.terminations = dict.fromkeys(self.agents, True)
            else:
                self._look()
        self._accumulate_rewards()

    def close(self) -> None:
        """Do nothing: a game holds no resources."""

    def _look(self) -> None:
        """Read the text of the player whose turn it is; a text can be read only once in a turn."""
        player, text = self._game.get_observation()
        self.agent_selection = self.possible_agents[player]
        self.infos[self.agent_selection] = {TEXT_KEY: str(text).strip()}

    def _start(self, num_players: int) -> None:
        # A new object, because TextArena's wrappers keep the texts of earlier episodes.
        self._game = _make_game(self._id, self._kwargs)
        self._game.reset(num_players=num_players, seed=random.getrandbits(31))

    def _smallest_size(self) -> int:
        """Return the smallest number of players that the game accepts."""
        with self._exchanged_generators():
            for n in range(1, _MAX_PLAYERS + 1):
                try:
                    self._start(n)
                except AssertionError:
                    continue
                return n
        raise ConfigError(f"env.id={self._id}: the game starts with no number of players from 1 to {_MAX_PLAYERS}")

    @contextmanager
    def _exchanged_generators(self) -> Iterator[None]:
        """Exchange the states of the global random generators with those of this game."""
        previous = random.getstate(), np.random.get_state()
        random.setstate(self._generators[0])
        np.random.set_state(self._generators[1])
        try:
            yield
        finally:
            self._generators = random.getstate(), np.random.get_state()
            random.setstate(previous[0])
            np.random.set_state(previous[1])


def _make_game(id: str, kwargs: Mapping[str, Any]) -> Any:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if id not in ENV_REGISTRY:
        versions = sorted(name for name in ENV_REGISTRY if name.startswith(id.partition("-")[0]))
        raise ConfigError(
            f"env.id={id}: TextArena has no such game" + (f"; it has {', '.join(versions)}" if versions else "")
        )
    try:
        return textarena.make(id, **kwargs)
    except SyntaxError as error:  # some games of TextArena are written for a later version of Python
        raise ConfigError(f"env.id={id}: this game needs a later version of Python ({error})") from error


def _moves(id: str, moves: Sequence[str] | None) -> tuple[str, ...]:
    if moves is None:
        moves = MOVES.get(id.partition("-")[0])
    if moves is None:
        raise ConfigError(
            f"env.id={id}: the moves of this game are not listed; set env.kwargs={{moves: [...]}} to the texts of its "
            f"moves without brackets. Listed are those of {', '.join(MOVES)}"
        )
    texts = tuple(str(move) for move in moves)
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise ConfigError(f"env.kwargs.moves={list(texts)} must be at least two different texts")
    return texts
