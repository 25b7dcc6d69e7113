"""Options that a reply lists under labels of its own, and its choice among them."""

from __future__ import annotations

import re

_NOUN = r"(?:option|candidate|plan|choice|alternative|variant|strategy|approach|possibility|idea)"
_LABEL = r"(?:\d{1,2}|one|two|three|four|five|six|(?-i:[A-H]))"
_MENTION = re.compile(
    rf"\b{_NOUN}[ \t*]*(?:#|no\.?|number)?[ \t*(]*(?P<label>{_LABEL})\b"
    rf"|\bthe[\s*_]+(?P<order>first|second|third|fourth|fifth|last|latter|former)[\s*_]+(?:{_NOUN}|one)\b",
    re.IGNORECASE,
)
_ITEM_LABEL = re.compile(
    r"(?:^[ \t>#*_|(\-\u2022]{0,12}|(?<=[:,;])[ \t]+\(?)(?P<label>\d{1,2}|[A-Ha-h])[ \t*_]{0,3}(?:[.):]|\|)"
    r"[ \t*_]*(?=\S)",
    re.MULTILINE,
)
_LABEL_CHOICE = re.compile(
    r"\b(?:answer|choice|decision|choose|pick|select|take|go with)\b[ \t*_:=]*(?:is[ \t:*_]+)?"
    r"(?:\d{1,2}|\(?(?-i:[A-H]|(?<=\()[a-h])\)?)(?![\w'%.]*[\w%])",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"^[ \t>#*_\-\u2022]{{0,12}}{_NOUN} (?P<label>{_LABEL})[ \t*_]{{0,3}}[:.)][ \t*_]*(?P<text>\S[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_DECISION = re.compile(
    r"(?:\A|[.!?\n])[\s*]*(?:I(?:'ll| will)? (?:choose|pick|select|take|go with)|"
    r"(?:(?:my|the|final) )*(?:choice|decision|answer|selection|selected)(?: is|[ *]*:))"
    rf"[ *]*{_NOUN} (?P<label>{_LABEL})[ *]*(?=[.!,\n]|\Z)",
    re.IGNORECASE,
)


def end_of_own_labels(text: str) -> int:
    """Return the end of the last reference to an option that the text lists under a label of its own; 0 if none."""
    mentions = list(_MENTION.finditer(text))
    references = [*mentions, *_LABEL_CHOICE.finditer(text)]
    n_options = len({(match["label"] or match["order"]).casefold() for match in mentions})
    n_items = len({match["label"] for match in _ITEM_LABEL.finditer(text)})
    return max((match.end() for match in references), default=0) if max(n_options, n_items) > 1 else 0


def chosen_option(text: str) -> str | None:
    """Return the text of the option, one of several on their own lines, that a text decides for; None if unclear."""
    options = [(match["label"].casefold(), match["text"]) for match in _OPTION.finditer(text)]
    chosen = {match["label"].casefold() for match in _DECISION.finditer(text)}
    texts = [option for label, option in options if label in chosen]
    return texts[0] if len(chosen) == len(texts) == 1 and len(options) > 1 else None
