"""What a model said in a reply: without its thoughts, the tokens of its chat template, and turns that it made up."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_REPLY = 30_000
"""Characters at the end of a reply that are looked at: the answer comes last."""
LONGEST_THOUGHT = 1_000_000
"""Characters of a thought before them, whose beginning is looked for."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")

_WORD = (
    r"(?:[a-z]+[:_])?(?:think(?:ing)?|thoughts?|thought_process|thinking_process|reasoning|analysis|scratch_?pad|"
    r"antthinking|inner_?thoughts?|inner_?monologue|chain_of_thought|cot|deliberation|details)"
)
# What begins a thought, and what ends one. Open models' channels: all but the final one are thoughts.
_THOUGHT = re.compile(
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
_OWN = r"(?:assistant|model|gpt|bot)"
# Where another turn begins: the user's, which is not the model's to write, and the model's own.
_TURN = re.compile(
    rf"(?P<user><\|im_start\|>\s*{_ROLE}|<\|start_header_id\|>\s*{_ROLE}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_ROLE}|<start_of_turn>\s*{_ROLE}|<\|{_ROLE}\|>|<\uff5c{_ROLE}\uff5c>|\[INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?(?:human|user)(?:\*\*)?[ \t]*:"
    r"|^[ \t]*#{2,4}[ \t]*(?:instruction|input|question|human|user|now|next turn)\b)"
    rf"|(?P<own><\|im_start\|>\s*{_OWN}|<\|start_header_id\|>\s*{_OWN}\s*(?:<\|end_header_id\|>)?"
    rf"|<\|start\|>\s*{_OWN}|<start_of_turn>\s*{_OWN}|<\|{_OWN}\|>|<\uff5c{_OWN}\uff5c>|\[/INST\]"
    r"|^[ \t]*(?:#{1,4}[ \t]*|\*\*)?assistant(?:\*\*)?[ \t]*:|^[ \t]*#{2,4}[ \t]*(?:assistant|response)\b:?"
    r"|</s>|<eos>|<end_of_turn>|<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|end_of_turn|call)\|>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)",
    re.IGNORECASE | re.MULTILINE,
)
_TOKEN = re.compile(
    r"<\|[\w ]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</?s>|<(?:bos|eos|pad|unk)>|<<?/?SYS>>?|"
    r"\[(?:TOOL_CALLS|ARGS)\]"
)

# One character for one, so that places stay the same: signs of typesetters and of other scripts' keyboards.
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
class Said:
    """What stands in a reply.

    Attributes:
        text: the model's own first turn, without thoughts.
        after: where what follows the last thought begins in it.
        thought: one that never ends, which is all that follows; None: there is none.
        cut: the reply ended because it grew too long.
    """

    text: str
    after: int = 0
    thought: str | None = None
    cut: bool = False


def said(reply: str, cut: bool = False) -> Said:
    """Take a reply apart, in time linear in its length.

    A thought's end without its beginning ends one, too: chat templates put the beginning into the prompt.
    """
    reply = visible(_tail(reply))
    kept: list[str] = []
    start, opened, fenced = 0, -1, False
    for tag in _THOUGHT.finditer(reply):
        if tag["open"] is not None and opened < 0:
            kept.append(reply[start : tag.start()])
            opened, fenced = tag.end(), tag["open"][0] in "`~"
        elif tag["close"] is not None or (tag["fence"] is not None and opened >= 0 and fenced):
            if opened < 0:
                kept = []  # the beginning of this thought is not there
            start, opened = tag.end(), -1
    thought = reply[opened:] if opened >= 0 else None
    before = "".join(kept)
    text = before if thought is not None else before + reply[start:]
    text, after = _first_turn(text, len(before))
    return Said(text, after, thought, cut)


def cleaned(text: str) -> str:
    """`text` as it can be written, sent and shown: no control characters but tabs and line breaks; U+FFFD for halves of
    surrogate pairs, which UTF-8 cannot hold.

    >>> cleaned("a\\x1b[2Jb\\ud800")
    'a[2Jb\ufffd'
    """
    return writable(_CONTROL.sub("", text))


def writable(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which no file can hold."""
    return _SURROGATE.sub("\ufffd", text)


def visible(text: str) -> str:
    """`text` cleaned, without signs that nobody sees, which models put between letters."""
    return _INVISIBLE.sub("", cleaned(text))


def plain(text: str) -> str:
    """`text` with ASCII's signs in place of typesetters' and full-width ones; every character stays in its place."""
    return text.translate(_PLAIN)


def _tail(reply: str) -> str:
    """The end of a reply; where it begins inside a thought, it says so."""
    if len(reply) <= LONGEST_REPLY:
        return reply
    inside = False
    for tag in _THOUGHT.finditer(reply, max(len(reply) - LONGEST_THOUGHT, 0), len(reply) - LONGEST_REPLY):
        inside = tag["open"] is not None
    return ("<think>" if inside else "") + reply[-LONGEST_REPLY:]


def _first_turn(text: str, after: int) -> tuple[str, int]:
    """The first of the model's own turns that holds anything, and where `after` is in it."""
    start, own = 0, True
    for turn in _TURN.finditer(text):
        if own and _TOKEN.sub("", text[start : turn.start()]).strip(" \n\t:*"):
            text = text[: turn.start()]
            break
        start, own = turn.end(), turn["own"] is not None
    if not own:
        start = len(text)
    kept, last, gone = [], start, start
    for token in _TOKEN.finditer(text, start):
        kept.append(text[last : token.start()])
        last = token.end()
        gone += token.end() - token.start() if last <= after else 0
    return "".join([*kept, text[last:]]), max(after - gone, 0)
