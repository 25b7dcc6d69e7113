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
_NOT_BREAK = re.compile(r"[^\n]")
_LONG_RUN = re.compile(r"([ \t\n*_\-=~#.>|`])\1{39,}")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")

_WORD = (
    r"(?:[a-z]+[:_])?(?:think(?:ing)?|thoughts?|thought_process|thinking_process|reasoning|analysis|scratch_?pad|"
    r"antthinking|inner_?thoughts?|inner_?monologue|chain_of_thought|cot|deliberation|details)"
)
# Beginnings and ends of thoughts. Of the channels of open models, all but the final one are thoughts.
_THINKING_TAG = re.compile(
    rf"(?P<open>[<\u25c1]\|?{_WORD}(?: [^<>\n]{{0,80}})?\|?[>\u25b7]|\[think(?:ing)?\]"
    r"|<\|(?:begin_of_thought|start_thinking)\|>"
    r"|<\|?channel\|?>\s*(?:analysis|thought|thinking|reasoning)(?:<\|message\|>)?"
    r"|^(?:```|~~~)(?:thinking|thoughts?|think|reasoning|scratchpad)$"
    r"|\Aanalysis(?=[A-Z\"{]))"
    rf"|(?P<close>[<\u25c1]\|?/\|?{_WORD}\|?[>\u25b7]|\[/think(?:ing)?\]"
    r"|<\|(?:end_of_thought|end_thinking)\|>"
    r"|<\|?channel\|?>\s*(?:final|commentary|response)[^<\n]{0,80}(?:<\|constrain\|>\w*)?(?:<\|message\|>)?"
    r"|<channel\|>|<\|message\|>|assistantfinal)"
    r"|(?P<fence>^(?:```|~~~)\s*$)",
    re.IGNORECASE | re.MULTILINE,
)

_ROLE = r"(?:user|human|system|tool|ipython|developer|observation)"
_MODEL = r"(?:assistant|model|gpt|bot)"
# Beginnings of further turns: the user's, which the model invented, and the model's own.
_TURN = re.compile(
    rf"(?P<user><\|im_start\|>\s*{_ROLE}|<\|start_header_id\|>\s*{_ROLE}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_ROLE}|<start_of_turn>\s*{_ROLE}|<\|{_ROLE}\|>|<\uff5c{_ROLE}\uff5c>|\[INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?(?:human|user)(?:\*\*)?[ \t]*:"
    r"|^[ \t]*#{2,4}[ \t]*(?:instruction|input|question|human|user|now|next turn)\b)"
    rf"|(?P<own><\|im_start\|>\s*{_MODEL}|<\|start_header_id\|>\s*{_MODEL}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_MODEL}|<start_of_turn>\s*{_MODEL}|<\|{_MODEL}\|>|<\uff5c{_MODEL}\uff5c>|\[/INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?assistant(?:\*\*)?[ \t]*:|^[ \t]*#{2,4}[ \t]*(?:assistant|response)\b:?"
    r"|</s>|<eos>|<end_of_turn>|<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|end_of_turn|call)\|>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)",
    re.IGNORECASE | re.MULTILINE,
)
_TOKEN = re.compile(
    r"<\|[\w ]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</?s>|<(?:bos|eos|pad|unk)>|<<?/?SYS>>?|"
    r"\[(?:TOOL_CALLS|ARGS)\]"
)

# Typographic and full-width characters, each replaced by one character, so that positions stay the same.
_PLAIN = str.maketrans(
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
    after: int = 0
    thought: str | None = None
    truncated: bool = False


def clean_reply(reply: str, truncated: bool = False) -> CleanedReply:
    """Split a reply into its parts, in time linear in its length.

    A closing tag without an opening tag also ends a thought, since chat templates put the opening tag into the prompt.
    """
    # Regular expressions may rescan a run of blanks or rules from each of its characters, so runs are shortened.
    reply = _LONG_RUN.sub(lambda run: run[1] * 40, strip_invisible(_tail(reply)))
    parts: list[str] = []
    start, reasoning_start, in_fence = 0, -1, False
    for tag in _THINKING_TAG.finditer(reply):
        if tag["open"] is not None and reasoning_start < 0:
            parts.append(reply[start : tag.start()])
            reasoning_start, in_fence = tag.end(), tag["open"][0] in "`~"
        elif tag["close"] is not None or (tag["fence"] is not None and reasoning_start >= 0 and in_fence):
            if reasoning_start < 0:
                parts = []  # this thought began in the prompt
            start, reasoning_start = tag.end(), -1
    reasoning = reply[reasoning_start:] if reasoning_start >= 0 else None
    prefix = "".join(parts)
    text = prefix if reasoning is not None else prefix + reply[start:]
    text, after = _first_turn(text, len(prefix))
    return CleanedReply(text, after, reasoning, truncated)


def strip_control_characters(text: str) -> str:
    r"""Return `text` without control characters other than tabs and line feeds, and with U+FFFD for lone surrogates.

    >>> strip_control_characters("a\x1b[2Jb\ud800")
    'a[2Jb�'
    """
    return replace_surrogates(_CONTROL.sub("", text))


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return _SURROGATE.sub("\ufffd", text)


def strip_invisible(text: str) -> str:
    """Return `text` cleaned and without the invisible characters that models put between letters."""
    return _INVISIBLE.sub("", strip_control_characters(text))


def to_ascii(text: str) -> str:
    """Return `text` with ASCII for typographic and full-width characters; all positions stay the same."""
    return text.translate(_PLAIN)


def blank_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return `text` with blanks in place of spans; line breaks and all positions stay the same."""
    for start, end in spans:
        text = f"{text[:start]}{_NOT_BREAK.sub(' ', text[start:end])}{text[end:]}"
    return text


def _tail(reply: str) -> str:
    """Return the last `MAX_REPLY_LENGTH` characters of a reply, after a `<think>` if they begin inside a thought."""
    if len(reply) <= MAX_REPLY_LENGTH:
        return reply
    in_reasoning = False
    for tag in _THINKING_TAG.finditer(reply, max(len(reply) - MAX_THOUGHT_LENGTH, 0), len(reply) - MAX_REPLY_LENGTH):
        in_reasoning = tag["open"] is not None
    return ("<think>" if in_reasoning else "") + reply[-MAX_REPLY_LENGTH:]


def _first_turn(text: str, after: int) -> tuple[str, int]:
    """Return the first non-empty turn of the model's own, without template tokens, and the position `after` in it."""
    start, is_reply = 0, True
    for turn in _TURN.finditer(text):
        if is_reply and _TOKEN.sub("", text[start : turn.start()]).strip(" \n\t:*"):
            text = text[: turn.start()]
            break
        start, is_reply = turn.end(), turn["own"] is not None
    if not is_reply:
        start = len(text)
    parts, last, n_removed = [], start, start
    for token in _TOKEN.finditer(text, start):
        parts.append(text[last : token.start()])
        last = token.end()
        n_removed += token.end() - token.start() if last <= after else 0
    return "".join([*parts, text[last:]]), max(after - n_removed, 0)
