"""What language models were asked and answered, with every text kept once: questions repeat most of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmrl.llms.images import IMAGES

Told = dict[str, Any]
"""A call as it is shown, plain data: see `told`."""


@dataclass
class Texts:
    """Texts by number, each of them once.

    Attributes:
        all: the texts, in the order in which they were first met.
    """

    all: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text, which is kept if it is new."""
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


def told(call: Mapping[str, Any], texts: Texts) -> Told:
    """Return one record of `llm_calls.jsonl` (`read_calls`) for showing.

    `messages` are pairs of a role and the number of a text; `reply` is null where none arrived, and `error` says why.
    `valid`, `fault` and `understood` are what came of reading the reply; null where nobody read it.
    """
    unsettled = bool(call.get("unsettled"))
    error = f"no reply: {call.get('lost') or 'the process ended first'}" if unsettled else str(call.get("error", ""))
    return {
        "time": call.get("time"),
        "model": str(call.get("model", "")),
        "messages": [[str(each.get("role", "")), texts.number(_text(each))] for each in call.get("messages", ()) or ()],
        "reply": call.get("reply"),
        "thought": str(call.get("thoughts") or ""),
        "valid": call.get("valid"),
        "fault": str(call.get("fault") or ""),
        "understood": call.get("understood"),
        "error": error,
        "cached": bool(call.get("cached")),
        "finish": str(call.get("finish") or ""),
        "tokens": [call.get("prompt_tokens"), call.get("completion_tokens")],
        "cost": call.get("cost"),
    }


def address(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return what tells a question of a run from its others; asked again after a resume, it has the same."""
    return str(call.get("hash")), call.get("repeat")


def without_repeats(calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each question once, in the order of their first asking, with the reply that arrived last."""
    kept: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for call in calls:
        before = kept.get(address(call))
        if before is None or "reply" in call or "reply" not in before:
            kept[address(call)] = call
    return list(kept.values())


def conversations(calls: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the calls of each question, a repair after what it repairs.

    A repair shows all of the question before it, then the bad reply, then what is wrong.
    """
    found: list[list[Mapping[str, Any]]] = []
    by_question: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for call in without_repeats(calls):
        messages = [(each.get("role"), _text(each)) for each in call.get("messages", ()) or ()]
        talk = by_question.get(tuple(messages[:-2])) if len(messages) > 2 and messages[-2][0] == "assistant" else None
        # A question asked anew is no repair: a repair follows a reply that was refused.
        if talk is not None and talk[-1].get("valid") is False:
            talk.append(call)
        else:
            talk = [call]
            found.append(talk)
        by_question[tuple(messages)] = talk
    return found


def answer_of(talk: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the call whose reply was understood; None where no reply was."""
    return next((call for call in reversed(talk) if call.get("valid")), None)


def _text(message: Mapping[str, Any]) -> str:
    """The words of a message, with a line for each picture."""
    content = message.get("content", "")
    words = content if isinstance(content, str) else str(content)
    pictures = [f"[picture: {name}]" for name in message.get(IMAGES, ()) or ()]
    return "\n".join([words, *pictures]) if pictures else words
