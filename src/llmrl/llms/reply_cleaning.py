"""Cleaning of replies: removal of thoughts, of chat-template tokens, and of turns that the model invented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_REPLY_LENGTH = 30_000
"""Number of characters at the end of a reply that are read, because the answer comes last."""
MAX_THOUGHT_LENGTH = 1_000_000
"""Number of characters at the end of a reply that are searched for the start of a thought."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_LINE_BREAK = re.compile(r"[^\n]")
_LONG_REPETITION = re.compile(r"([ \t\n*_\-=~#.>|`])\1{39,}")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")

_THINKING_WORD = (
    r"(?:[a-z]+[:_])?(?:think(?:ing)?|thoughts?|thought_process|thinking_process|reasoning|analysis|scratch_?pad|"
    r"antthinking|inner_?thoughts?|inner_?monologue|chain_of_thought|cot|deliberation|details)"
)
# Beginnings and ends of thoughts. Of the channels of open models, all but the final one are thoughts.
_THINKING_TAG = re.compile(
    rf"(?P<open>[<\u25c1]\|?{_THINKING_WORD}(?: [^<>\n]{{0,80}})?\|?[>\u25b7]|\[think(?:ing)?\]"
    r"|<\|(?:begin_of_thought|start_thinking)\|>"
    r"|<\|?channel\|?>\s*(?:analysis|thought|thinking|reasoning)(?:<\|message\|>)?"
    r"|^(?:```|~~~)(?:thinking|thoughts?|think|reasoning|scratchpad)$"
    r"|\Aanalysis(?=[A-Z\"{]))"
    rf"|(?P<close>[<\u25c1]\|?/\|?{_THINKING_WORD}\|?[>\u25b7]|\[/think(?:ing)?\]"
    r"|<\|(?:end_of_thought|end_thinking)\|>"
    r"|<\|?channel\|?>\s*(?:final|commentary|response)[^<\n]{0,80}(?:<\|constrain\|>\w*)?(?:<\|message\|>)?"
    r"|<channel\|>|<\|message\|>|assistantfinal)"
    r"|(?P<fence>^(?:```|~~~)\s*$)",
    re.IGNORECASE | re.MULTILINE,
)

_USER_ROLE = r"(?:user|human|system|tool|ipython|developer|observation)"
_MODEL_ROLE = r"(?:assistant|model|gpt|bot)"
# Beginnings of further turns: the user's, which the model invented, and the model's own.
_TURN_START = re.compile(
    rf"(?P<user><\|im_start\|>\s*{_USER_ROLE}|<\|start_header_id\|>\s*{_USER_ROLE}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_USER_ROLE}|<start_of_turn>\s*{_USER_ROLE}|<\|{_USER_ROLE}\|>|<\uff5c{_USER_ROLE}\uff5c>|\[INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?(?:human|user)(?:\*\*)?[ \t]*:"
    r"|^[ \t]*#{2,4}[ \t]*(?:instruction|input|question|human|user|now|next turn)\b)"
    rf"|(?P<own><\|im_start\|>\s*{_MODEL_ROLE}|<\|start_header_id\|>\s*{_MODEL_ROLE}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_MODEL_ROLE}|<start_of_turn>\s*{_MODEL_ROLE}|<\|{_MODEL_ROLE}\|>|<\uff5c{_MODEL_ROLE}\uff5c>|\[/INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?assistant(?:\*\*)?[ \t]*:|^[ \t]*#{2,4}[ \t]*(?:assistant|response)\b:?"
    r"|</s>|<eos>|<end_of_turn>|<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|end_of_turn|call)\|>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)",
    re.IGNORECASE | re.MULTILINE,
)
_TEMPLATE_TOKEN = re.compile(
    r"<\|[\w ]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</?s>|<(?:bos|eos|pad|unk)>|<<?/?SYS>>?|"
    r"\[(?:TOOL_CALLS|ARGS)\]"
)

# Typographic and full-width characters, each replaced by one character, so that positions stay the same.
_ASCII_BY_CHARACTER = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u300c\u300d\u300e\u300f\u00ab\u00bb", '"'),
        **{chr(0x2080 + i): str(i) for i in range(10)},
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **{"\u3001": ",", "\u3002": ".", "\u3010": "[", "\u3011": "]", "\u2044": "/", "\u2028": "\n", "\u2029": "\n"},
    }
)


@dataclass(frozen=True)
class CleanedReply:
    """Parts of a reply.

    Attributes:
        text: the model's own first turn, without thoughts.
        after: position in `text` of what follows the last thought.
        thought: text of an unclosed thought, which is the rest of the reply; None: there is none.
        truncated: whether the reply was cut off because it grew too long.
    """

    text: str
    answer_start: int = 0
    unclosed_thought: str | None = None
    truncated: bool = False


def clean_reply(reply: str, truncated: bool = False) -> CleanedReply:
    """Split a reply into its parts, in time linear in its length.

    A closing tag without an opening tag also ends a thought, since chat templates put the opening tag into the prompt.
    """
    # Regular expressions may rescan a run of blanks or rules from each of its characters, so runs are shortened.
    reply = _INVISIBLE.sub("", strip_control_characters(_keep_end(reply)))
    reply = _LONG_REPETITION.sub(lambda run: run[1] * 40, reply)
    parts: list[str] = []
    start, reasoning_start, is_fenced = 0, -1, False
    for tag in _THINKING_TAG.finditer(reply):
        if tag["open"] is not None and reasoning_start < 0:
            parts.append(reply[start : tag.start()])
            reasoning_start, is_fenced = tag.end(), tag["open"][0] in "`~"
        elif tag["close"] is not None or (tag["fence"] is not None and reasoning_start >= 0 and is_fenced):
            if reasoning_start < 0:
                parts = []  # this thought began in the prompt
            start, reasoning_start = tag.end(), -1
    reasoning = reply[reasoning_start:] if reasoning_start >= 0 else None
    prefix = "".join(parts)
    text = prefix if reasoning is not None else prefix + reply[start:]
    text, answer_start = _first_turn(text, len(prefix))
    return CleanedReply(text, answer_start, reasoning, truncated)


def strip_control_characters(text: str) -> str:
    r"""Return `text` without control characters other than tabs and line feeds, and with U+FFFD for lone surrogates.

    >>> strip_control_characters("a\x1b[2Jb\ud800")
    'a[2Jb�'
    """
    return replace_surrogates(_CONTROL.sub("", text))


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return _SURROGATE.sub("\ufffd", text)


def to_ascii(text: str) -> str:
    """Return `text` with ASCII for typographic and full-width characters; all positions stay the same."""
    return text.translate(_ASCII_BY_CHARACTER)


def blank_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return `text` with blanks in place of spans; line breaks and all positions stay the same."""
    for start, end in spans:
        text = f"{text[:start]}{_NOT_LINE_BREAK.sub(' ', text[start:end])}{text[end:]}"
    return text


def _keep_end(reply: str) -> str:
    """Return the last `MAX_REPLY_LENGTH` characters of a reply, after a `<think>` if they begin inside a thought."""
    if len(reply) <= MAX_REPLY_LENGTH:
        return reply
    is_inside_thought = False
    for tag in _THINKING_TAG.finditer(reply, max(len(reply) - MAX_THOUGHT_LENGTH, 0), len(reply) - MAX_REPLY_LENGTH):
        is_inside_thought = tag["open"] is not None
    return ("<think>" if is_inside_thought else "") + reply[-MAX_REPLY_LENGTH:]


def _first_turn(text: str, answer_start: int) -> tuple[str, int]:
    """Return the first non-empty turn of the model's own, without template tokens and the new `answer_start`."""
    start, is_own_turn = 0, True
    for turn in _TURN_START.finditer(text):
        if is_own_turn and _TEMPLATE_TOKEN.sub("", text[start : turn.start()]).strip(" \n\t:*"):
            text = text[: turn.start()]
            break
        start, is_own_turn = turn.end(), turn["own"] is not None
    if not is_own_turn:
        start = len(text)
    parts, last_end, n_removed = [], start, start
    for token in _TEMPLATE_TOKEN.finditer(text, start):
        parts.append(text[last_end : token.start()])
        last_end = token.end()
        n_removed += token.end() - token.start() if last_end <= answer_start else 0
    return "".join([*parts, text[last_end:]]), max(answer_start - n_removed, 0)
