"""From a reply to the one answer in it: what stands in it is weighed, and nothing is chosen where nothing decides."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from llmrl.llms.reading.said import Said, plain, said
from llmrl.llms.reading.structures import Found, structures, without_tags
from llmrl.llms.structured import InvalidReply

T = TypeVar("T")

REASONS = 2000
"""Characters of a reply that are kept as its reasons where it does not say which those are."""
_BEFORE = 160
"""Characters before a value that are looked at for what it is called."""

_DECISIVE = re.compile(
    r"\bwait\b|\bactually\b|\bcorrect(?:ion|ed|ing)?\b|\binstead\b|\brather\b|\bfinal(?:ly)?\b|\brevis\w+|"
    r"\bsecond thoughts?\b|"
    r"\bon reflection\b|\bhmm\b|\bno[,:]|\bno wait\b|\blet me (?:fix|redo|change|revise|instead|go with|"
    r"correct)\b|\bi(?:'ll| will)? (?:choose|pick|select|submit|"
    r"propose|decide|prefer|go with)\b|\bgoing with\b|"
    r"\bnow,? i\b|\bnow\s*:|\bi(?:'ll| will)? now\b|\bthis time\b|\bnew proposal\b|"
    r"\bmy (?:own )?(?:answer|action|proposal|plan|choice|next|"
    r"reply|response|decision|move)\b|"
    r"\banswer\s*(?:\w+\s*){0,3}:|\bcurrent turn\b|\bbetter\b|\bupdated?\b|\bmistake\b|\bmisread\b|\bsorry\b|"
    r"\bapolog\w+|\bin fact\b|\bshould be\b|"
    r"\u66f4\u6b63|\u6700\u7ec8|\u4fee\u6b63|\u4e0d\u5bf9|\bkorrektur\b|\bendg\u00fcltig\b|\brichtig ist\b|"
    r"\bfinalement\b|\bcorrecci\u00f3n\b",
    re.IGNORECASE,
)
# What is called an example, or the form of an answer, and what is called another's or a wrong one.
_EXAMPLE = re.compile(
    r"\bfor example\b|\be\.g\.|\bfor instance\b|\bexample\b[^.{\n]{0,60}[:(]\s*\Z|\bsuch as\b|\bsomething like\b|"
    r"\bwould look like\b|\bz\. ?b\.|\bpar exemple\b|\bpor ejemplo\b|\u4f8b\u5982|\u6bd4\u5982|"
    r"\b(?:this|the following|following|right|correct|expected|required|requested) (?:json )?"
    r"(?:form|format|structure|schema)\s*[:.]?\s*(?:`{3,}|~{3,})?\w*\s*\Z",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    r"\b(?:wrong|bad|invalid|incorrect)\b[^.{\n]{0,40}\Z|\b(?:not|instead of|rather than)\s*\Z|"
    r"\b(?:previous|last|earlier) (?:turn|answer|reply|action|plan)\b[^.{\n]{0,30}\Z",
    re.IGNORECASE,
)
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
    r"incorrect|rejected|bad|forbidden|risky)",
    re.IGNORECASE,
)
_LATER = re.compile(r"\b(?:next(?:,| step\b| turn\b| time\b)|after that\b|afterwards\b|later\b|then,)", re.IGNORECASE)
_ECHOES = re.compile(r"\bas (?:in|stated|shown|given|listed)\b[^.\n]{0,30}\b(?:json|above|before)\b", re.IGNORECASE)
REFUSAL = re.compile(
    r"\bi(?:'m| am) (?:sorry|unable|not able)\b|\bi (?:can't|cannot|can not|could not|couldn't|"
    r"(?:won't|will not) (?:be able|answer|choose|decide|help|provide|give|play|participate|continue|engage|do th|"
    r"comply|make|take part|respond)|"
    r"don't think i can|do not have (?:enough|the ability))\b|"
    r"\bas an ai\b|\blanguage model\b|\bi(?:'d| would) rather not\b|\bunable to\b|\bimpossible to\b|\bdifficult "
    r"to determine\b|"
    r"\b(?:could|can|would) you (?:please )?(?:tell|share|provide|clarify|confirm|send|let)\b|\blet me know "
    r"(?:which|what|when|if you|so)\b|"
    r"\bplease (?:send|provide|share|tell|clarify|let me know|retry)\b|\bwhich (?:one )?(?:do|would) you\b|"
    r"\bdepend(?:s|ing) on\b|\btimed out\b|"
    r"\u65e0\u6cd5|\u62b1\u6b49|\u4e0d\u80fd\u56de\u7b54|\bes tut mir leid\b|\bje suis d\u00e9sol\u00e9\b|\blo "
    r"siento\b",
    re.IGNORECASE,
)
"""Says that no decision was made, or asks for one."""
_HOLLOW = re.compile(r"\A\W*(?:\.\.\.|\u2026|<[^<>]*>)?\W*\Z")


@dataclass
class Candidate(Generic[T]):
    """An answer that stands in a reply.

    Attributes:
        start, end: where.
        answer: what it means.
        reasons: why, in the reply's words; "" where it does not say.
        form: 2: the form that was asked for, or another that can be nothing but an answer; 1: less certain ones, which
            count where there is no other.
        weak: it is like the example of the prompt.
        announced: it says itself that it is the answer to this question.
        kept: what it says under one of the question's names for what is kept; "" where it does not.
        fault: why it cannot be used; "" if it can.
    """

    start: int
    end: int
    answer: T
    reasons: str = ""
    form: int = 2
    weak: bool = False
    announced: bool = False
    fault: str = ""
    kept: str = ""


@dataclass(frozen=True)
class Understood(Generic[T]):
    """What a reply says: the answer, and the reasons and what is `kept` beside it ("" where there are none)."""

    answer: T
    reasons: str = ""
    kept: str = ""


class Question(ABC, Generic[T]):
    """What a reader needs to know of a question to find its answer in a reply.

    Attributes:
        wanted: what is asked for, as complaints call it.
        reasons: names under which a reply says why.
        kept: names under which a reply says what is to be kept for later questions.
        turn: what begins another turn of this kind of conversation in a reply that goes on by itself; None: nothing.
    """

    wanted: str
    reasons: tuple[str, ...] = (
        "reasoning",
        "reflection",
        "reason",
        "reasons",
        "thought",
        "explanation",
        "rationale",
        "why",
    )
    kept: tuple[str, ...] = ()
    turn: re.Pattern[str] | None = None

    @abstractmethod
    def of_value(self, value: Any) -> T | None:
        """The answer that a value means; None where it is none at all.

        Raises:
            InvalidReply: it is one, but not one that can be used.
        """

    def of_text(self, text: str, cut: bool) -> list[Candidate[T]]:
        """The answers that stand in a text under a label or in another form of words."""
        return []

    def of_prose(self, text: str) -> T | None:
        """The answer that sentences give."""
        return None

    def hint(self, text: str) -> str:
        """What a reply without an answer lacks, in words; "" where there is nothing to say."""
        return ""

    def mine(self, text: str, candidate: Candidate[T]) -> bool | None:
        """Whether a candidate says that it answers this question (True) or another one (False)."""
        return None

    def same(self, a: T, b: T) -> bool:
        """Whether two answers are one."""
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return np.array_equal(a, b)
        return bool(a == b)


@dataclass
class _Faults:
    """What was wrong with what looked like an answer, and where; whether examples were left out."""

    told: list[tuple[int, str]] = field(default_factory=list)
    left_out: bool = False


def understand(text: str, question: Question[T], cut: bool = False) -> Understood[T]:
    """The answer in a reply, in time linear in its length.

    Of several answers the one after the last thought counts, and the later of two where the reply says so. Different
    ones with nothing between them that decides are none.

    Args:
        text: the reply, as the provider gave it.
        question: what was asked.
        cut: it ended because it grew too long.

    Raises:
        InvalidReply: it holds no answer, or none that can be used.
    """
    reply = said(text, cut)
    if not reply.text.strip() and reply.thought is None:
        raise InvalidReply(f"the reply is empty: there is no {question.wanted} in it")
    if reply.thought is None:
        return _read(reply, question)
    if cut:
        raise InvalidReply(f"the reply ends inside a thought: there is no {question.wanted} after it")
    try:
        return _read(reply, question, prose=False)
    except InvalidReply:
        pass
    return _read_thought(reply.thought, question)


def _read_thought(thought: str, question: Question[T]) -> Understood[T]:
    """A thought that never ends counts if a whole answer ends it."""
    faults = _Faults()
    found = [each for each in _candidates(thought, question, False, faults) if each.form == 2]
    rest = thought[found[-1].end :].strip("`~ \n") if found else ""
    if not found or len(rest) > 100 or "\n" in rest:
        raise InvalidReply(f"the reply ends inside a thought: there is no {question.wanted} after it")
    return Understood(found[-1].answer, found[-1].reasons, found[-1].kept)


def _read(reply: Said, question: Question[T], prose: bool = True) -> Understood[T]:
    text = reply.text
    faults = _Faults()
    found = _candidates(text, question, reply.cut, faults)
    late = [each for each in found if each.end > reply.after]
    chosen = _decided(text, late or found, question, faults)
    if chosen is not None:
        return Understood(chosen.answer, chosen.reasons or _around(text, chosen), chosen.kept)
    if prose and not faults.told and not faults.left_out and not reply.cut:
        spoken = text[reply.after :] if text[reply.after :].strip() else text
        answer = question.of_prose(plain(without_tags(spoken)))
        if answer is not None:
            return Understood(answer, " ".join(spoken.split())[:REASONS])
    raise InvalidReply(_complaint(text, question, faults))


def _candidates(text: str, question: Question[T], cut: bool, faults: _Faults) -> list[Candidate[T]]:
    """All that may be the answer, in order, without what is quoted or an example."""
    values = structures(text, cut)
    spoilt: list[tuple[int, int]] = []
    found: list[Candidate[T]] = []
    for each in values:
        try:
            answer = question.of_value(each.value)
        except InvalidReply as fault:
            if not _quoted(text, each.start, each.end):
                faults.told.append((each.start, str(fault)))
            spoilt.append((each.start, each.end))
            continue
        if answer is not None:
            bare = not isinstance(each.value, dict)
            reasons = reasons_of(each.value, question.reasons)
            candidate = Candidate(each.start, each.end, answer, reasons or "", form=1 if bare else 2)
            candidate.kept = (question.kept and reasons_of(each.value, question.kept)) or ""
            candidate.weak = reasons is not None and bool(_HOLLOW.match(reasons)) and reasons != ""
            found.append(candidate)
    inside = [(each.start, each.end) for each in found] + spoilt
    for other in question.of_text(text, cut):
        if not any(a <= other.start and other.end <= b for a, b in inside) and not _in_json(other, values):
            if other.fault:
                faults.told.append((other.start, other.fault))
            else:
                found.append(other)
    found.sort(key=lambda each: (each.end, each.start))
    said = [each for each in found if not _quoted(text, each.start, each.end)]
    kept = _without_examples(text, said, sorted(each.end for each in values), question, cut)
    faults.left_out = len(kept) < len(found)
    return kept


def _in_json(candidate: Candidate[Any], values: Sequence[Found]) -> bool:
    """Whether what follows a label is a part of an object: that speaks for itself."""
    return any(
        isinstance(each.value, dict)
        and each.start < candidate.end
        and candidate.start < each.end
        and not (each.start <= candidate.start and candidate.end <= each.end)
        and not (candidate.start <= each.start and each.end <= candidate.end)
        for each in values
    )


def _without_examples(
    text: str, found: list[Candidate[T]], ends: Sequence[int], question: Question[T], cut: bool
) -> list[Candidate[T]]:
    """Those that are no examples and no answers to other questions; `ends` are where values end."""
    kept: list[Candidate[T]] = []
    last = 0
    for each in found:
        at = bisect_right(ends, each.start)
        before = text[
            max(last if last <= each.start else 0, ends[at - 1] if at else 0, each.start - _BEFORE) : each.start
        ]
        last = each.end
        mine = question.mine(text, each)
        if mine is False:
            continue
        each.announced = mine is True
        if cut and each.form == 1 and text[: each.start].strip():
            continue
        example = _EXAMPLE.search(before)
        if (
            example
            and not _OWN.search(before, example.start())
            and not (_OWN.search(before) and example.end() == len(before))
        ):
            continue
        if _BEST.search(before) and not _KEEPS.search(before):
            continue  # what was tried, and not what is to be
        if _REJECTED.search(before) or _DISCLAIMED.match(text[each.end : each.end + 60]):
            continue
        kept.append(each)
    if any(each.announced for each in kept):
        kept = [each for each in kept if each.announced]
    if any(each.form == 2 for each in kept):
        kept = [each for each in kept if each.form == 2]
    strong = [each for each in kept if not each.weak]
    return strong or kept


def _decided(text: str, found: list[Candidate[T]], question: Question[T], faults: _Faults) -> Candidate[T] | None:
    """The one that counts; None where there is none.

    Raises:
        InvalidReply: there are different ones, and nothing decides.
    """
    if not found:
        return None
    current, clash, last = found[0], False, found[0].end
    for each in found[1:]:
        between, last = text[last : each.start], max(last, each.end)
        if _LATER.search(between) or (question.turn is not None and question.turn.search(between)):
            break
        if question.same(current.answer, each.answer):
            if each.end > current.end and not (each.reasons == "" and current.reasons):
                current = each
        elif _DECISIVE.search(plain(between)) and not _ECHOES.search(text[each.end : each.end + 80]):
            current, clash = each, False
        else:
            clash = True
    if faults.told:
        start, fault = faults.told[-1]
        between = plain(text[max(current.end, start - 300) : start])
        if _DECISIVE.search(between) and not (question.turn is not None and question.turn.search(between)):
            raise InvalidReply(fault)  # the answer was replaced by one that cannot be used
    if clash:
        raise InvalidReply(
            f"there are several different answers in the reply, and nothing says which counts; give one "
            f"{question.wanted}"
        )
    return current


def _quoted(text: str, start: int, end: int) -> bool:
    """Whether what stands there is part of somebody's words in quotes, of which there is more."""
    line = plain(text[max(text.rfind("\n", 0, start) + 1, start - 1000) : start])
    after = plain(text[end : end + 3]).lstrip(" .!?)")
    opening = line.rstrip()
    if not after.startswith('"') or not opening or line.count('"') % 2 == 0:
        return False
    return not opening.endswith('"') or bool(opening[:-1].strip("`*-> \t"))


def reasons_of(value: Any, names: Sequence[str], depth: int = 0) -> str | None:
    """The text that a value gives as its reasons; None where it has none."""
    if depth > 3 or not isinstance(value, dict | list):
        return None
    if isinstance(value, list):
        return reasons_of(value[0], names, depth + 1) if len(value) == 1 else None
    for key, inner in value.items():
        if isinstance(inner, str) and "".join(c for c in key.casefold() if c.isalpha()) in names:
            return inner
    for inner in value.values():
        if (found := reasons_of(inner, names, depth + 1)) is not None:
            return found
    return None


def _around(text: str, chosen: Candidate[Any]) -> str:
    """What is said beside an answer that gives no reasons itself."""
    around = f"{text[: chosen.start].rstrip('*`#- ')}\n{text[chosen.end :]}".replace("```json", "").replace("```", "")
    return around.strip(" \n*;")[:REASONS]


def _complaint(text: str, question: Question[Any], faults: _Faults) -> str:
    """What is wrong with a reply without an answer, and where its JSON breaks, if it does."""
    start = text.find("{")
    missing = f"there is no {question.wanted} in the reply"
    said = faults.told[-1][1] if faults.told else question.hint(text) or missing
    if start < 0:
        return f"{said}, and no JSON object" if said == missing else said
    try:
        json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        near = text[max(error.pos - 30, start) : error.pos + 10]
        return f"{said}; its JSON breaks at line {error.lineno}, column {error.colno}, near {near!r}: {error.msg}"
    except (RecursionError, ValueError):
        return f"{said}; its JSON is nested too deep or holds a number too long"
    return said
