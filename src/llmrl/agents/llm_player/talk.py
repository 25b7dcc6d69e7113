"""Talk between players: what each says before it acts, who hears it, and how it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.name_matcher import letters
from llmrl.llms.reading.object_parser import TextParser
from llmrl.llms.structured import InvalidReply

_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
TalkTo = Literal["all", "neighbours", "one"]
"""Who hears a message: all players who read, those whom the speaker sees, or the one it names."""


@dataclass(frozen=True)
class Said:
    """What a player said in a round; "" is silence. `to`: name of the player it spoke to; "": as many as hear it."""

    text: str
    to: str = ""


class Talk:
    """Rounds of talk in the games of one environment.

    All players of a round speak at the same time. What the others said to a player is in its next observation.

    Args:
        spec: spec of the environment, or of the players who read.
        every: steps between two rounds, >= 1; the first is before the first action.
        to: who hears a message.
        length: most characters of a message.

    Raises:
        ConfigError: there is only one player who reads, or nobody knows who sees whom.
    """

    def __init__(self, spec: EnvSpec, every: int, to: TalkTo, length: int) -> None:
        if spec.n_agents < 2:
            raise ConfigError(f"agent.talk_every={every}: there is only one player who reads, and nobody to talk to")
        self.neighbours = "" if spec.text is None else spec.text.neighbours
        if to == "neighbours" and not self.neighbours:
            raise ConfigError(
                f"agent.talk_to=neighbours: what is read in env={spec.name} does not say whom one sees; use all or one"
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

    def read(self, text: str, speaker: int, cut: bool) -> Said:
        """Return the message in a reply; `cut` says that the reply was cut off because it grew too long.

        Raises:
            InvalidReply: there is no message, or it names nobody who could hear it.
        """
        if silent(text):
            return Said("")
        found = parse_answer(text, self._parser, cut)
        said = " ".join(found.answer.split())[: self.length]
        if self.to != "one" or not said:
            return Said(said)
        others = [name for i, name in enumerate(self.names) if i != speaker]
        meant = [name for name in others if letters(found.kept) in (letters(name), letters(name.split()[-1]))]
        if len(meant) != 1:
            raise InvalidReply(f'"to" must name one other player: {", ".join(others)}')
        return Said(said, meant[0])

    def heard(self, said: Sequence[Said | None], seen: Sequence[str]) -> list[list[dict[str, str]]]:
        """Return what each player hears of a round, as entries for its observation.

        Args:
            said: what each player said; None for those who took no part.
            seen: what each player sees, as JSON.
        """
        heard: list[list[dict[str, str]]] = [[] for _ in self.names]
        for speaker, message in enumerate(said):
            if message is None or not message.text:
                continue
            for listener in self._listeners(speaker, message, seen[speaker]):
                if said[listener] is not None:
                    heard[listener].append({"from": self.names[speaker], "message": message.text})
        return heard

    def _listeners(self, speaker: int, message: Said, seen: str) -> list[int]:
        others = [i for i in range(len(self.names)) if i != speaker]
        if self.to == "one":
            return [i for i in others if self.names[i] == message.to]
        if self.to == "all":
            return others
        in_view = _players(seen, self.neighbours)
        return [i for i in others if self.names[i] in in_view]


def silent(text: str) -> bool:
    """Return whether a reply says with an empty message that the player has nothing to say."""
    found = _MESSAGE.findall(text)
    return bool(found) and not any(found)


def _players(seen: str, field: str) -> set[str]:
    """Return the names of the players in an observation's list of those in view."""
    try:
        told = json.loads(seen)
    except ValueError:
        return set()
    return {f"player {each['player']}" for each in told.get(field, ()) if isinstance(each, Mapping)}
