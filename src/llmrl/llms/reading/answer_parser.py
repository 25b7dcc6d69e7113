"""Search for the answer in a reply; a reply with several different answers of equal rank is invalid."""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.json_and_markup import find_outermost_values, strip_tags
from llmrl.llms.reading.latex_and_tables import blank_brace_escapes
from llmrl.llms.reading.non_answer_text import (
    has_correction,
    is_doubtful,
    is_non_answer,
    is_placeholder,
    is_quoted,
    is_reopened,
    split_sentence_around,
)
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import CleanedReply, clean_reply, to_ascii

T = TypeVar("T")

MAX_REASONS_LENGTH = 2000
"""Maximum length of the text around an answer that is returned as its reasons if it has no separate reasons."""
_CONTEXT_CHARACTERS = 160
"""Number of characters before a candidate that are searched for words that introduce it."""

_DECISION_PHRASE = load_pattern("decisions")
_NEXT_STEP_PHRASE = re.compile(
    r"\b(?:next(?:,| step\b| turn\b| time\b)|after that\b|afterwards\b|later\b|then,)", re.IGNORECASE
)
_OR_CONJUNCTION = re.compile(r"\W*(?:or|oder|ou|o|eller|\u6216|\u307e\u305f\u306f)\W*", re.IGNORECASE)
_RESTATEMENT = re.compile(
    r"\bas (?:in|stated|shown|given|listed)\b[^.\n]{0,30}\b(?:json|above|before)\b", re.IGNORECASE
)
REFUSAL_PHRASE = load_pattern("refusals")
"""Phrases that state that there is no decision, or that ask the reader for one."""

# Labels that the reply itself gives to options, e.g. "Option A", and the choice of one of these labels.
_OPTION_NOUN = r"(?:option|candidate|plan|choice|alternative|variant|strategy|approach|possibility|idea)"
_OPTION_LABEL = r"(?:\d{1,2}|one|two|three|four|five|six|(?-i:[A-H]))"
_OPTION_MENTION = re.compile(
    rf"\b{_OPTION_NOUN}[ \t*]*(?:#|no\.?|number)?[ \t*(]*(?P<label>{_OPTION_LABEL})\b"
    rf"|\bthe[\s*_]+(?P<order>first|second|third|fourth|fifth|last|latter|former)[\s*_]+(?:{_OPTION_NOUN}|one)\b",
    re.IGNORECASE,
)
_LIST_LABEL = re.compile(
    r"(?:^[ \t>#*_|(\-\u2022]{0,12}|(?<=[:,;])[ \t]+\(?)(?P<label>\d{1,2}|[A-Ha-h])[ \t*_]{0,3}(?:[.):]|\|)"
    r"[ \t*_]*(?=\S)",
    re.MULTILINE,
)
_LABEL_CHOICE = re.compile(
    r"\b(?:answer|choice|decision|choose|pick|select|take|go with)\b[ \t*_:=]*(?:is[ \t:*_]+)?"
    r"(?:\d{1,2}|\(?(?-i:[A-H]|(?<=\()[a-h])\)?)(?![\w'%.]*[\w%])",
    re.IGNORECASE,
)
_OPTION_LINE = re.compile(
    rf"^[ \t>#*_\-\u2022]{{0,12}}{_OPTION_NOUN} (?P<label>{_OPTION_LABEL})[ \t*_]{{0,3}}[:.)][ \t*_]*"
    r"(?P<text>\S[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION_DECISION = re.compile(
    r"(?:\A|[.!?\n])[\s*]*(?:I(?:'ll| will)? (?:choose|pick|select|take|go with)|"
    r"(?:(?:my|the|final) )*(?:choice|decision|answer|selection|selected)(?: is|[ *]*:))"
    rf"[ *]*{_OPTION_NOUN} (?P<label>{_OPTION_LABEL})[ *]*(?=[.!,\n]|\Z)",
    re.IGNORECASE,
)


@dataclass
class CandidateAnswer(Generic[T]):
    """Possible answer in a reply.

    Attributes:
        start, end: span of the candidate in the text of the reply.
        answer: parsed value.
        reasons: text of the reasons; "" if there are none.
        certainty: 2 for an unambiguous form, e.g. the requested one; 1 for a form that is ignored if there are
            candidates with certainty 2.
        is_object: whether it is a JSON object, the requested form; other candidates before an object are ignored.
        is_fallback: whether it is ignored if there are other candidates, e.g. because its reasons are a placeholder.
        is_announced: whether the reply states that this is the answer to the present question.
        error: reason why the answer cannot be used; "" if it can be used.
        recipient: recipient of a message, a text under one of `AnswerParser.recipient_keys`; "" if there is none.
    """

    start: int
    end: int
    answer: T
    reasons: str = ""
    certainty: int = 2
    is_object: bool = False
    is_fallback: bool = False
    is_announced: bool = False
    error: str = ""
    recipient: str = ""


@dataclass(frozen=True)
class ParsedAnswer(Generic[T]):
    """Answer in a reply, its reasons, and the recipient of a message (both "" if there is none)."""

    answer: T
    reasons: str = ""
    recipient: str = ""


class AnswerParser(ABC, Generic[T]):
    """Base class of parsers, one for each kind of question, which `parse_answer` uses to find answers in a reply.

    Attributes:
        answer_name: name of the answer in error messages.
        reason_keys: normalized names of fields with reasons.
        recipient_keys: normalized names of fields with the recipient of a message.
        next_turn_pattern: pattern of the start of a further turn of the dialogue, after which answers are ignored;
            None: there are no further turns.
        question_labels_options: whether the question labels options, so that labels in a reply are answers.
    """

    answer_name: str
    reason_keys = load_word_list("reasons")
    recipient_keys: tuple[str, ...] = ()
    next_turn_pattern: re.Pattern[str] | None = None
    question_labels_options = False

    @abstractmethod
    def parse_value(self, value: Any) -> T | None:
        """Return the answer in a JSON-like value; None if the value is not an answer.

        Raises:
            InvalidReply: the value is an answer that cannot be used.
        """

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[T]]:
        """Return the answers in `text` that are not JSON-like, e.g. after a label; `truncated`: the end is missing."""
        return []

    def parse_prose(self, text: str) -> T | None:
        """Return the answer in prose; None if there is none or if it is uncertain."""
        return None

    def describe_missing_answer(self, text: str) -> str:
        """Return the error message for a reply without an answer; "": the default message."""
        return ""

    def answers_this_question(self, text: str, candidate: CandidateAnswer[T]) -> bool | None:
        """Return whether a candidate answers this question (True) or another one (False); None if this is unknown."""
        return None

    def contradicts(self, text: str, answer: T) -> bool:
        """Return whether `text`, which follows `answer`, contains another value of the answer or of a part of it."""
        return False


@dataclass
class _Errors:
    """(Position, message) of each unusable answer, and whether candidates were excluded, e.g. as examples."""

    messages: list[tuple[int, str]] = field(default_factory=list)
    has_exclusions: bool = False


def parse_answer(text: str, parser: AnswerParser[T], truncated: bool = False) -> ParsedAnswer[T]:
    """Return the answer in a reply, in time linear in its length.

    Answers after the last thought take precedence. Of two different answers the second one is returned if the words
    between them correct the first one (e.g. "actually") or announce a decision. Otherwise the reply is invalid.

    Args:
        text: the complete text of the reply.
        parser: parser for the kind of question.
        truncated: whether the reply was cut off at the maximum number of tokens.

    Raises:
        InvalidReply: the reply contains no usable answer, or different answers without a decision.
    """
    reply = clean_reply(text, truncated)
    if not reply.text.strip() and reply.unclosed_thought is None:
        raise InvalidReply(f"the reply is empty: there is no {parser.answer_name} in it")
    if reply.unclosed_thought is None:
        return _parse_cleaned_reply(reply, parser)
    if not truncated:
        with contextlib.suppress(InvalidReply):
            return _parse_cleaned_reply(reply, parser, use_prose=False)
        if (answer := _parse_unclosed_thought(reply.unclosed_thought, parser)) is not None:
            return answer
    raise InvalidReply(f"the reply ends inside a thought: there is no {parser.answer_name} after it")


def _parse_unclosed_thought(reasoning: str, parser: AnswerParser[T]) -> ParsedAnswer[T] | None:
    """Return the answer with certainty 2 at the end of an unclosed thought; None if there is none."""
    candidates = [c for c in _find_candidates(reasoning, parser, truncated=False, errors=_Errors()) if c.certainty == 2]
    if not candidates:
        return None
    candidate = candidates[-1]
    ending = reasoning[candidate.end :].strip("`~\"'.}> ")
    context = to_ascii(reasoning[max(0, candidate.start - _CONTEXT_CHARACTERS) : candidate.start])
    is_announced = bool(_DECISION_PHRASE.search(context))
    is_one_line = ending[:1] == "\n" and len(ending) <= 100 and "\n" not in ending.strip()
    is_last = not ending.strip() or (is_announced and is_one_line and not is_reopened(ending))
    is_draft = is_doubtful(split_sentence_around(reasoning, candidate.start, candidate.end)[0])
    is_answer = is_last and not is_draft and (candidate.is_object or is_announced)
    return ParsedAnswer(candidate.answer, candidate.reasons, candidate.recipient) if is_answer else None


def _parse_cleaned_reply(reply: CleanedReply, parser: AnswerParser[T], use_prose: bool = True) -> ParsedAnswer[T]:
    """Return the answer in `reply`; options with labels and prose are parsed only if `use_prose`."""
    text, errors = reply.text, _Errors()
    candidates = _find_candidates(text, parser, reply.truncated, errors)
    if use_prose and not parser.question_labels_options and (end := _find_options_end(text[reply.answer_start :])):
        # Candidates inside the options are not answers.
        end += reply.answer_start
        candidates = [c for c in candidates if c.is_object or (c.certainty == 2 and c.start >= end)]
        chosen_option = None if candidates else _find_chosen_option(to_ascii(text[reply.answer_start :]))
        if chosen_option is not None:
            answer = _parse_cleaned_reply(CleanedReply(chosen_option), parser).answer
            return ParsedAnswer(answer, " ".join(text.split())[:MAX_REASONS_LENGTH])
        if not candidates:
            raise InvalidReply(f"the reply lists options under labels of its own; give the {parser.answer_name} itself")
    late_candidates = [candidate for candidate in candidates if candidate.end > reply.answer_start]
    decision = _choose_answer(text, late_candidates or candidates, parser, errors)
    if decision is not None:
        # Without separate reasons, the text around an answer is its reasons.
        context = f"{text[: decision.start].rstrip('*`#- ')}\n{text[decision.end :]}"
        context = context.replace("```json", "").replace("```", "").strip(" \n*;")[:MAX_REASONS_LENGTH]
        return ParsedAnswer(decision.answer, decision.reasons or context, decision.recipient)
    if use_prose and not errors.messages and not errors.has_exclusions and not reply.truncated:
        sentences = text[reply.answer_start :] if text[reply.answer_start :].strip() else text
        prose_answer = parser.parse_prose(to_ascii(strip_tags(sentences)))
        if prose_answer is not None:
            return ParsedAnswer(prose_answer, " ".join(sentences.split())[:MAX_REASONS_LENGTH])
    raise InvalidReply(_describe_problem(text, parser, errors))


def _find_options_end(text: str) -> int:
    """Return the end of the last mention of an option with a label of the text's own; 0 without several options."""
    mentions = list(_OPTION_MENTION.finditer(text))
    n_options = len({(match["label"] or match["order"]).casefold() for match in mentions})
    if max(n_options, len({match["label"] for match in _LIST_LABEL.finditer(text)})) < 2:
        return 0
    return max((match.end() for match in (*mentions, *_LABEL_CHOICE.finditer(text))), default=0)


def _find_chosen_option(text: str) -> str | None:
    """Return the text of the only option that `text` chooses among options on separate lines; None if unclear."""
    options = [(match["label"].casefold(), match["text"]) for match in _OPTION_LINE.finditer(text)]
    labels = {match["label"].casefold() for match in _OPTION_DECISION.finditer(text)}
    texts = [option for label, option in options if label in labels]
    return texts[0] if len(labels) == len(texts) == 1 and len(options) > 1 else None


def _find_candidates(text: str, parser: AnswerParser[T], truncated: bool, errors: _Errors) -> list[CandidateAnswer[T]]:
    """Return all possible answers, ordered by their ends, without quotations and examples; add to `errors`."""
    values = find_outermost_values(blank_brace_escapes(text), truncated)
    error_spans: list[tuple[int, int]] = []
    candidates: list[CandidateAnswer[T]] = []
    for found_value in values:
        try:
            answer = parser.parse_value(found_value.value)
        except InvalidReply as error:
            if not is_quoted(text, found_value.start, found_value.end):
                errors.messages.append((found_value.start, str(error)))
            error_spans.append((found_value.start, found_value.end))
            continue
        if answer is not None:
            is_object = isinstance(found_value.value, dict)
            reasons = _find_field_text(found_value.value, parser.reason_keys) or ""
            candidates.append(
                CandidateAnswer(
                    found_value.start,
                    found_value.end,
                    answer,
                    reasons=reasons,
                    certainty=2 if is_object else 1,
                    is_object=is_object,
                    is_fallback=reasons != "" and is_placeholder(reasons),
                    recipient=_find_field_text(found_value.value, parser.recipient_keys) or "",
                )
            )
    # Texts inside an object that is not an answer are not answers.
    object_spans = [(v.start, v.end) for v in values if text[v.start] == "{" and not v.is_repaired]
    used_spans = [(candidate.start, candidate.end) for candidate in candidates] + error_spans + object_spans
    for candidate in parser.find_in_text(text, truncated):
        if any(start <= candidate.start and candidate.end <= end for start, end in used_spans):
            continue
        if candidate.error:
            errors.messages.append((candidate.start, candidate.error))
        else:
            candidates.append(candidate)
    candidates.sort(key=lambda candidate: (candidate.end, candidate.start))
    unquoted = [c for c in candidates if not is_quoted(text, c.start, c.end)]
    answers = _exclude_examples(text, unquoted, sorted(found_value.end for found_value in values), parser, truncated)
    errors.has_exclusions = len(answers) < len(candidates) or bool(object_spans)
    return answers


def _exclude_examples(
    text: str, candidates: list[CandidateAnswer[T]], value_ends: Sequence[int], parser: AnswerParser[T], truncated: bool
) -> list[CandidateAnswer[T]]:
    """Return the candidates that are neither examples nor answers to other questions.

    `value_ends` are the sorted end positions of all JSON-like values. `is_announced` of the candidates is set.
    """
    remaining: list[CandidateAnswer[T]] = []
    last_end = excluded_end = 0
    for candidate in candidates:
        previous_ends = [0, *value_ends[: bisect_right(value_ends, candidate.start)]]
        context_start = max(
            last_end if last_end <= candidate.start else 0, previous_ends[-1], candidate.start - _CONTEXT_CHARACTERS
        )
        context, last_end = text[context_start : candidate.start], candidate.end
        answers_this_question = parser.answers_this_question(text, candidate)
        candidate.is_announced = answers_this_question is True
        is_partial = truncated and candidate.certainty == 1 and text[: candidate.start].strip()
        if answers_this_question is False or is_partial:
            continue
        before, after = split_sentence_around(text, candidate.start, candidate.end)
        if remaining and _OR_CONJUNCTION.fullmatch(text[remaining[-1].end : candidate.start]):
            before = ""  # keep both alternatives, "A or B", so that they make the reply invalid
        if (
            (excluded_end and _OR_CONJUNCTION.fullmatch(text[excluded_end : candidate.start]))
            or is_non_answer(context, text[candidate.end : candidate.end + 60])
            or (not candidate.is_object and candidate.start < excluded_end)
            or (not candidate.is_object and is_doubtful(before, after))
            or (not candidate.is_object and has_correction(text[candidate.start : candidate.end].split("\n")[0]))
        ):
            excluded_end = candidate.end
            continue
        remaining.append(candidate)
    remaining = [candidate for candidate in remaining if candidate.is_announced] or remaining
    remaining = [candidate for candidate in remaining if candidate.certainty == 2] or remaining
    last_object_start = max((candidate.start for candidate in remaining if candidate.is_object), default=-1)
    remaining = [candidate for candidate in remaining if candidate.is_object or candidate.start > last_object_start]
    return [candidate for candidate in remaining if not candidate.is_fallback] or remaining


def _choose_answer(
    text: str, candidates: list[CandidateAnswer[T]], parser: AnswerParser[T], errors: _Errors
) -> CandidateAnswer[T] | None:
    """Return the candidate that is the answer; None if there are no candidates.

    Raises:
        InvalidReply: there are different candidates without a decision, or the last answer cannot be used.
    """
    if not candidates:
        return None
    next_turn = parser.next_turn_pattern
    answer, has_conflict, last_end, end = candidates[0], False, candidates[0].end, len(text)
    for candidate in candidates[1:]:
        gap, gap_start, last_end = text[last_end : candidate.start], last_end, max(last_end, candidate.end)
        if _NEXT_STEP_PHRASE.search(gap) or (next_turn is not None and next_turn.search(gap)):
            end = gap_start
            break
        is_decisive = _is_decisive(gap) and not _RESTATEMENT.search(text[candidate.end : candidate.end + 80])
        if np.all(answer.answer == candidate.answer):
            has_conflict = has_conflict and not is_decisive
            if candidate.end > answer.end and not (candidate.reasons == "" and answer.reasons):
                answer = candidate
        else:
            answer, has_conflict = (candidate if is_decisive else answer), not is_decisive
    if errors.messages:
        start, error = errors.messages[-1]
        gap = to_ascii(text[max(answer.end, start - 300) : start])
        if _is_decisive(gap) and not (next_turn is not None and next_turn.search(gap)):
            raise InvalidReply(error)  # an answer that cannot be used corrects this one
    if has_conflict:
        raise InvalidReply(
            f"there are several different answers in the reply, and nothing says which counts; give one "
            f"{parser.answer_name}"
        )
    following_text = text[answer.end : end]
    if next_turn is not None and (turn_start := next_turn.search(following_text)):
        following_text = following_text[: turn_start.start()]
    if is_reopened(following_text) or parser.contradicts(following_text, answer.answer):
        raise InvalidReply(f"the reply takes its answer back; give one {parser.answer_name}")
    return answer


def _is_decisive(gap: str) -> bool:
    """Return whether `gap`, the text between two answers, corrects the first one or announces the second one."""
    return has_correction(gap) or bool(_DECISION_PHRASE.search(to_ascii(gap)))


def _find_field_text(value: Any, keys: Sequence[str], depth: int = 0) -> str | None:
    """Return the first text or integer of a field named in `keys`, at most four levels deep; None if there is none."""
    if depth > 3 or not isinstance(value, dict | list):
        return None
    if isinstance(value, list):
        return _find_field_text(value[0], keys, depth + 1) if len(value) == 1 else None
    for key, inner in value.items():
        if "".join(c for c in key.casefold() if c.isalpha()) in keys:
            [inner] = inner if isinstance(inner, list) and len(inner) == 1 else [inner]
            if isinstance(inner, str | int) and not isinstance(inner, bool):
                return str(inner)
    texts = (_find_field_text(inner, keys, depth + 1) for inner in value.values())
    return next((text for text in texts if text is not None), None)


def _describe_problem(text: str, parser: AnswerParser[Any], errors: _Errors) -> str:
    """Return the error message for a reply without an answer, with the position of its first JSON error."""
    start = text.find("{")
    missing_message = f"there is no {parser.answer_name} in the reply"
    message = errors.messages[-1][1] if errors.messages else parser.describe_missing_answer(text) or missing_message
    if start < 0:
        return f"{message}, and no JSON object" if message == missing_message else message
    try:
        json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        excerpt = text[max(error.pos - 30, start) : error.pos + 10]
        return f"{message}; its JSON breaks at line {error.lineno}, column {error.colno}, near {excerpt!r}: {error.msg}"
    except (RecursionError, ValueError):
        return f"{message}; its JSON is nested too deep or holds a number too long"
    return message
