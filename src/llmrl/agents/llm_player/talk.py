"""Talk between players: their messages before an action, the recipients, and the parsing of replies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ConversationGenerator
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


RoundMessages = Mapping[int, Sequence[TalkMessage | None]]
"""Messages of some players in a round, by game; None for players that do not take part."""


class Talk:
    """Rounds of talk in the games of one environment.

    All players of a round speak at the same time. Messages to a player are part of its next observation. Players of
    several members of `agent=mixed` talk with one another after `connect_talks`.

    Args:
        spec: spec of the environment, or of the players of a member.
        every: steps between two rounds, >= 1; the first is before the first action.
        to: recipients of a message.
        length: maximum number of characters of a message.

    Attributes:
        names: names of all players that talk.

    Raises:
        ConfigError: there is only one player.
    """

    def __init__(self, spec: EnvSpec, every: int, to: TalkTo, length: int) -> None:
        self.every, self.to, self.length = every, to, length
        if spec.n_players < 2:
            raise self.lone_player()
        self.names: Sequence[str] = spec.player_names
        self._players: Sequence[int] = range(spec.n_agents)  # indices of this spec's players in `names`
        self._board: _Board | None = None
        self._parser = TextParser("message", length)
        self._parser.recipient_keys = ("to",)

    def lone_player(self) -> ConfigError:
        """Return the error of a player that has nobody to talk to."""
        return ConfigError(f"agent.message_interval={self.every} needs at least two language players; set it to 0")

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
        candidates = [name for i, name in enumerate(self.names) if i != self._players[speaker]]
        recipients = [
            name
            for name in candidates
            if normalize_name(answer.recipient) in (normalize_name(name), normalize_name(name.split()[-1]))
        ]
        if len(recipients) != 1:
            raise InvalidReply(f'"to" must name one other player: {", ".join(candidates)}')
        return TalkMessage(utterance, recipients[0])

    def exchange(self, messages: RoundMessages) -> ConversationGenerator[dict[int, list[list[dict[str, str]]]]]:
        """Return what each of this spec's players hears in a round, by game; wait for the players of other members.

        Args:
            messages: messages of this spec's players, by game.
        """
        member_messages: Sequence[RoundMessages] = [messages]
        member_players: Sequence[Sequence[int]] = [self._players]
        if (board := self._board) is not None:
            number = board.post(self, messages)
            yield ()  # at least once, so that all members continue at the same time
            while not board.is_complete(number):
                yield ()
            member_messages, member_players = board.take(number), [talk._players for talk in board.talks]
        heard = {}
        for game in messages:
            spoken: list[TalkMessage | None] = [None] * len(self.names)
            for others, players in zip(member_messages, member_players, strict=True):
                for player, message in zip(players, others.get(game, ()), strict=False):
                    spoken[player] = message
            inboxes = self.hear_round(spoken)
            heard[game] = [inboxes[player] for player in self._players]
        return heard

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


class _Board:
    """Messages of the rounds in progress among several members of a society, each with its `Talk`."""

    def __init__(self, talks: Sequence[Talk]) -> None:
        self.talks = talks
        self._n_posts = [0] * len(talks)
        self._n_taken: dict[int, int] = {}
        self._rounds: dict[int, dict[int, RoundMessages]] = {}

    def post(self, talk: Talk, messages: RoundMessages) -> int:
        """Add the messages of a member to its next round; return the number of the round."""
        member = next(i for i, other in enumerate(self.talks) if other is talk)
        number = self._n_posts[member]
        self._n_posts[member] += 1
        self._rounds.setdefault(number, {})[member] = messages
        return number

    def is_complete(self, number: int) -> bool:
        """Return whether all members have posted their messages of a round."""
        return len(self._rounds[number]) == len(self.talks)

    def take(self, number: int) -> list[RoundMessages]:
        """Return the messages of all members in a round; discard them when the last member has taken them."""
        messages = self._rounds[number]
        self._n_taken[number] = self._n_taken.get(number, 0) + 1
        if self._n_taken[number] == len(self.talks):
            del self._rounds[number], self._n_taken[number]
        return [messages[member] for member in range(len(self.talks))]


def connect_talks(talks: Sequence[Talk], seats: Sequence[Sequence[int]]) -> None:
    """Let the players of several members of a society talk with one another.

    Args:
        talks: rounds of talk of each member.
        seats: indices of each member's players in the game.

    Raises:
        ConfigError: there is only one player, or the members' rounds differ.
    """
    order = sorted(seat for member_seats in seats for seat in member_seats)
    if len(order) < 2:
        raise talks[0].lone_player()
    options = {(talk.every, talk.to, talk.length) for talk in talks}
    if len(options) > 1:
        raise ConfigError(
            "members that talk need the same message_interval, message_recipients and max_message_length, got "
            + "; ".join(", ".join(map(str, values)) for values in sorted(options))
        )
    name_of = {
        seat: name for talk, part in zip(talks, seats, strict=True) for seat, name in zip(part, talk.names, strict=True)
    }
    board = _Board(talks)
    for talk, member_seats in zip(talks, seats, strict=True):
        talk.names, talk._board = [name_of[seat] for seat in order], board
        talk._players = [order.index(seat) for seat in member_seats]


def silent(text: str) -> bool:
    """Return whether a reply contains only empty messages."""
    messages = _MESSAGE.findall(text)
    return bool(messages) and not any(messages)
