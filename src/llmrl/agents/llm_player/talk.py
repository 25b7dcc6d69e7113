"""Talk between players: their messages before an action, the recipients, and the parsing of replies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.name_matcher import normalize_name
from llmrl.llms.reading.object_parser import TextParser

_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
TalkTo = Literal["all", "neighbors", "one"]
"""Recipients of a message: all players, those in the speaker's view, or the one that it names."""


@dataclass(frozen=True)
class TalkMessage:
    """Message of a player in a round; "" is silence. `to` is the name of the recipient; "": all who can hear it."""

    text: str
    to: str = ""


class Talk:
    """Rounds of talk in the games of one environment.

    All players of a round speak at the same time. Messages to a player are part of its next observation.

    Args:
        spec: spec of the environment, or of the players that read.
        every: steps between two rounds, >= 1; the first is before the first action.
        to: recipients of a message.
        length: maximum number of characters of a message.

    Raises:
        ConfigError: there is only one player that reads, or it is unknown who sees whom.
    """

    def __init__(self, spec: EnvSpec, every: int, to: TalkTo, length: int) -> None:
        if spec.n_agents < 2:
            raise ConfigError(f"agent.message_interval={every} needs at least two language players, got 1; set it to 0")
        self.neighbors = "" if spec.text is None else spec.text.neighbors
        if to == "neighbors" and not self.neighbors:
            raise ConfigError(
                f"agent.message_recipients=neighbors: observations of env={spec.name} do not list the players in view"
                "; use all or one"
            )
        self.every, self.to, self.length, self.names = every, to, length, spec.player_names
        self._parser = TextParser("message", length)
        self._parser.kept = ("to",)

    def due(self, step: int) -> bool:
        """Return whether there is a round before the action of a step, counted from 0."""
        return step % self.every == 0

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a message."""
        properties: dict[str, Any] = {}
        if self.to == "one":
            properties["to"] = {"type": "string", "enum": list(self.names)}
        properties["message"] = {"type": "string"}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def read(self, text: str, speaker: int, cut: bool) -> TalkMessage:
        """Return the message in a reply; `cut` says that the reply was cut off because it grew too long.

        Raises:
            InvalidReply: there is no message, or its recipient is not another player.
        """
        if silent(text):
            return TalkMessage("")
        answer = parse_answer(text, self._parser, cut)
        utterance = " ".join(answer.answer.split())[: self.length]
        if self.to != "one" or not utterance:
            return TalkMessage(utterance)
        candidates = [name for i, name in enumerate(self.names) if i != speaker]
        recipients = [
            name
            for name in candidates
            if normalize_name(answer.kept) in (normalize_name(name), normalize_name(name.split()[-1]))
        ]
        if len(recipients) != 1:
            raise InvalidReply(f'"to" must name one other player: {", ".join(candidates)}')
        return TalkMessage(utterance, recipients[0])

    def hear_round(self, messages: Sequence[TalkMessage | None], seen: Sequence[str]) -> list[list[dict[str, str]]]:
        """Return the messages that each player hears in a round, as entries for its observation.

        Args:
            messages: message of each player; None for players that did not take part.
            seen: observation of each player, as JSON.
        """
        inboxes: list[list[dict[str, str]]] = [[] for _ in self.names]
        for speaker, message in enumerate(messages):
            if message is None or not message.text:
                continue
            for listener in self._listeners(speaker, message, seen[speaker]):
                if messages[listener] is not None:
                    inboxes[listener].append({"from": self.names[speaker], "message": message.text})
        return inboxes

    def _listeners(self, speaker: int, message: TalkMessage, frame_text: str) -> list[int]:
        """Return the players that hear a message."""
        candidates = [i for i in range(len(self.names)) if i != speaker]
        if self.to == "one":
            return [i for i in candidates if self.names[i] == message.to]
        if self.to == "all":
            return candidates
        in_view = _players(frame_text, self.neighbors)
        return [i for i in candidates if self.names[i] in in_view]


def silent(text: str) -> bool:
    """Return whether a reply contains only empty messages."""
    messages = _MESSAGE.findall(text)
    return bool(messages) and not any(messages)


def _players(frame_text: str, field: str) -> set[str]:
    """Return the names of the players in an observation's list of those in view."""
    try:
        frame = json.loads(frame_text)
    except ValueError:
        return set()
    return {f"player {neighbor['player']}" for neighbor in frame.get(field, ()) if isinstance(neighbor, Mapping)}
