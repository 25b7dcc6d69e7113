"""Environments behind a server with the protocol of OpenEnv, as worlds with one agent and a list of actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.pettingzoo.agent_channels import TEXT_KEY
from llmrl.envs.pettingzoo.listed_moves import ListedMovesWorld

_AGENT = "player"
_MAX_MOVES = 1000
"""Maximum number of actions that are read from a server's schema."""
_MAX_MESSAGE_BYTES = 100 * 2**20


class OpenEnvWorld(ListedMovesWorld):
    """One session of a server: one agent, whose observations are JSON texts and whose actions are a list.

    Args:
        id: address of the server, e.g. `http://127.0.0.1:8000`.
        moves: the actions, as the JSON objects that the server takes; None: the values of the only field of its action
            schema, which must be an enumeration, a truth value, or an integer with a range.
        reset: further arguments of the server's reset.
        timeout_s: seconds to wait for an answer, > 0.

    Raises:
        ConfigError: the address is invalid, nothing answers there, or the actions cannot be listed.
        ModuleNotFoundError: `websockets` is not installed.
    """

    def __init__(
        self,
        id: str,
        moves: Sequence[Mapping[str, Any]] | None = None,
        reset: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._url, self._timeout_s, self._reset_options = id, timeout_s, dict(reset or {})
        self._socket = self._connect()
        self._moves = [dict(move) for move in (moves if moves is not None else self._listed_moves())]
        if len(self._moves) < 2:
            raise ConfigError(f"env.kwargs.moves={self._moves} must be a list of at least two actions")
        super().__init__("openenv", [_AGENT], move_names(self._moves))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        self._begin_episode()
        self.agent_selection = _AGENT
        seeded = {} if seed is None else {"seed": int(seed)}
        self._receive("reset", {**self._reset_options, **seeded})

    def step(self, action: Any) -> None:
        """Take the action with the index `action`."""
        if self.terminations[_AGENT]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[_AGENT] = 0.0
        answer = self._receive("step", self._moves[int(action)])
        self.rewards[_AGENT] = float(answer.get("reward") or 0.0)
        self.terminations[_AGENT] = bool(answer.get("done"))
        self._accumulate_rewards()

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    def _connect(self) -> Any:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"env.id={self._url} must be the address of a server, e.g. http://127.0.0.1:8000")
        address = f"ws{self._url.removeprefix('http').rstrip('/')}/ws"
        try:
            return connect(address, open_timeout=self._timeout_s, max_size=_MAX_MESSAGE_BYTES)
        except (OSError, WebSocketException) as error:
            raise ConfigError(f"env.id={self._url}: no server of OpenEnv answers there ({error})") from error

    def _receive(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and read its answer; the observation becomes the agent's text.

        Raises:
            EngineError: the server reports an error, or sends no valid answer in time.
        """
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            message = json.loads(self._socket.recv(timeout=self._timeout_s))
            answer: dict[str, Any] = message["data"]
            if message["type"] == "error":
                raise EngineError(f"{self._url}: {kind}: {answer.get('message', answer)}")
        except (OSError, WebSocketException, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{self._url}: no answer to {kind} ({error!r})") from error
        observation = {key: x for key, x in answer.get("observation", {}).items() if key != "metadata"}
        self.infos = {_AGENT: {TEXT_KEY: json.dumps(observation, ensure_ascii=False)}}
        return answer

    def _listed_moves(self) -> list[dict[str, Any]]:
        """Return the actions that the server's schema lists."""
        import httpx

        try:
            schema = httpx.get(f"{self._url.rstrip('/')}/schema", timeout=self._timeout_s).json()["action"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"env.id={self._url}: its action schema cannot be read ({error!r})") from error
        fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        values = _listed_values(next(iter(fields.values())), schema) if len(fields) == 1 else None
        if values is None:
            raise ConfigError(
                f"env.id={self._url}: the actions of this server cannot be listed (fields: {', '.join(fields)}); set "
                "env.kwargs={moves: [...]} to the JSON objects that it takes"
            )
        return [{next(iter(fields)): value} for value in values]


def move_names(moves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return names of JSON objects: the values in them, or the objects as JSON if names would be equal or empty.

    >>> move_names([{"actions": {"player_0": "hit"}}, {"actions": {"player_0": "stick"}}])
    ['hit', 'stick']
    """
    names = ["_".join(re.findall(r"[\w.-]+", " ".join(map(str, _leaves(move))))) for move in moves]
    if "" in names or len(set(names)) < len(names):
        return [json.dumps(move, ensure_ascii=False) for move in moves]
    return names


def _leaves(content: Any) -> Iterator[Any]:
    """Yield the values of nested objects and lists."""
    if isinstance(content, Mapping):
        content = list(content.values())
    if not isinstance(content, list):
        yield content
        return
    for part in content:
        yield from _leaves(part)


def _listed_values(field: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of a field of a JSON schema; None if they are not few."""
    if "$ref" in field:
        field = schema.get("$defs", {}).get(str(field["$ref"]).rpartition("/")[2], {})
    if "enum" in field:
        return list(field["enum"])
    if field.get("type") == "boolean":
        return [False, True]
    low = field.get("minimum", field.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in field else None)
    high = field.get("maximum", field.get("exclusiveMaximum", 1) - 1 if "exclusiveMaximum" in field else None)
    if field.get("type") == "integer" and low is not None and high is not None and high - low < _MAX_MOVES:
        return list(range(int(low), int(high) + 1))
    return None
