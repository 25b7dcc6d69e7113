"""Formats of a player's answers: their schema, parsing of replies into actions, fallbacks for invalid replies."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ContinuousActions, EnvSpec
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import AnswerParser, parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.vector_parser import VectorParser

ActionFormat = Literal["name", "number"]
Action = int | list[float]
"""Index of a discrete action, or the numbers of a continuous one."""


@dataclass(frozen=True)
class PlayerReply:
    """Content of a reply: an action, and the reflection before it ("" if missing)."""

    action: Action
    reflection: str = ""


def make_answer_format(spec: EnvSpec, action_format: ActionFormat, decimals: int) -> AnswerFormat:
    """Return the format of answers in an environment.

    Args:
        spec: spec of the environment, whose text names the actions.
        action_format: answer discrete actions by their `name`, or by their `number` from 0.
        decimals: digits after the decimal point of continuous actions.

    Raises:
        ConfigError: text and actions do not match, or a continuous action has no bounds.
    """
    assert spec.text is not None
    actions = spec.text.actions
    if spec.continuous_actions is not None:
        return ContinuousAnswerFormat(spec.continuous_actions, actions, decimals, spec.name)
    if len(actions) != spec.n_actions:
        raise ConfigError(
            f"the text of env={spec.name} describes {len(actions)} actions, but there are {spec.n_actions}; change "
            "env.text"
        )
    if spec.text.amount:
        return AmountAnswerFormat(actions, spec.text.amount)
    return DiscreteAnswerFormat(actions, is_numbered=action_format == "number")


class DiscreteAnswerFormat:
    """Format of discrete actions, answered by name or, if `is_numbered`, by number from 0; parsing accepts both.

    Attributes:
        parser: parser of the answer in a reply.
        names: answer that means each action, as text.
        descriptions: pairs (answer, description of its effect).
        is_numbered: whether actions are answered by their number.
    """

    def __init__(self, descriptions: tuple[tuple[str, str], ...], is_numbered: bool = False) -> None:
        self.parser: AnswerParser[Any] = ChoiceParser(
            [name for name, _ in descriptions], [description for _, description in descriptions], is_numbered
        )
        self.descriptions: tuple[tuple[str, str], ...] = (
            tuple((str(i), f"{k}: {x}") for i, (k, x) in enumerate(descriptions)) if is_numbered else descriptions
        )
        self.names = [name for name, _ in self.descriptions]
        self.is_numbered = all(name.isdigit() for name in self.names)

    def build_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the reply's `action`.

        It does not depend on the legal actions, because providers cache it together with the prompt.
        """
        if self.is_numbered:
            return {"type": "integer", "enum": [int(name) for name in self.names]}
        return {"type": "string", "enum": self.names}

    def choose_example_actions(self) -> list[Action]:
        """Return one or two actions for examples in prompts, which are not always the first actions."""
        n = len(self.names)
        first = int.from_bytes(hashlib.sha256("|".join(self.names).encode()).digest()[:4], "big") % n
        return [first] if n == 1 else [first, (first + 1 + n // 2) % n if n > 2 else 1 - first]

    def to_action(self, answer: Any, legal_mask: Sequence[bool] | None) -> Action:
        """Return the action of a parsed answer; raise InvalidReply if it is illegal or out of bounds."""
        if legal_mask is not None and not legal_mask[answer]:
            raise InvalidReply(f"the action {self.to_answer(answer)!r} is not legal now")
        return int(answer)

    def describe_accepted_answers(self, legal_mask: Sequence[bool] | None) -> str:
        """Return a phrase that names the accepted answers, for error messages."""
        accepted_mask = legal_mask if legal_mask is not None and any(legal_mask) else [True] * len(self.names)
        names = itertools.compress(self.names, accepted_mask)
        return "choose one of " + ", ".join(name if self.is_numbered else f'"{name}"' for name in names)

    def format_legal_answers(self, legal_mask: Sequence[bool]) -> Any:
        """Return the legal answers as they are shown to players, as a JSON-compatible value."""
        return [self.to_answer(i) for i, is_legal in enumerate(legal_mask) if is_legal]

    def to_answer(self, action: Action) -> Any:
        """Return the answer that means `action`, as a JSON-compatible value."""
        assert isinstance(action, int)
        return int(self.names[action]) if self.is_numbered else self.names[action]

    def choose_fallback(self, last_action: Action | None, legal_mask: Sequence[bool] | None) -> Action:
        """Return the action that replaces a missing answer: the last action if legal, else the first legal one."""
        if isinstance(last_action, int) and (legal_mask is None or legal_mask[last_action]):
            return last_action
        # If no action is legal, the environment decides what happens.
        return next((i for i, is_legal in enumerate(legal_mask or ()) if is_legal), 0)


class AmountAnswerFormat(DiscreteAnswerFormat):
    """Format of actions that are amounts, answered by an integer; parsing accepts names of actions, too.

    Args:
        descriptions: (name, description of the effect) of each action; action i means i units.
        amount: description of the amount in words.
    """

    def __init__(self, descriptions: tuple[tuple[str, str], ...], amount: str) -> None:
        super().__init__(descriptions)
        self.descriptions = (("action", f"{amount} (a whole number from 0 to {len(descriptions) - 1})"),)

    def build_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": 0, "maximum": len(self.names) - 1}

    def describe_accepted_answers(self, legal_mask: Sequence[bool] | None) -> str:
        legal_text = self.format_legal_answers(
            legal_mask if legal_mask is not None and any(legal_mask) else [True] * len(self.names)
        )
        return f"the action is a whole number: {legal_text}"

    def format_legal_answers(self, legal_mask: Sequence[bool]) -> Any:
        amounts = [i for i, is_legal in enumerate(legal_mask) if is_legal]
        is_contiguous = amounts == list(range(amounts[0], amounts[-1] + 1))
        return f"{amounts[0]} to {amounts[-1]}" if is_contiguous else amounts

    def to_answer(self, action: Action) -> Any:
        assert isinstance(action, int)
        return action


class ContinuousAnswerFormat:
    """Format of continuous actions: bounded numbers, answered by name or in order, and rounded.

    Methods are as in `DiscreteAnswerFormat`. A missing answer is replaced by the last action, else by 0 clipped to the
    bounds.
    """

    is_numbered = False

    def __init__(
        self,
        continuous_actions: ContinuousActions,
        descriptions: tuple[tuple[str, str], ...],
        decimals: int,
        env_name: str,
    ) -> None:
        self.names = [key for key, _ in descriptions]
        if len(self.names) != continuous_actions.dim:
            raise ConfigError(
                f"the text of env={env_name} describes {len(self.names)} numbers of an action, but there are "
                f"{continuous_actions.dim}; change env.text"
            )
        self.low, self.high = np.array(continuous_actions.low), np.array(continuous_actions.high)
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise ConfigError(f"an action of env={env_name} has no bounds; use an environment with bounded actions")
        bounds = list(zip(self.low.tolist(), self.high.tolist(), strict=True))
        self.parser: AnswerParser[Any] = VectorParser(self.names, bounds=bounds, answer_name="action")
        self.is_integer, self.decimals = np.array(continuous_actions.is_integer), decimals
        self.descriptions = tuple(
            (key, f"{description} ({'a whole number ' if self.is_integer[i] else ''}{self._format_bounds(i)})")
            for i, (key, description) in enumerate(descriptions)
        )

    def choose_example_actions(self) -> list[Action]:
        points = [self.low + fraction * (self.high - self.low) for fraction in (0.75, 0.25)]
        return [self.to_action(np.where(self.is_integer, np.round(point), point), None) for point in points]

    def build_schema(self) -> dict[str, Any]:
        properties = {
            name: {
                "type": "integer" if is_integer else "number",
                "minimum": _to_int_if_whole(low),
                "maximum": _to_int_if_whole(high),
            }
            for name, low, high, is_integer in zip(self.names, self.low, self.high, self.is_integer, strict=True)
        }
        return build_object_schema(properties)

    def to_action(self, answer: Any, legal_mask: Sequence[bool] | None) -> Action:
        values = np.asarray(answer, dtype=np.float64).reshape(-1)
        tolerance = 1e-6 * (self.high - self.low)
        for i in np.flatnonzero((values < self.low - tolerance) | (values > self.high + tolerance)):
            raise InvalidReply(f"{self.names[i]} must be {self._format_bounds(int(i))}, got {values[i]:g}")
        for i in np.flatnonzero(self.is_integer & (values != np.round(values))):
            raise InvalidReply(
                f"{self.names[i]} must be a whole number {self._format_bounds(int(i))}, got {values[i]:g}"
            )
        # Rounding may leave the bounds.
        return [float(value) + 0.0 for value in np.clip(np.round(values, self.decimals), self.low, self.high)]

    def describe_accepted_answers(self, legal_mask: Sequence[bool] | None) -> str:
        return "the action has " + ", ".join(f"{name} ({self._format_bounds(i)})" for i, name in enumerate(self.names))

    def format_legal_answers(self, legal_mask: Sequence[bool]) -> Any:
        return []

    def to_answer(self, action: Action) -> Any:
        assert isinstance(action, list)
        return {name: _to_int_if_whole(value) for name, value in zip(self.names, action, strict=True)}

    def choose_fallback(self, last_action: Action | None, legal_mask: Sequence[bool] | None) -> Action:
        if isinstance(last_action, list):
            return last_action
        return [float(value) for value in np.clip(0.0, self.low, self.high)]

    def _format_bounds(self, i: int) -> str:
        return f"from {self.low[i]:g} to {self.high[i]:g}"


AnswerFormat = DiscreteAnswerFormat | ContinuousAnswerFormat
"""Format of the answers in a game."""


def build_reply_schema(answers: AnswerFormat, has_reflection: bool) -> dict[str, Any]:
    """Return the JSON schema of a complete reply; the reflection comes first, so that the action can follow from it."""
    reflection = {"reflection": {"type": "string"}} if has_reflection else {}
    return build_object_schema({**reflection, "action": answers.build_schema()})


def build_object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object whose properties are all required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def parse_player_reply(
    text: str,
    answers: AnswerFormat,
    legal_mask: Sequence[bool] | None,
    require_reflection: bool = False,
    is_truncated: bool = False,
) -> PlayerReply:
    """Return the decision in a reply; `is_truncated` says that the reply was cut off at its maximum length.

    Raises:
        InvalidReply: the reply holds no legal action or, with `require_reflection`, no reflection.
    """
    try:
        answer = parse_answer(text, answers.parser, is_truncated)
        action = answers.to_action(answer.answer, legal_mask)
    except InvalidReply as error:
        raise InvalidReply(f"{error}; {answers.describe_accepted_answers(legal_mask)}") from None
    reflection = " ".join(answer.reasons.split())
    if require_reflection and not reflection:
        raise InvalidReply("the reflection is missing; reflect first, and then choose an action")
    return PlayerReply(action, reflection)


def _to_int_if_whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)
