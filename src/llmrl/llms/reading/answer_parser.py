"""Search of a reply for its answer: candidates are ranked, and a tie between different ones makes the reply invalid."""

from __future__ import annotations

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
from llmrl.llms.reading.latex import blank_brace_escapes
from llmrl.llms.reading.non_answer_text import (
    has_correction,
    is_doubtful,
    is_non_answer,
    is_placeholder,
    is_quoted,
    is_reopened,
    sentence_around,
)
from llmrl.llms.reading.own_labels import chosen_option, end_of_own_labels
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import CleanedReply, clean_reply, to_ascii

T = TypeVar("T")

REASONS = 2000
"""Maximum number of characters of a reply that count as its reasons if no part is marked as reasons."""
_CONTEXT_CHARACTERS = 160
"""Number of characters before a value that are searched for words that introduce it."""

_DECISION = load_pattern("decisions")
_NEXT_STEP = re.compile(
    r"\b(?:next(?:,| step\b| turn\b| time\b)|after that\b|afterwards\b|later\b|then,)", re.IGNORECASE
)
_OR = re.compile(r"\W*(?:or|oder|ou|o|eller|\u6216|\u307e\u305f\u306f)\W*", re.IGNORECASE)
_ECHOES = re.compile(r"\bas (?:in|stated|shown|given|listed)\b[^.\n]{0,30}\b(?:json|above|before)\b", re.IGNORECASE)
REFUSAL = load_pattern("refusals")
"""Phrases that state that no decision was made, or that ask the reader for one."""


@dataclass
class CandidateAnswer(Generic[T]):
    """Possible answer in a reply.

    Attributes:
        start, end: span of its characters in the reply.
        answer: parsed value.
        reasons: reasons in the reply's words; "" if it gives none.
        form: 2 for the requested form or another unambiguous one, 1 for less certain forms, used only without others.
        requested: whether it is a JSON object, the requested form; answers in words before it are quotations.
        weak: whether its reasons are a placeholder, as in the example of the prompt.
        announced: whether the reply says that this answers the present question.
        kept: text under one of the question's names for notes to keep; "" if there is none.
        error: reason why the answer cannot be used; "" if it can.
    """

    start: int
    end: int
    answer: T
    reasons: str = ""
    form: int = 2
    requested: bool = False
    weak: bool = False
    announced: bool = False
    error: str = ""
    kept: str = ""


@dataclass(frozen=True)
class ParsedAnswer(Generic[T]):
    """Content of a reply: the answer, its reasons, and the notes to keep (each "" if there are none)."""

    answer: T
    reasons: str = ""
    kept: str = ""


class AnswerParser(ABC, Generic[T]):
    """Base of parsers, one for each kind of question, that `parse_answer` uses to find the answer in a reply.

    Attributes:
        answer_name: name of the answer in error messages.
        reasons: names of fields with reasons.
        kept: names of fields with notes to keep for later questions.
        turn: pattern of the start of another turn, for replies that invent further turns; None: there is none.
        has_labels: whether the question itself labels options, so that labels in a reply are answers.
    """

    answer_name: str
    reasons = load_word_list("reasons")
    kept: tuple[str, ...] = ()
    turn: re.Pattern[str] | None = None
    has_labels = False

    @abstractmethod
    def parse_value(self, value: Any) -> T | None:
        """Return the answer in a JSON-like value; None if the value is not an answer.

        Raises:
            InvalidReply: the value is an answer, but an unusable one.
        """

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[T]]:
        """Return the answers in a text, under a label or in another form that is not JSON-like."""
        return []

    def parse_prose(self, text: str) -> T | None:
        """Return the answer in prose; None if there is none."""
        return None

    def hint(self, text: str) -> str:
        """Return a hint on what a reply without an answer lacks; "" if there is none."""
        return ""

    def answers_this_question(self, text: str, candidate: CandidateAnswer[T]) -> bool | None:
        """Return whether a candidate is marked as the answer to this question (True) or another (False); else None."""
        return None

    def contradicts(self, text: str, answer: T) -> bool:
        """Return whether a text after an answer gives a part of it another value."""
        return False

    def same(self, a: T, b: T) -> bool:
        """Return whether two answers are equal."""
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return np.array_equal(a, b)
        return bool(a == b)


@dataclass
class _Errors:
    """Reasons why answers are unusable, with positions, and whether candidates were excluded, e.g. examples."""

    messages: list[tuple[int, str]] = field(default_factory=list)
    has_exclusions: bool = False


def parse_answer(text: str, question: AnswerParser[T], truncated: bool = False) -> ParsedAnswer[T]:
    """Return the answer in a reply, in time linear in its length.

    Answers after the last thought take precedence. Of two different answers the later one counts if words between them
    revise the first, e.g. "actually"; without such words the reply is invalid.

    Args:
        text: the reply, as the provider gave it.
        question: parser of the answers to the question.
        truncated: whether the reply was cut off because it grew too long.

    Raises:
        InvalidReply: the reply holds no usable answer, or different ones without a decision.
    """
    reply = clean_reply(text, truncated)
    if not reply.text.strip() and reply.thought is None:
        raise InvalidReply(f"the reply is empty: there is no {question.answer_name} in it")
    if reply.thought is None:
        return _read(reply, question)
    if truncated:
        raise InvalidReply(f"the reply ends inside a thought: there is no {question.answer_name} after it")
    try:
        return _read(reply, question, prose=False)
    except InvalidReply:
        pass
    return _read_reasoning(reply.thought, question)


def _read_reasoning(reasoning: str, question: AnswerParser[T]) -> ParsedAnswer[T]:
    """Return the answer that ends an unclosed thought; raise InvalidReply unless it is a complete one."""
    errors = _Errors()
    complete = [candidate for candidate in _candidates(reasoning, question, False, errors) if candidate.form == 2]
    error = InvalidReply(f"the reply ends inside a thought: there is no {question.answer_name} after it")
    if not complete:
        raise error
    answer = complete[-1]
    rest = reasoning[answer.end :].strip("`~\"'.}> ")
    context = to_ascii(reasoning[max(0, answer.start - _CONTEXT_CHARACTERS) : answer.start])
    is_announced = bool(_DECISION.search(context))
    is_reason = rest[:1] == "\n" and len(rest) <= 100 and "\n" not in rest.strip() and not is_reopened(rest)
    is_last = not rest.strip() or (is_announced and is_reason)
    is_draft = is_doubtful(sentence_around(reasoning, answer.start, answer.end)[0])
    if not is_last or is_draft or not (answer.requested or is_announced):
        raise error
    return ParsedAnswer(answer.answer, answer.reasons, answer.kept)


def _read(reply: CleanedReply, question: AnswerParser[T], prose: bool = True) -> ParsedAnswer[T]:
    text = reply.text
    errors = _Errors()
    candidates = _candidates(text, question, reply.truncated, errors)
    if prose and not question.has_labels and (end := end_of_own_labels(text[reply.after :])):
        # The options are no answers themselves.
        candidates = [c for c in candidates if c.requested or (c.form == 2 and c.start >= reply.after + end)]
        option = None if candidates else chosen_option(to_ascii(text[reply.after :]))
        if option is not None:
            return ParsedAnswer(_read(CleanedReply(option), question).answer, " ".join(text.split())[:REASONS])
        if not candidates:
            raise InvalidReply(
                f"the reply lists options under labels of its own; give the {question.answer_name} itself"
            )
    late = [candidate for candidate in candidates if candidate.end > reply.after]
    decision = _decide(text, late or candidates, question, errors)
    if decision is not None:
        return ParsedAnswer(decision.answer, decision.reasons or _surrounding_text(text, decision), decision.kept)
    if prose and not errors.messages and not errors.has_exclusions and not reply.truncated:
        sentences = text[reply.after :] if text[reply.after :].strip() else text
        answer = question.parse_prose(to_ascii(strip_tags(sentences)))
        if answer is not None:
            return ParsedAnswer(answer, " ".join(sentences.split())[:REASONS])
    raise InvalidReply(_complaint(text, question, errors))


def _candidates(text: str, question: AnswerParser[T], truncated: bool, errors: _Errors) -> list[CandidateAnswer[T]]:
    """Return all possible answers in order, without quoted ones and examples."""
    values = find_outermost_values(blank_brace_escapes(text), truncated)
    error_spans: list[tuple[int, int]] = []
    candidates: list[CandidateAnswer[T]] = []
    for span in values:
        try:
            answer = question.parse_value(span.value)
        except InvalidReply as error:
            if not is_quoted(text, span.start, span.end):
                errors.messages.append((span.start, str(error)))
            error_spans.append((span.start, span.end))
            continue
        if answer is not None:
            bare = not isinstance(span.value, dict)
            reasons = reasons_of(span.value, question.reasons)
            candidate = CandidateAnswer(span.start, span.end, answer, reasons or "", 1 if bare else 2, not bare)
            candidate.kept = (question.kept and reasons_of(span.value, question.kept)) or ""
            candidate.weak = reasons is not None and reasons != "" and is_placeholder(reasons)
            candidates.append(candidate)
    # Texts inside of an object that is no answer are none, either.
    objects = [(span.start, span.end) for span in values if text[span.start] == "{" and not span.broken]
    used_spans = [(span.start, span.end) for span in candidates] + error_spans + objects
    for text_candidate in question.find_in_text(text, truncated):
        if not any(start <= text_candidate.start and text_candidate.end <= end for start, end in used_spans):
            if text_candidate.error:
                errors.messages.append((text_candidate.start, text_candidate.error))
            else:
                candidates.append(text_candidate)
    candidates.sort(key=lambda span: (span.end, span.start))
    unquoted = [span for span in candidates if not is_quoted(text, span.start, span.end)]
    answers = _exclude_examples(text, unquoted, sorted(span.end for span in values), question, truncated)
    errors.has_exclusions = len(answers) < len(candidates) or bool(objects)
    return answers


def _exclude_examples(
    text: str, candidates: list[CandidateAnswer[T]], ends: Sequence[int], question: AnswerParser[T], truncated: bool
) -> list[CandidateAnswer[T]]:
    """Return the candidates that are neither examples nor answers to other questions.

    `ends` are the end positions of all values.
    """
    remaining: list[CandidateAnswer[T]] = []
    last = excluded_end = 0
    for candidate in candidates:
        at = bisect_right(ends, candidate.start)
        context = text[
            max(
                last if last <= candidate.start else 0, ends[at - 1] if at else 0, candidate.start - _CONTEXT_CHARACTERS
            ) : candidate.start
        ]
        last = candidate.end
        answers_this_question = question.answers_this_question(text, candidate)
        if answers_this_question is False:
            continue
        candidate.announced = answers_this_question is True
        if truncated and candidate.form == 1 and text[: candidate.start].strip():
            continue
        before, after = sentence_around(text, candidate.start, candidate.end)
        if remaining and _OR.fullmatch(text[remaining[-1].end : candidate.start]):
            before = ""  # neither of the two counts
        is_alternative = excluded_end and _OR.fullmatch(text[excluded_end : candidate.start])
        if (
            is_alternative
            or is_non_answer(context, text[candidate.end : candidate.end + 60])
            or (not candidate.requested and candidate.start < excluded_end)
            or (not candidate.requested and is_doubtful(before, after))
            or (not candidate.requested and has_correction(text[candidate.start : candidate.end].split("\n")[0]))
        ):
            excluded_end = candidate.end
            continue
        remaining.append(candidate)
    if any(candidate.announced for candidate in remaining):
        remaining = [candidate for candidate in remaining if candidate.announced]
    if any(candidate.form == 2 for candidate in remaining):
        remaining = [candidate for candidate in remaining if candidate.form == 2]
    last_requested = max((candidate.start for candidate in remaining if candidate.requested), default=-1)
    remaining = [candidate for candidate in remaining if candidate.requested or candidate.start > last_requested]
    strong = [candidate for candidate in remaining if not candidate.weak]
    return strong or remaining


def _decide(
    text: str, candidates: list[CandidateAnswer[T]], question: AnswerParser[T], errors: _Errors
) -> CandidateAnswer[T] | None:
    """Return the candidate that counts; None if there are no candidates.

    Raises:
        InvalidReply: there are different candidates without a decision, or an unusable one replaced the answer.
    """
    if not candidates:
        return None
    current, clash, last, end = candidates[0], False, candidates[0].end, len(text)
    for candidate in candidates[1:]:
        gap, gap_start, last = text[last : candidate.start], last, max(last, candidate.end)
        if _NEXT_STEP.search(gap) or (question.turn is not None and question.turn.search(gap)):
            end = gap_start
            break
        decides = _is_decisive(gap) and not _ECHOES.search(text[candidate.end : candidate.end + 80])
        if question.same(current.answer, candidate.answer):
            clash = clash and not decides
            if candidate.end > current.end and not (candidate.reasons == "" and current.reasons):
                current = candidate
        elif decides:
            current, clash = candidate, False
        else:
            clash = True
    if errors.messages:
        start, error = errors.messages[-1]
        gap = to_ascii(text[max(current.end, start - 300) : start])
        if _is_decisive(gap) and not (question.turn is not None and question.turn.search(gap)):
            raise InvalidReply(error)  # an unusable answer replaced this one
    if clash:
        raise InvalidReply(
            f"there are several different answers in the reply, and nothing says which counts; give one "
            f"{question.answer_name}"
        )
    rest = text[current.end : end]
    if question.turn is not None and (turn := question.turn.search(rest)):
        rest = rest[: turn.start()]
    if is_reopened(rest) or question.contradicts(rest, current.answer):
        raise InvalidReply(f"the reply takes its answer back; give one {question.answer_name}")
    return current


def _is_decisive(gap: str) -> bool:
    """Return whether the text between two answers says that the second one counts."""
    return has_correction(gap) or bool(_DECISION.search(to_ascii(gap)))


def reasons_of(value: Any, names: Sequence[str], depth: int = 0) -> str | None:
    """Return the first text in a value under one of `names`, at most three levels deep; None if there is none."""
    if depth > 3 or not isinstance(value, dict | list):
        return None
    if isinstance(value, list):
        return reasons_of(value[0], names, depth + 1) if len(value) == 1 else None
    for key, inner in value.items():
        if "".join(c for c in key.casefold() if c.isalpha()) in names:
            [inner] = inner if isinstance(inner, list) and len(inner) == 1 else [inner]
            if isinstance(inner, str | int) and not isinstance(inner, bool):
                return str(inner)
    for inner in value.values():
        if (reasons := reasons_of(inner, names, depth + 1)) is not None:
            return reasons
    return None


def _surrounding_text(text: str, answer: CandidateAnswer[Any]) -> str:
    """Return the text around an answer that holds no reasons itself."""
    rest = f"{text[: answer.start].rstrip('*`#- ')}\n{text[answer.end :]}".replace("```json", "").replace("```", "")
    return rest.strip(" \n*;")[:REASONS]


def _complaint(text: str, question: AnswerParser[Any], errors: _Errors) -> str:
    """Return what is wrong with a reply without an answer, and the position of its first JSON error."""
    start = text.find("{")
    missing = f"there is no {question.answer_name} in the reply"
    message = errors.messages[-1][1] if errors.messages else question.hint(text) or missing
    if start < 0:
        return f"{message}, and no JSON object" if message == missing else message
    try:
        json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        excerpt = text[max(error.pos - 30, start) : error.pos + 10]
        return f"{message}; its JSON breaks at line {error.lineno}, column {error.colno}, near {excerpt!r}: {error.msg}"
    except (RecursionError, ValueError):
        return f"{message}; its JSON is nested too deep or holds a number too long"
    return message
