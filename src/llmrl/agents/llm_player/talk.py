"""Talk between players: their messages before an action, the recipients, and the parsing of replies."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.agents.llm_player.answer_format import build_object_schema
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ConversationGenerator
from llmrl.core.spaces import EnvSpec
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.name_matcher import normalize_name
from llmrl.llms.reading.object_parser import TextParser

_MESSAGE_PATTERN = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
RecipientMode = Literal["all", "one"]
"""Recipients of a message: all players, or the one that the message names."""


@dataclass(frozen=True)
class TalkMessage:
    """Message of a player in a round of talk.

    Attributes:
        text: content of the message; "": the player sends none.
        recipient: name of the player that receives it; "": all other players.
    """

    text: str
    recipient: str = ""


MessagesByGame = Mapping[int, Sequence[TalkMessage | None]]
"""Messages of a round: by game, the message of each player (None: the player does not take part)."""


class Talk:
    """Rounds of talk in the games of one environment.

    All players of a round speak at the same time. Messages to a player are part of its next observation. Players of
    several members of `agent=mixed` talk with one another after `connect_talks`.

    Args:
        spec: spec of the environment, or of the players of a member.
        interval: steps between two rounds, >= 1; the first is before the first action.
        recipient_mode: recipients of a message.
        max_length: maximum number of characters of a message.

    Attributes:
        player_names: names of all players that talk, of all members.

    Raises:
        ConfigError: there is only one player.
    """

    def __init__(self, spec: EnvSpec, interval: int, recipient_mode: RecipientMode, max_length: int) -> None:
        self.interval, self.recipient_mode, self.max_length = interval, recipient_mode, max_length
        self._check_n_players(spec.n_players)
        self.player_names: Sequence[str] = spec.player_names
        self._player_indices: Sequence[int] = range(spec.n_agents)  # indices of this spec's players in `names`
        self._message_board: _MessageBoard | None = None
        self._parser = TextParser("message", max_length)
        self._parser.recipient_keys = ("to",)

    def is_round_due(self, step: int) -> bool:
        """Return whether there is a round before the action of a step, counted from 0."""
        return step % self.interval == 0

    def _check_n_players(self, n_players: int) -> None:
        if n_players < 2:
            raise ConfigError(
                f"agent.message_interval={self.interval} needs at least two language players; set it to 0"
            )

    def build_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a message."""
        recipient = {"to": {"type": "string", "enum": list(self.player_names)}} if self.recipient_mode == "one" else {}
        return build_object_schema({**recipient, "message": {"type": "string"}})

    def parse_reply(self, text: str, speaker: int, is_truncated: bool) -> TalkMessage:
        """Return the message in a reply; `is_truncated` says that the reply was cut off at its maximum length.

        Raises:
            InvalidReply: there is no message, or its recipient is not another player.
        """
        if has_only_empty_messages(text):
            return TalkMessage("")
        answer = parse_answer(text, self._parser, is_truncated)
        message_text = " ".join(answer.answer.split())[: self.max_length]
        if self.recipient_mode != "one" or not message_text:
            return TalkMessage(message_text)
        candidates = [name for i, name in enumerate(self.player_names) if i != self._player_indices[speaker]]
        recipients = [
            name
            for name in candidates
            if normalize_name(answer.recipient) in (normalize_name(name), normalize_name(name.split()[-1]))
        ]
        if len(recipients) != 1:
            raise InvalidReply(f'"to" must name one other player: {", ".join(candidates)}')
        return TalkMessage(message_text, recipients[0])

    def exchange(self, messages: MessagesByGame) -> ConversationGenerator[dict[int, list[list[dict[str, str]]]]]:
        """Return the messages that each of this spec's players hears, by game; wait for the players of other members.

        Args:
            messages: messages of this spec's players, by game.
        """
        round_messages: Sequence[tuple[Talk, MessagesByGame]] = [(self, messages)]
        if (message_board := self._message_board) is not None:
            round_index = message_board.post(self, messages)
            yield ()  # at least once, so that all members continue at the same time
            while not message_board.is_complete(round_index):
                yield ()
            round_messages = message_board.take(round_index)
        received = {}
        for game in messages:
            sent_messages: list[TalkMessage | None] = [None] * len(self.player_names)
            for talk, member_messages in round_messages:
                for player, message in zip(talk._player_indices, member_messages.get(game, ()), strict=False):
                    sent_messages[player] = message
            inboxes = self.deliver(sent_messages)
            received[game] = [inboxes[player] for player in self._player_indices]
        return received

    def deliver(self, messages: Sequence[TalkMessage | None]) -> list[list[dict[str, str]]]:
        """Return the messages that each player receives in a round, as entries for its observation.

        Args:
            messages: message of each player; None for players that did not take part.
        """
        inboxes: list[list[dict[str, str]]] = [[] for _ in self.player_names]
        for speaker, message in enumerate(messages):
            if message is None or not message.text:
                continue
            for listener, name in enumerate(self.player_names):
                can_hear = listener != speaker and (self.recipient_mode == "all" or name == message.recipient)
                if can_hear and messages[listener] is not None:
                    inboxes[listener].append({"from": self.player_names[speaker], "message": message.text})
        return inboxes


class _MessageBoard:
    """Messages of the rounds in progress among several members of a society, each with its `Talk`."""

    def __init__(self, talks: Sequence[Talk]) -> None:
        self._talks = talks
        self._n_rounds_by_talk: Counter[Talk] = Counter()  # number of rounds of each member
        self._n_readers_by_round: Counter[int] = Counter()  # number of members that have taken the messages of a round
        self._messages_by_round: dict[int, dict[Talk, MessagesByGame]] = defaultdict(dict)

    def post(self, talk: Talk, messages: MessagesByGame) -> int:
        """Add the messages of a member to its next round; return the index of the round."""
        round_index = self._n_rounds_by_talk[talk]
        self._n_rounds_by_talk[talk] += 1
        self._messages_by_round[round_index][talk] = messages
        return round_index

    def is_complete(self, round_index: int) -> bool:
        """Return whether all members have posted their messages of a round."""
        return len(self._messages_by_round[round_index]) == len(self._talks)

    def take(self, round_index: int) -> list[tuple[Talk, MessagesByGame]]:
        """Return the messages of all members in a round; discard them when the last member has taken them."""
        messages = self._messages_by_round[round_index]
        self._n_readers_by_round[round_index] += 1
        if self._n_readers_by_round[round_index] == len(self._talks):
            del self._messages_by_round[round_index], self._n_readers_by_round[round_index]
        return [(talk, messages[talk]) for talk in self._talks]


def connect_talks(talks: Sequence[Talk], seats: Sequence[Sequence[int]]) -> None:
    """Let the players of several members of a society talk with one another.

    Args:
        talks: rounds of talk of each member.
        seats: indices of each member's players in the game.

    Raises:
        ConfigError: there is only one player, or the members' settings differ.
    """
    sorted_seats = sorted(seat for member_seats in seats for seat in member_seats)
    talks[0]._check_n_players(len(sorted_seats))
    settings_of_talks = {(talk.interval, talk.recipient_mode, talk.max_length) for talk in talks}
    if len(settings_of_talks) > 1:
        raise ConfigError(
            "members that talk need the same message_interval, message_recipients and max_message_length, got "
            + "; ".join(", ".join(map(str, values)) for values in sorted(settings_of_talks))
        )
    name_by_seat: dict[int, str] = {}
    for talk, member_seats in zip(talks, seats, strict=True):
        name_by_seat |= zip(member_seats, talk.player_names, strict=True)
    message_board = _MessageBoard(talks)
    for talk, member_seats in zip(talks, seats, strict=True):
        talk.player_names, talk._message_board = [name_by_seat[seat] for seat in sorted_seats], message_board
        talk._player_indices = [sorted_seats.index(seat) for seat in member_seats]


def has_only_empty_messages(text: str) -> bool:
    """Return whether a reply contains only empty messages."""
    messages = _MESSAGE_PATTERN.findall(text)
    return bool(messages) and not any(messages)
