"""Calls to language models for the explorer, with every text stored once, because prompts repeat earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmrl.core.text_array import TextTable
from llmrl.llms.images import IMAGES_KEY

CallRecord = dict[str, Any]
"""A call in the explorer's format, plain data (`to_call_record`)."""


def to_call_record(call: Mapping[str, Any], texts: TextTable) -> CallRecord:
    """Return a record of `llm_calls.jsonl` (`read_calls`) in the explorer's format.

    `messages` are pairs of a role and the index of a text. `reply` is null if none arrived, and `error` has the
    reason. `valid`, `fault` and `understood` are the result of parsing the reply; null if it was not parsed.
    """
    is_unsettled = bool(call.get("unsettled"))
    error = f"no reply: {call.get('lost') or 'the process ended first'}" if is_unsettled else str(call.get("error", ""))
    return {
        "time": call.get("time"),
        "model": str(call.get("model", "")),
        "messages": [
            [str(message.get("role", "")), texts.index(_message_text(message))]
            for message in call.get("messages") or ()
        ],
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


def get_prompt_id(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the identity of a prompt within a run, which is the same when it is sent again after a resume."""
    return str(call.get("hash")), call.get("repeat")


def drop_repeats(calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each prompt once, in the order of first use, with the reply that arrived last."""
    last_calls: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for call in calls:
        previous = last_calls.get(get_prompt_id(call))
        if previous is None or "reply" in call or "reply" not in previous:
            last_calls[get_prompt_id(call)] = call
    return list(last_calls.values())


def group_conversations(calls: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the calls that belong together: a call, and its repairs after it.

    A repair contains all messages of the call before it, then the invalid reply, then the reason why it is invalid.
    """
    conversations: list[list[Mapping[str, Any]]] = []
    by_messages: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for call in drop_repeats(calls):
        messages = [(message.get("role"), _message_text(message)) for message in call.get("messages", ()) or ()]
        is_repair = len(messages) > 2 and messages[-2][0] == "assistant"
        conversation = by_messages.get(tuple(messages[:-2])) if is_repair else None
        # A repair follows an invalid reply; the same prompt after a valid reply is a new conversation.
        if conversation is not None and conversation[-1].get("valid") is False:
            conversation.append(call)
        else:
            conversation = [call]
            conversations.append(conversation)
        by_messages[tuple(messages)] = conversation
    return conversations


def find_valid_call(conversation: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the call whose reply was valid; None if none was."""
    return next((call for call in reversed(conversation) if call.get("valid")), None)


def _message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with a line for each picture."""
    content = message.get("content", "")
    words = content if isinstance(content, str) else str(content)
    pictures = [f"[picture: {name}]" for name in message.get(IMAGES_KEY, ()) or ()]
    return "\n".join([words, *pictures]) if pictures else words
