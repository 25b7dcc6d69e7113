"""PettingZoo environments (worlds) with text observations and a list of moves: TextArena games and OpenEnv servers.

TextArena (arXiv 2504.11442) accepts any text as a move. Here a game has a fixed list of moves, so that every agent with
discrete actions can play it. A session on a server with the OpenEnv protocol is a world with one agent.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.pettingzoo.agent_channels import MASK_KEY, TEXT_KEY

_DIRECTIONS = ("up", "down", "left", "right")
MOVES_BY_GAME: Mapping[str, tuple[str, ...]] = {
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
"""Id of a TextArena game without version (`TicTacToe` for `TicTacToe-v0`) -> its moves; other games need `moves`."""
_MAX_PLAYERS = 15
"""Maximum number of players of a TextArena game."""
_LEGAL_MOVES_PATTERN = re.compile(r"(?:available|valid|legal) (?:moves|actions)[^:\n]*:([^\n]*)", re.IGNORECASE)
"""Pattern of a line of an observation that lists legal moves."""
_BRACKETED_TEXT_PATTERN = re.compile(r"\[([^\[\]\n]+)\]")

_OPENENV_AGENT_NAME = "player"
_MAX_OPENENV_MOVES = 1000
"""Maximum number of actions that a server's schema may define by the range of an integer."""
_MAX_MESSAGE_BYTES = 100 * 2**20  # of a server's answer


class MoveListWorld(AECEnv):  # type: ignore[misc]
    """Base class of worlds with the same moves for all agents; an agent's info contains its text.

    Args:
        name: name of the world.
        agents: names of the agents.
        action_names: texts of the moves; action i is the i-th move.
    """

    def __init__(self, name: str, agents: Sequence[str], action_names: Sequence[str]) -> None:
        super().__init__()
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self.possible_agents, self.agents = list(agents), list[str]()
        self.action_names = tuple(action_names)
        self._action_space = spaces.Discrete(len(self.action_names))
        self._observation_space = spaces.Dict({MASK_KEY: spaces.MultiBinary(len(self.action_names))})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_space

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Return the mask of an agent's legal moves; all moves are legal."""
        return {MASK_KEY: np.ones(len(self.action_names), dtype=np.int8)}

    def _begin_episode(self) -> None:
        """Set the PettingZoo attributes of the start of an episode: all agents, no rewards and empty texts."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {TEXT_KEY: ""} for agent in self.agents}


class TextArenaWorld(MoveListWorld):
    """One TextArena game.

    In a turn, one player sends one move, which TextArena receives in brackets. The entry `text` of the player's info is
    TextArena's text. If a line of it lists legal moves, the last such line defines the mask; else all moves are legal.
    Rewards are paid at the end. TextArena handles illegal moves: most games request another move after the first one,
    and end with a loss after the second one.

    TextArena uses the global random generators of Python and NumPy. Each game stores states of both, which replace the
    global states during a call, so a game depends only on its seed and moves.

    Args:
        id: id of the game, e.g. `TicTacToe-v0`; variants such as `TicTacToe-v0-train` differ in their texts.
        moves: texts of the moves, without brackets; None: see `MOVES_BY_GAME`.
        num_players: number of players; None: the minimum number that the game accepts.
        kwargs: further arguments of the game.

    Raises:
        ConfigError: there is no such game, or it is not in `MOVES_BY_GAME` and `moves` is None.
        ModuleNotFoundError: TextArena is not installed.
    """

    def __init__(
        self, id: str, moves: Sequence[str] | None = None, num_players: int | None = None, **kwargs: Any
    ) -> None:
        move_texts = _find_move_texts(id, moves)
        self._id, self._kwargs = id, kwargs
        self._generator_states: tuple[Any, Any] = random.Random(0).getstate(), np.random.RandomState(0).get_state()
        self._num_players = self._find_min_num_players() if num_players is None else num_players
        super().__init__(id, [f"player_{i}" for i in range(self._num_players)], move_texts)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        if seed is not None:
            self._generator_states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        self._begin_episode()
        with self._swap_generator_states():
            self._start_game(self._num_players)
            self._read_text()

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Return the mask of legal moves of an agent; it is true everywhere while it is another agent's turn."""
        if agent == self.agent_selection and (move_lists := _LEGAL_MOVES_PATTERN.findall(self.infos[agent][TEXT_KEY])):
            legal_moves = {" ".join(move.lower().split()) for move in _BRACKETED_TEXT_PATTERN.findall(move_lists[-1])}
            mask = np.array([name.lower() in legal_moves for name in self.action_names], dtype=np.int8)
            if mask.any():
                return {MASK_KEY: mask}
        return super().observe(agent)

    def step(self, action: Any) -> None:
        """Play the move with the index `action` for the player whose turn it is."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        with self._swap_generator_states():
            is_done, _ = self._game.step(f"[{self.action_names[int(action)]}]")
            if is_done:
                rewards, _ = self._game.close()
                self.rewards = {
                    player: float((rewards or {}).get(i, 0.0)) for i, player in enumerate(self.possible_agents)
                }
                self.terminations = dict.fromkeys(self.agents, True)
            else:
                self._read_text()
        self._accumulate_rewards()

    def _read_text(self) -> None:
        """Set whose turn it is, and this player's text; TextArena returns a text only once per turn."""
        player, text = self._game.get_observation()
        self.agent_selection = self.possible_agents[player]
        self.infos[self.agent_selection] = {TEXT_KEY: str(text).strip()}

    def _start_game(self, num_players: int) -> None:
        # A new object for each episode, because TextArena's wrappers keep texts of earlier episodes.
        self._game = _make_game(self._id, self._kwargs)
        self._game.reset(num_players=num_players, seed=random.getrandbits(31))

    def _find_min_num_players(self) -> int:
        """Return the minimum number of players that the game accepts; other numbers raise an AssertionError."""
        with self._swap_generator_states():
            for n in range(1, _MAX_PLAYERS + 1):
                try:
                    self._start_game(n)
                except AssertionError:
                    continue
                return n
        raise ConfigError(f"env.id={self._id}: the game accepts no number of players from 1 to {_MAX_PLAYERS}")

    @contextmanager
    def _swap_generator_states(self) -> Iterator[None]:
        """Give the global random generators the states of this game within the context, then restore them."""
        python_state, numpy_state = random.getstate(), np.random.get_state()
        random.setstate(self._generator_states[0])
        np.random.set_state(self._generator_states[1])
        try:
            yield
        finally:
            self._generator_states = random.getstate(), np.random.get_state()
            random.setstate(python_state)
            np.random.set_state(numpy_state)


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


def _find_move_texts(id: str, moves: Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts of the moves of a TextArena game: `moves`, or those in `MOVES_BY_GAME` if `moves` is None."""
    moves = MOVES_BY_GAME.get(id.partition("-")[0]) if moves is None else moves
    if moves is None:
        raise ConfigError(
            f"env.id={id}: the moves of this game are not listed; set env.kwargs={{moves: [...]}} to the texts of its "
            f"moves without brackets. Listed are those of {', '.join(MOVES_BY_GAME)}"
        )
    texts = tuple(str(move) for move in moves)
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise ConfigError(f"env.kwargs.moves={list(texts)} must be at least two different texts")
    return texts


class OpenEnvWorld(MoveListWorld):
    """One session on an OpenEnv server: a world with one agent, whose observations are JSON texts.

    Args:
        id: address of the server, e.g. `http://127.0.0.1:8000`.
        moves: the actions, as the JSON objects that the server accepts; None: one for each value of the only field of
            its action schema, which must be an enumeration, a boolean, or an integer with a range.
        reset: further arguments of the server's reset.
        timeout_s: maximum time to wait for an answer, in seconds, > 0.

    Raises:
        ConfigError: the address is invalid, no server answers, or the actions cannot be listed.
        ModuleNotFoundError: `websockets` is not installed.
    """

    def __init__(
        self,
        id: str,
        moves: Sequence[Mapping[str, Any]] | None = None,
        reset: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._server_url, self._timeout_seconds, self._reset_options = id, timeout_s, dict(reset or {})
        self._connection = self._connect()
        self._moves = [dict(move) for move in (moves if moves is not None else self._fetch_moves())]
        if len(self._moves) < 2:
            raise ConfigError(f"env.kwargs.moves={self._moves} must be a list of at least two actions")
        super().__init__("openenv", [_OPENENV_AGENT_NAME], name_moves(self._moves))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        self._begin_episode()
        self.agent_selection = _OPENENV_AGENT_NAME
        self._send_request("reset", {**self._reset_options, **({} if seed is None else {"seed": int(seed)})})

    def step(self, action: Any) -> None:
        """Take the action with the index `action`."""
        if self.terminations[_OPENENV_AGENT_NAME]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[_OPENENV_AGENT_NAME] = 0.0
        reply = self._send_request("step", self._moves[int(action)])
        self.rewards[_OPENENV_AGENT_NAME] = float(reply.get("reward") or 0.0)
        self.terminations[_OPENENV_AGENT_NAME] = bool(reply.get("done"))
        self._accumulate_rewards()

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def _connect(self) -> Any:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        url_parts = urlsplit(self._server_url)
        if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
            raise ConfigError(f"env.id={self._server_url} must be the address of a server, e.g. http://127.0.0.1:8000")
        address = f"ws{self._server_url.removeprefix('http').rstrip('/')}/ws"
        try:
            return connect(address, open_timeout=self._timeout_seconds, max_size=_MAX_MESSAGE_BYTES)
        except (OSError, WebSocketException) as error:
            raise ConfigError(f"env.id={self._server_url}: no server of OpenEnv answers there ({error})") from error

    def _send_request(self, message_type: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the server's answer; its observation becomes the agent's text.

        Raises:
            EngineError: the server reports an error, or sends no valid answer within the timeout.
        """
        from websockets.exceptions import WebSocketException

        try:
            self._connection.send(json.dumps({"type": message_type, "data": content}))
            message = json.loads(self._connection.recv(timeout=self._timeout_seconds))
            reply: dict[str, Any] = message["data"]
            if message["type"] == "error":
                raise EngineError(f"{self._server_url}: {message_type}: {reply.get('message', reply)}")
        except (OSError, WebSocketException, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{self._server_url}: no answer to {message_type} ({error!r})") from error
        observation = {key: x for key, x in reply.get("observation", {}).items() if key != "metadata"}
        self.infos = {_OPENENV_AGENT_NAME: {TEXT_KEY: json.dumps(observation, ensure_ascii=False)}}
        return reply

    def _fetch_moves(self) -> list[dict[str, Any]]:
        """Return the actions that the server's schema defines."""
        import httpx

        try:
            schema = httpx.get(f"{self._server_url.rstrip('/')}/schema", timeout=self._timeout_seconds).json()["action"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"env.id={self._server_url}: its action schema cannot be read ({error!r})") from error
        fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        values = _enumerate_values(next(iter(fields.values())), schema) if len(fields) == 1 else None
        if values is None:
            raise ConfigError(
                f"env.id={self._server_url}: the actions of this server cannot be listed (fields: "
                f"{', '.join(fields)}); set env.kwargs={{moves: [...]}} to the JSON objects that it takes"
            )
        return [{next(iter(fields)): value} for value in values]


def name_moves(moves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each JSON object: its values joined by `_`, or its JSON text if names are equal or empty.

    >>> name_moves([{"actions": {"player_0": "hit"}}, {"actions": {"player_0": "stick"}}])
    ['hit', 'stick']
    """
    names = ["_".join(re.findall(r"[\w.-]+", " ".join(map(str, _collect_leaves(move))))) for move in moves]
    if "" in names or len(set(names)) < len(names):
        return [json.dumps(move, ensure_ascii=False) for move in moves]
    return names


def _collect_leaves(content: Any) -> list[Any]:
    """Return the values in nested objects and lists that are neither objects nor lists."""
    elements = list(content.values()) if isinstance(content, Mapping) else content
    if not isinstance(elements, list):
        return [content]
    return [leaf for element in elements for leaf in _collect_leaves(element)]


def _enumerate_values(field: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the possible values of a field of a JSON schema; None unless it lists them or defines a small range."""
    if "$ref" in field:
        field = schema.get("$defs", {}).get(str(field["$ref"]).rpartition("/")[2], {})
    if "enum" in field:
        return list(field["enum"])
    if field.get("type") == "boolean":
        return [False, True]
    low = field.get("minimum", field.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in field else None)
    high = field.get("maximum", field.get("exclusiveMaximum", 1) - 1 if "exclusiveMaximum" in field else None)
    if field.get("type") == "integer" and low is not None and high is not None and high - low < _MAX_OPENENV_MOVES:
        return list(range(int(low), int(high) + 1))
    return None
