"""Detection of values in replies that are not answers: examples, quotations, rejected and withdrawn values."""

from __future__ import annotations

import re

from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import to_ascii

_CORRECTION, _REOPENING = load_pattern("corrections"), load_pattern("reopenings", "foreign_negations")
_DOUBT, _CONDITION = load_pattern("negations", "foreign_negations", "doubts"), load_pattern("conditions")
_DECISION, _REPORT, _ATTRIBUTION = load_pattern("decisions"), load_pattern("reports"), load_pattern("attributions")
# Interjections are matched only between punctuation marks, because some are also names of actions, e.g. `wait`.
_INTERJECTION = re.compile(
    rf"(?:\A\s*|[^\w\s'\"]\s*|\b(?:oh|but|no|ah|hm+|so|and)\s+)(?P<word>{'|'.join(load_word_list('interjections'))})"
    r"(?=\s*(?:[^\w\s'\"]|\Z))",
    re.IGNORECASE,
)
# Words that introduce an example or the format of answers.
_EXAMPLE = load_pattern("examples")
_EXAMPLE_NOUN = re.compile(r"\b(?:example|sample|illustration|template|placeholders?)\b|\u793a\u4f8b", re.IGNORECASE)
_SELF_REFERENCE = re.compile(
    r"\bi(?:'ll|'d|'m)?\b|\bmy\b|\bwe\b|\bhere(?:'s| is| it is)\b|\bthis (?:state|turn|time|generation)\b|\bnow\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?:[\s\"')]+(?=[A-Z\"'{\[])|\s*\n)|\n[ \t]*\n")
_SENTENCE_BREAK = re.compile(r"\n|[!?;\u3002](?=\s|\Z)|\.(?=\s|\Z)")
_PLACEHOLDER = re.compile(r"\A[\W_]*(?:<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|string|text)?[\W_]*\Z", re.IGNORECASE)
_EXAMPLE_AFTER = re.compile(
    r"\A[\s`\"')\]*,]*(?:for instance|for example|e\.g\.|as an example|(?:is|would be|was) (?:just |only )?(?:an?|the) "
    r"example|and so on|or similar|or something)\b",
    re.IGNORECASE,
)
_REJECTION = load_pattern("rejections")
_BEST_SO_FAR = re.compile(
    r"\b(?:best|highest)\b[^.{\[\n]{0,20}\b(?:so far|until now|yet|to date)\b[^.{\[\n]{0,20}\Z", re.IGNORECASE
)
_PROPOSAL_VERB = re.compile(
    r"\b(?:keep|repeat|re-?use|use|stay|again|propos\w*|go with|stick|submit|choose|measure|try)\b", re.IGNORECASE
)
_ANSWER_LABEL = re.compile(
    r"\b(?:my|here(?:'s| is)(?: my| the)?) (?:answer|response|reply|choice|action|plan|proposal)\b", re.IGNORECASE
)


def is_non_answer(before: str, after: str) -> bool:
    """Return whether the text around a value states that it is an example, past, wrong, or by another agent.

    Args:
        before: text between the previous answer and the value, at most some sentences.
        after: first words after the value.
    """
    report = to_ascii(after.split("\n")[0]).strip(" `\"'*")
    return bool(
        is_example(before)
        or _EXAMPLE_AFTER.match(after)
        or (_BEST_SO_FAR.search(before) and not _PROPOSAL_VERB.search(before))  # a past value, not a proposal
        or _REJECTION.search(before)
        or _ATTRIBUTION.search(before)
        or (_REPORT.match(report) and not report.startswith("or "))
    )


def has_correction(text: str) -> bool:
    """Return whether a text after an answer contains words that replace or withdraw it."""
    text = to_ascii(text)
    return bool(_CORRECTION.search(text) or _INTERJECTION.search(text))


def is_reopened(text: str) -> bool:
    """Return whether a text after an answer withdraws it or states that there is no decision."""
    return has_correction(text) or bool(_REOPENING.search(to_ascii(text)))


def is_conditional(text: str) -> bool:
    """Return whether a text contains a condition or alternatives."""
    return bool(_CONDITION.search(text))


def is_doubtful(before: str, after: str = "") -> bool:
    """Return whether a sentence negates or reports a value, or contains a condition for it.

    `before` and `after` are the parts of the sentence before and after the value.
    """
    # "-> ?" is an unknown measurement, not a question.
    before, after = to_ascii(before), re.sub(r"->\s*\?", "", to_ascii(after))
    decision_end = max((match.end() for match in _DECISION.finditer(before)), default=0)
    condition_text = re.sub(r"\bor rather\b", "", before)
    return bool(_CONDITION.search(condition_text) or _DOUBT.search(before, decision_end) or _REPORT.search(after))


def is_placeholder(text: str) -> bool:
    """Return whether a text is a placeholder, such as `...`, `<why>` or `[text]`."""
    return bool(_PLACEHOLDER.match(text))


def split_sentence_around(text: str, start: int, end: int) -> tuple[str, str]:
    """Return the parts of a sentence before and after the span `start`, `end` in it, each at most 300 characters."""
    end -= text[start:end].endswith(".")  # the span of a number may include the period
    breaks = _SENTENCE_BREAK.finditer(text, max(start - 300, 0), start)
    sentence_start = max((match.end() for match in breaks), default=0)
    next_break = _SENTENCE_BREAK.search(text, end, end + 300)
    return text[max(sentence_start, start - 300) : start], text[end : next_break.end() if next_break else end + 300]


def is_example(before: str) -> bool:
    """Return whether the text `before` a value introduces an example."""
    for example in _EXAMPLE.finditer(before):
        after = before[example.end() :]
        is_answer = (
            _ANSWER_LABEL.search(before, 0 if not after else example.start())
            or _SELF_REFERENCE.search(example[0])
            or after.count(")") > after.count("(")
        )
        sentence_end = _SENTENCE_END.search(after)
        if not is_answer and not (sentence_end and _SELF_REFERENCE.search(after, sentence_end.end())):
            return True
    sentence_starts = [0, *(end.end() for end in _SENTENCE_END.finditer(before.rstrip()))]
    sentence = before[sentence_starts[-1] :]
    return bool(_EXAMPLE_NOUN.search(sentence)) and not _SELF_REFERENCE.search(sentence)


def is_quoted(text: str, start: int, end: int) -> bool:
    """Return whether a span is part of a longer quotation in quotation marks."""
    start += len(text[start:end]) - len(to_ascii(text[start:end]).lstrip(' *`"'))
    line = to_ascii(text[max(text.rfind("\n", 0, start) + 1, start - 1000) : start])
    after = to_ascii(text[end : end + 3]).lstrip(" .!?)")
    preceding_text = line.rstrip()
    if not after.startswith('"') or not preceding_text or line.count('"') % 2 == 0:
        return False
    return not preceding_text.endswith('"') or bool(preceding_text[:-1].strip("`*-> \t"))
