"""What a player may answer: its form, from a reply to an action or a lesson, and what is done without a valid reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import BaseModel, Field

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ActionNumbers, EnvSpec
from llmrl.llms.structured import InvalidReply, parse_json

AnswerWith = Literal["name", "number"]
Action = int | list[float]
"""The index of a choice, or the numbers that an action consists of."""
LESSON_TURNS = 50
"""Newest turns of an episode that a lesson is drawn from."""
LONGEST_LESSON = 600
"""Characters of a lesson."""


class Reply(BaseModel):
    """A player's reply; what its action may be depends on the game and on the state."""

    reflection: str = ""
    action: Any


class Lesson(BaseModel):
    """The reply to the question for a lesson from an episode."""

    lesson: str = Field(min_length=1)


class Answers(Protocol):
    """The answers that a game takes."""

    told: tuple[tuple[str, str], ...]
    """(what to answer, what it does)."""
    numbered: bool
    """Whether one of several choices is answered by its number."""

    def schema(self, legal: Sequence[bool] | None) -> dict[str, Any]:
        """JSON schema of the reply's `action`; `legal` [n_actions] says which choices there are, None: all."""
        ...

    def action(self, answer: Any, legal: Sequence[bool] | None) -> Action:
        """The action that is meant. Raises InvalidReply, with what would be accepted."""
        ...

    def shown(self, action: Action) -> Any:
        """The answer that means `action`, as JSON knows it."""
        ...

    def instead(self, last: Action | None, legal: Sequence[bool] | None) -> Action:
        """What is done where there is no valid answer: the last action again if it is legal, else the first legal one;
        of several numbers the last ones, else 0 or what is nearest to it."""
        ...


def answers_of(spec: EnvSpec, answer_with: AnswerWith, decimals: int) -> Answers:
    """The answers of an environment.

    Args:
        spec: of the environment, whose text names the actions.
        answer_with: choices are answered by their name, or by their number from 0.
        decimals: digits after the point of the numbers of an action.

    Raises:
        ConfigError: the text and the actions do not fit together, or an action's numbers have no bounds.
    """
    assert spec.text is not None
    told = spec.text.actions
    if spec.numbers is not None:
        return Numbers(spec.numbers, told, decimals, spec.name)
    if len(told) != spec.n_actions:
        raise ConfigError(
            f"the text of env={spec.name} describes {len(told)} actions, and there are {spec.n_actions}; see env.text"
        )
    return Choices(told if answer_with == "name" else tuple((str(i), f"{k}: {x}") for i, (k, x) in enumerate(told)))


class Choices:
    """One of several, answered by its name; its number, from 0, is understood too."""

    def __init__(self, told: tuple[tuple[str, str], ...]) -> None:
        self.told = told
        self.names = [name for name, _ in told]
        self.numbered = all(name.isdigit() for name in self.names)
        self._index = {_plain(name): i for i, name in enumerate(self.names)}

    def schema(self, legal: Sequence[bool] | None) -> dict[str, Any]:
        names = self._legal(legal)
        return {"type": "integer", "enum": [int(n) for n in names]} if self.numbered else _enum(names)

    def action(self, answer: Any, legal: Sequence[bool] | None) -> Action:
        chosen = self._find(answer)
        if chosen is None:
            raise InvalidReply(f"the action {_quoted(answer)} does not exist; choose one of {self._list(legal)}")
        if legal is not None and not legal[chosen]:
            raise InvalidReply(f"the action {_quoted(answer)} is not legal now; choose one of {self._list(legal)}")
        return chosen

    def shown(self, action: Action) -> Any:
        assert isinstance(action, int)
        return int(self.names[action]) if self.numbered else self.names[action]

    def instead(self, last: Action | None, legal: Sequence[bool] | None) -> Action:
        if isinstance(last, int) and (legal is None or legal[last]):
            return last
        # A game without any legal action is the environment's business.
        return 0 if legal is None or not any(legal) else next(i for i, fine in enumerate(legal) if fine)

    def _find(self, answer: Any) -> int | None:
        if isinstance(answer, bool) or answer is None:
            return None
        if isinstance(answer, float):
            answer = int(answer) if answer.is_integer() and abs(answer) < 2**31 else ""
        if isinstance(answer, int | str):
            found = self._index.get(_plain(str(answer)))
            if found is not None:
                return found
            number = str(answer).strip()
            # Python refuses to convert very long numbers.
            if number.isascii() and number.isdigit() and not self.numbered and len(number) < 10:
                return int(number) if int(number) < len(self.names) else None
        return None

    def _legal(self, legal: Sequence[bool] | None) -> list[str]:
        if legal is None or not any(legal):
            return self.names
        return [name for name, fine in zip(self.names, legal, strict=True) if fine]

    def _list(self, legal: Sequence[bool] | None) -> str:
        return ", ".join(f'"{name}"' if not self.numbered else name for name in self._legal(legal))


class Numbers:
    """Several numbers, each with bounds, answered by name, or in their order; rounded."""

    numbered = False

    def __init__(self, numbers: ActionNumbers, told: tuple[tuple[str, str], ...], decimals: int, name: str) -> None:
        self.names = [key for key, _ in told]
        if len(self.names) != numbers.dim:
            raise ConfigError(
                f"the text of env={name} describes {len(self.names)} numbers of an action, and it has {numbers.dim}"
            )
        self.low, self.high = np.array(numbers.low), np.array(numbers.high)
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise ConfigError(f"an action of env={name} has no bounds, so nobody can be told what may be chosen")
        self.whole, self.decimals = numbers.whole, 0 if numbers.whole else decimals
        kind = "a whole number " if self.whole else ""
        self.told = tuple((key, f"{said} ({kind}{self._bounds(i)})") for i, (key, said) in enumerate(told))

    def schema(self, legal: Sequence[bool] | None) -> dict[str, Any]:
        kind = "integer" if self.whole else "number"
        each = {
            name: {"type": kind, "minimum": _plain_number(low), "maximum": _plain_number(high)}
            for name, low, high in zip(self.names, self.low, self.high, strict=True)
        }
        return {"type": "object", "properties": each, "required": self.names, "additionalProperties": False}

    def action(self, answer: Any, legal: Sequence[bool] | None) -> Action:
        values = [self._number(i, value) for i, value in enumerate(self._values(answer))]
        # Rounding may leave the bounds.
        rounded = np.clip(np.round(values, self.decimals), self.low, self.high)
        return [float(value) + 0.0 for value in rounded]

    def shown(self, action: Action) -> Any:
        assert isinstance(action, list)
        return {name: _plain_number(value) for name, value in zip(self.names, action, strict=True)}

    def instead(self, last: Action | None, legal: Sequence[bool] | None) -> Action:
        if isinstance(last, list):
            return last
        return [float(value) for value in np.clip(0.0, self.low, self.high)]

    def _values(self, answer: Any) -> list[Any]:
        if isinstance(answer, Mapping):
            if missing := [name for name in self.names if name not in answer]:
                raise InvalidReply(f"the action lacks {missing[0]!r}; it has {', '.join(self.names)}")
            return [answer[name] for name in self.names]
        values = list(answer) if isinstance(answer, list) else [answer]
        if len(values) != len(self.names):
            raise InvalidReply(
                f"the action needs {len(self.names)} numbers ({', '.join(self.names)}), got {len(values)}"
            )
        return values

    def _number(self, i: int, value: Any) -> float:
        name = self.names[i]
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidReply(f"{name} must be a number {self._bounds(i)}, got {_quoted(value)}")
        if self.whole and not number.is_integer():
            raise InvalidReply(f"{name} must be a whole number {self._bounds(i)}, got {_quoted(value)}")
        slack = 1e-6 * float(self.high[i] - self.low[i])
        if not self.low[i] - slack <= number <= self.high[i] + slack:
            raise InvalidReply(f"{name} must be {self._bounds(i)}, got {_quoted(value)}")
        return number

    def _bounds(self, i: int) -> str:
        return f"from {self.low[i]:g} to {self.high[i]:g}"


def reply_schema(answers: Answers, legal: Sequence[bool] | None, reflect: bool) -> dict[str, Any]:
    """JSON schema of a whole reply; the reflection comes first, so that the action follows from it."""
    properties: dict[str, Any] = {"reflection": {"type": "string"}} if reflect else {}
    properties["action"] = answers.schema(legal)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_reply(text: str, answers: Answers, legal: Sequence[bool] | None, reflect: bool = False) -> tuple[str, Action]:
    """Reflection and action of a reply, in whichever order they come.

    Raises:
        InvalidReply: there is no JSON object with a legal action in it, or, where one must `reflect`, no reflection.
    """
    reply = parse_json(text, Reply)
    action = answers.action(reply.action, legal)
    reflection = " ".join(reply.reflection.split())
    if reflect and not reflection:
        raise InvalidReply("the reflection is missing; reflect first, and then choose an action")
    return reflection, action


def read_lesson(text: str) -> str:
    """Return the lesson of a reply, in one line.

    Raises:
        InvalidReply: there is none.
    """
    lesson = " ".join(parse_json(text, Lesson).lesson.split())
    if not lesson:
        raise InvalidReply("the lesson is empty")
    return lesson[:LONGEST_LESSON]


def _enum(names: list[str]) -> dict[str, Any]:
    return {"type": "string", "enum": names}


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


def _plain_number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _quoted(value: Any) -> str:
    return repr(value)[:60]
