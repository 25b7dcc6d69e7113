"""Talk between players: their messages before an action, the recipients, and the parsing of replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.name_matcher import normalize_name
from llmrl.llms.reading.object_parser import TextParser

_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
TalkTo = Literal["all", "one"]
"""Recipients of a message: all players, or the one that it names."""


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
        ConfigError: there is only one player that reads.
    """

    def __init__(self, spec: EnvSpec, every: int, to: TalkTo, length: int) -> None:
        if spec.n_agents < 2:
            raise ConfigError(f"agent.message_interval={every} needs at least two language players, got 1; set it to 0")
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

    def hear_round(self, messages: Sequence[TalkMessage | None]) -> list[list[dict[str, str]]]:
        """Return the messages that each player hears in a round, as entries for its observation.

        Args:
            messages: message of each player; None for players that did not take part.
        """
        inboxes: list[list[dict[str, str]]] = [[] for _ in self.names]
        for speaker, message in enumerate(messages):
            if message is None or not message.text:
                continue
            for listener, name in enumerate(self.names):
                hears = listener != speaker and (self.to == "all" or name == message.to)
                if hears and messages[listener] is not None:
                    inboxes[listener].append({"from": self.names[speaker], "message": message.text})
        return inboxes


def silent(text: str) -> bool:
    """Return whether a reply contains only empty messages."""
    messages = _MESSAGE.findall(text)
    return bool(messages) and not any(messages)
