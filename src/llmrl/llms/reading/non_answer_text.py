"""What is told in a reply without being its answer: examples, forms, quotations, what was tried or is wrong."""

from __future__ import annotations

import re

from llmrl.llms.reading.reply_cleaning import plain

# What is called an example, or the form of an answer, and what is called another's or a wrong one.
_EXAMPLE = re.compile(
    r"\bfor example\b|\be\.g\.|\bfor instance\b|\bexample\b[^.{\n]{0,60}[:(]\s*\Z|\bsuch as\b|\bsomething like\b|"
    r"\bwould look like\b|\bz\. ?b\.|\bpar exemple\b|\bpor ejemplo\b|\u4f8b\u5982|\u6bd4\u5982|"
    r"\bone (?:would |could |might |can )?(?:answer|write|reply|respond|return)s?\b|"
    r"\b(?:this|the following|following|right|correct|expected|required|requested) (?:json )?"
    r"(?:form|format|structure|schema)\s*[:.]?\s*(?:`{3,}|~{3,})?\w*\s*\Z",
    re.IGNORECASE,
)
_OF_EXAMPLES = re.compile(r"\b(?:example|sample|illustration|template|placeholders?)\b|\u793a\u4f8b", re.IGNORECASE)
_BY_ITSELF = re.compile(
    r"\bi(?:'ll|'d|'m)?\b|\bmy\b|\bwe\b|\bhere(?:'s| is| it is)\b|\bthis (?:state|turn|time|generation)\b|\bnow\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?:[\s\"')]+(?=[A-Z\"'{\[])|\s*\n)|\n[ \t]*\n")
_AN_EXAMPLE = re.compile(
    r"\A[\s`\"')\]*,]*(?:for instance|for example|e\.g\.|as an example|(?:is|would be|was) (?:just |only )?(?:an?|the) "
    r"example|and so on|or similar|or something)\b",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    r"\b(?:not|n't|never|avoid) (?:to )?"
    r"(?:use|using|choose|choosing|pick|picking|take|try|trying|propose|repeat\w*|submit)\b[^.{\n]{0,20}\Z|"
    r"\bavoid\b[^.{\n]{0,40}\Z|"
    r"\b(?:wrong|bad|invalid|incorrect)\b[^.{\n]{0,40}\Z|\b(?:not|instead of|rather than)\s*\Z|"
    r"\b(?:probably|perhaps|maybe|(?:might|may|could) (?:be|have been)|would have been)\s*:?\s*\Z|"
    r"\b(?:previous|last|earlier) (?:turn|answer|reply|action|plan)\b[^.{\n]{0,30}\Z",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(r"\b(?:if|suppose|assuming|imagine)\b[^.!?\n,;:{\[]{0,60}\Z", re.IGNORECASE)
_BEST = re.compile(
    r"\b(?:best|highest)\b[^.{\[\n]{0,20}\b(?:so far|until now|yet|to date)\b[^.{\[\n]{0,20}\Z", re.IGNORECASE
)
_KEEPS = re.compile(
    r"\b(?:keep|repeat|re-?use|use|stay|again|propos\w*|go with|stick|submit|choose|measure|try)\b", re.IGNORECASE
)
_OWN = re.compile(
    r"\b(?:my|here(?:'s| is)(?: my| the)?) (?:answer|response|reply|choice|action|plan|proposal)\b", re.IGNORECASE
)
_DISCLAIMED = re.compile(
    r"\A[\s`\"')\]*.]*\s*(?:would|will|is|was|are)\s+(?:not\s+|be\s+|also\s+)*(?:wrong|refused|invalid|"
    r"incorrect|rejected|bad|forbidden|risky|(?:my|the) (?:last|previous|earlier|first|old) \w+)",
    re.IGNORECASE,
)


def only_told(before: str, after: str) -> bool:
    """Whether what stands between these is called an example, another's, tried or wrong.

    Args:
        before: at most some sentences before it, from the last answer on.
        after: the first words after it.
    """
    if exemplary(before) or _AN_EXAMPLE.match(after):
        return True
    if _BEST.search(before) and not _KEEPS.search(before):
        return True  # what was tried, and not what is to be
    return bool(_REJECTED.search(before) or _SUPPOSED.search(before) or _DISCLAIMED.match(after))


def exemplary(before: str) -> bool:
    """Whether what follows is called an example."""
    for example in _EXAMPLE.finditer(before):
        after = before[example.end() :]
        if _OWN.search(before, example.start()) or (not after and _OWN.search(before)) or _BY_ITSELF.search(example[0]):
            continue
        closed = after.count(")") > after.count("(")
        ended = _SENTENCE_END.search(after)
        if not closed and not (ended and _BY_ITSELF.search(after, ended.end())):
            return True
    begins = [end.end() for end in _SENTENCE_END.finditer(before.rstrip())]
    sentence = before[begins[-1] if begins else 0 :]
    return bool(_OF_EXAMPLES.search(sentence)) and not _BY_ITSELF.search(sentence)


def quoted(text: str, start: int, end: int) -> bool:
    """Whether what stands there is part of somebody's words in quotes, of which there is more."""
    line = plain(text[max(text.rfind("\n", 0, start) + 1, start - 1000) : start])
    after = plain(text[end : end + 3]).lstrip(" .!?)")
    opening = line.rstrip()
    if not after.startswith('"') or not opening or line.count('"') % 2 == 0:
        return False
    return not opening.endswith('"') or bool(opening[:-1].strip("`*-> \t"))
