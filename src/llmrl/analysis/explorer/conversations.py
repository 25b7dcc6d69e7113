"""Calls to language models in the format of the explorer, with each different text stored once to save space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmrl.core.text_array import TextTable
from llmrl.llms.images import IMAGES_KEY

CallRecord = dict[str, Any]
"""A call in the explorer's format, plain data (`to_call_record`)."""


def to_call_record(call: Mapping[str, Any], texts: TextTable) -> CallRecord:
    """Convert a record of `llm_calls.jsonl` (`read_calls`) to the explorer's format.

    `messages` are pairs of a role and the index of a text in `texts`. `reply` is None if no reply arrived; `error`
    contains the reason. `valid`, `parse_error` and `parsed_reply` (the parsed content) are the result of parsing the
    reply; `valid` and `parsed_reply` are None if it was not parsed.
    """
    is_unsettled = bool(call.get("unsettled"))
    error = f"no reply: {call.get('lost') or 'the process ended first'}" if is_unsettled else str(call.get("error", ""))
    return {
        "time": call.get("time"),
        "model": str(call.get("model", "")),
        "messages": [
            [str(message.get("role", "")), texts.add(_get_message_text(message))]
            for message in call.get("messages") or ()
        ],
        "reply": call.get("reply"),
        "thought": str(call.get("thoughts") or ""),
        "valid": call.get("valid"),
        "parse_error": str(call.get("parse_error") or ""),
        "parsed_reply": call.get("parsed_reply"),
        "error": error,
        "cached": bool(call.get("cached")),
        "finish": str(call.get("finish") or ""),
        "tokens": [call.get("prompt_tokens"), call.get("completion_tokens")],
        "cost": call.get("cost"),
    }


def get_request_id(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the identity of a request within a run, which does not change if it is repeated after a resume."""
    return str(call.get("hash")), call.get("repeat")


def drop_repeated_calls(calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one call for each different request, in the order of first use: the last one with a reply, if any."""
    last_calls: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for call in calls:
        previous = last_calls.get(get_request_id(call))
        if previous is None or "reply" in call or "reply" not in previous:
            last_calls[get_request_id(call)] = call
    return list(last_calls.values())


def group_conversations(calls: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Group calls into conversations: a call, followed by its repairs.

    The messages of a repair are all messages of the previous call, its invalid reply, and the reason why it is invalid.
    """
    conversations: list[list[Mapping[str, Any]]] = []
    conversation_by_messages: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for call in drop_repeated_calls(calls):
        messages = [(message.get("role"), _get_message_text(message)) for message in call.get("messages", ()) or ()]
        is_repair = len(messages) > 2 and messages[-2][0] == "assistant"
        conversation = conversation_by_messages.get(tuple(messages[:-2])) if is_repair else None
        # After a valid reply, messages that continue a conversation are a new request, not a repair.
        if conversation is not None and conversation[-1].get("valid") is False:
            conversation.append(call)
        else:
            conversation = [call]
            conversations.append(conversation)
        conversation_by_messages[tuple(messages)] = conversation
    return conversations


def find_valid_call(conversation: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the last call of a conversation with a valid reply; None if there is none."""
    return next((call for call in reversed(conversation) if call.get("valid")), None)


def _get_message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with a line for each picture."""
    content = message.get("content", "")
    text = content if isinstance(content, str) else str(content)
    return "\n".join([text, *(f"[picture: {name}]" for name in message.get(IMAGES_KEY, ()) or ())])
