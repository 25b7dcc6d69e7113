"""Plans as they are written in texts: under a label, on lines, as calls, in tables, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from llmrl.llms.reading.answer_parser import REFUSAL, CandidateAnswer
from llmrl.llms.reading.json_and_markup import without_tags
from llmrl.llms.reading.latex import untexed
from llmrl.llms.reading.name_matcher import NameMatcher, negated, words
from llmrl.llms.reading.number_parser import ORDINALS
from llmrl.llms.reading.reply_cleaning import blank_spans, plain
from llmrl.llms.reading.tables import tables
from llmrl.llms.reading.word_lists import listed
from llmrl.llms.structured import InvalidReply

Step = tuple[str, str]
"""A skill and its object, "" for none."""

_OBJECTS = listed("objects")
_PLACEHOLDER = re.compile(r"<\s*(?:skill|object|action|why|at most[^<>]*)\s*\d?\s*>", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:^|(?<=[.!?]\s)|(?<=\*\*))[ \t>*#_\-\u2022\d.)]{0,20}(?:step[ \t]*\d{1,2}[.:)][ \t]*)?(?:the |my |final |"
    r"revised |new |corrected |next |best |own ){0,3}(?:actions?|plans?|answer|steps|sequence|skills|"
    r"\u8ba1\u5212|\u884c\u52a8)\b"
    r"[ \t]*(?:\([^()\n]{0,60}\))?[ \t]*[*_`]{0,3}[ \t]*(?:[:=]|\bis\b:?|\n)[ \t*_`]*(?:\n[ \t]*){0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_PREFIX = re.compile(
    r"\A\s*(?:the |my |final |best )*(?:action|plan|answer|steps|sequence)\s*(?:=|:|\bis\b)\s*", re.IGNORECASE
)
# What begins a line of a list: a bullet, a number, `Step 2 -`, an ordinal.
_BEGINS = (
    r"(?:[-*\u2022\u25cf]|\(?\d{1,2}[.):,]\)?|\(\d{1,2}\)|[\u2460-\u2473]|\d\u20e3)"
    r"[ \t]*[*_]{0,2}(?=[^\d\s]|[ \t])[ \t]*"
)
_STEP = r"(?:step|schritt|\u6b65\u9aa4)[ \t]*\#?\d{1,2}\b[ \t*_]*(?:[.):\u2013\u2014-][ \t*_]*)?"
_ORDER = rf"(?:{'|'.join(ORDINALS)}|finally|then|next|last(?:ly)?|after that)(?:ly)?[ \t*_]*[:\u2013\u2014-][ \t*_]*"
_ITEM = re.compile(
    rf"^[ \t>#*_]*(?:{_BEGINS}[*_]{{0,2}}(?:{_STEP}|{_ORDER})?|{_STEP}|{_ORDER})([^\n]{{1,400}})$",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBERED = re.compile(r"\A\W*(?:step\W*)?(\d{1,2})|\A\W*([\u2460-\u2473])", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
SPLIT = re.compile(
    r",\s*(?:and\s+)?(?:then\s+)?|;|\s*(?:->|\u2192|=>|\u27f6|>>)\s*|\n|\bthen\b|\bafter that\b|(?:^|(?<=\s)|"
    r"(?<=,))\(?\d{1,2}[.)]\s+|"
    r"\.(?:\s|$)"
)
_INLINE = re.compile(r"[\s,]\(?\d{1,2}[.)]\s")
_CALL = re.compile(r"(?<![\w.])(?:\w{1,20}\.)?([A-Za-z][\w-]{0,30}(?: [A-Za-z]\w{0,20}){0,3})\(\s*([^()\n]{0,60})\s*\)")
_THIN = re.compile(
    r"(?:\s|[`*_;,.\u2022>|-]|\d{1,2}[.)]|->|=>|\u2192|#[^\n]*|//[^\n]*|\bthen\b|\band\b|\bawait\b|\bstep \d:?)*",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\b(?:because|since|so that|in order to|as (?:it|the|there|this)|while|which|who|to (?:find|get|open|"
    r"unlock|reach|avoid|free|make)|where|without|before|until|if|unless|directly)\b|\(",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"[.!;](?:\s|\Z)|\s[-\u2013\u2014]\s|:\s|\s\((?=[a-zA-Z ])|,?\s+(?:because|since|so that|as (?=it|the|there|"
    r"this|we|that)|"
    r"in order|which|where|while|for (?:it|the agent) to)\b|,\s+(?:as|so|to|and now|now|it|the|this)\b|"
    r"\s+to (?:get|see|find|free|make|"
    r"be able|reveal|look|check)\b|\s+(?:that|who) ",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"\b(?:either|or|could|might|may|consider|alternatives?|options?|possible|suggest that you|up to you|"
    r"directions?)\b",
    re.IGNORECASE,
)
_HEADS_OTHERS = re.compile(
    r"\b(?:skills|available|possible|options?|vocabulary|objects|sees|allowed|rules|example|not|cannot|can't|never|don't|"
    r"wrong|impossible|if|other agents?|others)\b[^\n]*:?\s*\Z",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r",?\s+(?:and )?so\s+(?=the|it|i\b|we|this|agent)|;\s+|,?\s+(?:therefore|thus|hence),?\s+|:\s+", re.IGNORECASE
)


class StepMeaning(Protocol):
    """The part of `PlanParser` that texts need: `most` is the largest number of steps."""

    skills: list[tuple[str, bool]]
    names: NameMatcher
    most: int

    def step(self, said: Any, before: str = "") -> Step | str: ...
    def plan(self, steps: Sequence[Any]) -> tuple[Step, ...]: ...
    def of_string(self, text: str) -> tuple[Step, ...] | None: ...
    def possible(self, step: Step | str) -> bool: ...


class WrittenSteps:
    """Finds plans in texts.

    Args:
        meaning: what tells what a step means.
        own: what the agent is called, beside `the agent`; "" if nothing.
    """

    def __init__(self, meaning: StepMeaning, own: str = "") -> None:
        self.meaning = meaning
        self._cue = _cues(own)

    def found(self, text: str, cut: bool) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """All plans in a text."""
        text = untexed(plain(without_tags(text)))
        found = []
        for match in _BOXED.finditer(text):
            found += self._candidate(match.start(), match.end(), _PREFIX.sub("", match[1]).strip(" {}"))
        for match in _LABEL.finditer(text):
            found += self._labelled(text, match.start(), match.end(), cut)
        if not cut:
            found += self._in_tables(text)
        if found or cut:
            return found
        text = blank_spans(text, ((table.start, table.end) for table in tables(text)))
        return self._listed(text) or self._called(text) or self._bare(text)

    def spoken(self, text: str) -> tuple[Step, ...] | None:
        """The plan that sentences give; None where they give none."""
        if REFUSAL.search(text) or _OPEN.search(text):
            return None
        steps: list[Step] = []
        for sentence in re.split(r"(?<=[.!?])\s+|\n+|\u3002", text)[:100]:
            for part in _CLAUSES.split(sentence):
                cue = self._cue.search(part)
                if cue is None:
                    continue
                said = _ASIDE.split(part[cue.end() :], maxsplit=1)[0]
                if negated(said):
                    continue
                found = self._clauses(said, steps)
                if found is None:
                    return None
                steps += found
        return tuple(steps[: self.meaning.most]) or None

    def _clauses(self, said: str, before: Sequence[Step]) -> list[Step] | None:
        """The steps of a sentence; None where one of them cannot be meant."""
        steps: list[Step] = []
        for clause in re.split(r"[,;]|\band\b|\bthen\b|\uff0c", said):
            start = next(iter(self.meaning.names.mentions(clause)), None)
            if start is None:
                continue
            last = (*before, *steps)[-1:]
            step = self.meaning.step(clause[start[0] :], last[0][1] if last else "")
            if isinstance(step, str):
                return None
            steps.append(step)
        return steps

    def _candidate(self, start: int, end: int, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        if _PLACEHOLDER.search(text):
            return []
        try:
            plan = self.meaning.of_string(text)
        except InvalidReply as fault:
            return [CandidateAnswer(start, end, (), fault=str(fault))]
        return [CandidateAnswer(start, end, plan)] if plan else []

    def _labelled(self, text: str, start: int, inside: int, cut: bool) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """What follows a label: a list in brackets, a line, or numbered lines."""
        rest = text[inside : inside + 4000]
        if rest.startswith(("{", "[")):
            sign = "}" if rest[0] == "{" else "]"
            closing = rest.find(sign)
            while (
                closing >= 0
                and (more := re.compile(rf"\s*,?\s*(?:then\s+)?\{rest[0]}").match(rest, closing + 1))
                and rest.find(sign, more.end()) >= 0
            ):
                closing = rest.find(sign, more.end())
            inner = re.sub(
                rf"\{sign}\s*,?\s*(?:then\s+)?\{rest[0]}", ", ", rest[1 : closing if closing >= 0 else len(rest)]
            )
            if '"' in inner or ":" in inner or (cut and closing < 0):
                return []
            end = inside + (closing + 1 if closing >= 0 else len(rest))
            return self._candidate(start, end, inner)
        items = []
        last = inside
        for item in _ITEM.finditer(rest):
            if rest[last - inside : item.start()].strip():
                break
            items.append(item[1])
            last = inside + item.end()
        if len(items) > 1 or (items and not _INLINE.search(items[0])):
            return self._plan(start, last, items) if not (cut and last >= len(text.rstrip())) else []
        line = rest.split("\n", 1)[0]
        if not line.strip() or (cut and inside + len(line) >= len(text.rstrip())):
            return []
        found = self._candidate(start, inside + len(line), line.strip(" *`"))
        return [each for each in found if not each.fault]

    def _plan(
        self, start: int, end: int, items: Sequence[str], form: int = 2
    ) -> list[CandidateAnswer[tuple[Step, ...]]]:
        said = [_said(item) for item in items]
        if len(said) > 2 and [self.meaning.names.exact(each) for each in said] == list(range(len(self.meaning.skills))):
            return []  # all that there are
        try:
            return [CandidateAnswer(start, end, self.meaning.plan(said), form=form)]
        except InvalidReply:
            return []

    def _listed(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Lines of a list each of which begins with a step; of several lists those that are plans."""
        items = list(_ITEM.finditer(text))[:300]
        if not items or REFUSAL.search(text) or _OPEN.search(text):
            return []
        found = []
        for run in _runs(text, items):
            before = text[max(text.rfind("\n\n", 0, run[0].start()), run[0].start() - 200, 0) : run[0].start()]
            if _HEADS_OTHERS.search(before.strip().rsplit("\n", 1)[-1]):
                continue
            said = [_said(item[1]) for item in run]
            steps = [self.meaning.step(each) for each in said]
            if all(isinstance(step, str) for step in steps) or not self.meaning.possible(steps[0]):
                continue
            wordy = any(len(words(each)) > 7 for each, step in zip(said, steps, strict=True) if isinstance(step, str))
            if all(map(self.meaning.possible, steps)) or (len(run) > 1 and not wordy):
                found += self._plan(run[0].start(), run[-1].end(), [item[1] for item in run], form=1)
        return found

    def _called(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Calls `go_to(key)` one after the other; a single one only where it has its line for itself."""
        runs: list[list[tuple[int, int, str]]] = []
        for call in _CALL.finditer(text):
            # `the calls are go_to(key)`: of the words before the bracket those that are a skill, or the last one.
            starts = [call.start(1), *(call.start(1) + space.end() for space in re.finditer(" ", call[1]))]
            skills = [at for at in starts if self.meaning.names.exact(text[at : call.end(1)]) is not None]
            start = [*skills, starts[-1]][0]
            if runs and _THIN.fullmatch(text[runs[-1][-1][1] : start]):
                runs[-1].append((start, call.end(), text[start : call.end(1)]))
            else:
                runs.append([(start, call.end(), text[start : call.end(1)])])
        found = []
        for run in runs[:50]:
            begin, end = run[0][0], run[-1][1]
            line = text[text.rfind("\n", 0, begin) + 1 : begin]
            if len(run) == 1 and not (_THIN.fullmatch(line) and _THIN.fullmatch(text[end:].split("\n", 1)[0])):
                continue
            if self.meaning.names.exact(run[0][2]) is not None:
                found += self._plan(begin, end, [text[a:b] for a, b, _ in run], form=1)
        return found if not _OPEN.search(text) else []

    def _in_tables(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Tables with a row for each step."""
        found = []
        for table in tables(text):
            skill = table.column(("skill", "action", "name", "verb", "command", "what", "step"))
            thing = table.column([word for word in _OBJECTS if word not in ("on", "to", "agent")])
            if skill is None:
                continue
            if thing is None or thing == skill:
                said = [row[skill] if skill < len(row) else "" for row in table.rows]
            else:
                rows = [row for row in table.rows if max(skill, thing) < len(row)]
                said = [f"{row[skill]} <{row[thing].strip(' <>-')}>" for row in rows]
            if said and self.meaning.possible(self.meaning.step(said[0])):
                found += self._plan(table.start, table.end, said, form=1)
        return found

    def _bare(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Lines that are nothing but steps."""
        lines = [line.strip(" *`.") for line in text.strip().splitlines() if line.strip(" *`.")]
        if not lines or len(lines) > self.meaning.most or len(text) > 2000:
            return []
        lines = [re.sub(r"^\(([^()]*)\)$", r"\1", line) for line in lines]
        items = [item for line in lines for item in SPLIT.split(line.strip("{}[] ")) if item and item.strip()]
        spoken: list[Step | str] = []
        for item in items:
            spoken.append(self.meaning.step(item, spoken[-1][1] if spoken and not isinstance(spoken[-1], str) else ""))
        wordy = any(len(words(item)) > 7 for item in items)
        if wordy or not all(map(self.meaning.possible, spoken)) or all(isinstance(step, str) for step in spoken):
            return []
        return [CandidateAnswer(0, len(text), tuple(step for step in spoken if not isinstance(step, str)), form=1)]


def _runs(text: str, items: Sequence[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Lists, one after the other: a list ends where numbers begin anew, or other kinds of lines follow a paragraph."""
    run: list[re.Match[str]] = []
    for item in items:
        if run:
            number, last = _number(item[0]), _number(run[-1][0])
            apart = bool(text[run[-1].end() : item.start()].strip())
            anew = number is not None and last is not None and number <= last
            if anew or (number is None) != (last is None) or (apart and number is None):
                yield run
                run = []
        run.append(item)
    if run:
        yield run


def _number(line: str) -> int | None:
    match = _NUMBERED.match(line)
    return None if match is None else int(match[1]) if match[1] else ord(match[2]) - 0x245F


def _said(item: str) -> str:
    """What a line of a list says to do, without why."""
    item = re.sub(r"[*`]{1,3}|__|\b(?:skill|object|action)\s?[:=]", " ", item).strip(" _")
    first = _REASON.split(item, maxsplit=1)[0].strip()
    return first or item


def _cues(own: str) -> re.Pattern[str]:
    """A regular expression for the beginnings of sentences that say what the agent is to do."""
    agent = rf"(?:(?:the|this) agent|it|i|we{'|' + re.escape(own) if own else ''})"
    adjectives = r"(?:best|right|next|only|correct|optimal|sensible|natural|obvious|logical|safest|first)"
    nouns = r"(?:choice|thing to do|thing|step|action|move|option|plan|strategy|idea|course(?: of action)?)"
    return re.compile(
        r"\A\W*(?:(?:so|therefore|thus|hence|first|then|next|finally|now|after that|in this (?:case|state|situation)|"
        r"i (?:think|believe|suggest|recommend)(?: that)?)\b\W*)*"
        rf"(?:{agent}(?:'ll|\s+(?:should|must|will|would|shall|needs? to|has to|have to|am going to|is going to|"
        rf"ought to))|"
        r"let's|let us|\b(?<=first)|\b(?<=then)|\u667a\u80fd\u4f53\u5e94\u8be5|"
        rf"(?:the |my |our )?(?:{adjectives} )?{nouns}(?: (?:now|here|next|for {agent}))?(?: is|'s| would be)"
        rf"(?: therefore| thus| now| then| simply)?(?: for {agent})? to\b|"
        rf"it(?: is|'s| would be) (?:best|better|right|necessary|sensible|time)(?: for {agent})? to\b)",
        re.IGNORECASE,
    )
