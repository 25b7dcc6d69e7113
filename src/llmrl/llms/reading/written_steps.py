"""Search of texts for plans: under a label, on lines, as calls, in tables, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL, CandidateAnswer
from llmrl.llms.reading.json_and_markup import strip_tags
from llmrl.llms.reading.latex_and_tables import find_tables, strip_latex
from llmrl.llms.reading.name_matcher import NameMatcher, negated, words
from llmrl.llms.reading.non_answer_text import is_conditional, is_doubtful, is_reopened
from llmrl.llms.reading.number_parser import ORDINALS
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import blank_spans, to_ascii

Step = tuple[str, str]
"""Skill and its object; "" for no object."""

_OBJECTS = load_word_list("objects")
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
# Start of a line of a list: a bullet, a number, `Step 2 -`, an ordinal.
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
_STEP_NUMBER = re.compile(r"\A\W*(?:step\W*)?(\d{1,2})|\A\W*([\u2460-\u2473])", re.IGNORECASE)
_LATEX_BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
SPLIT = re.compile(
    r",\s*(?:and\s+)?(?:then\s+)?|;|\s*(?:->|\u2192|=>|\u27f6|>>)\s*|\n|\bthen\b|\bafter that\b|(?:^|(?<=\s)|"
    r"(?<=,))\(?\d{1,2}[.)]\s+|"
    r"\.(?:\s|$)"
)
_INLINE = re.compile(r"[\s,]\(?\d{1,2}[.)]\s")
_CALL = re.compile(r"(?<![\w.])(?:\w{1,20}\.)?([A-Za-z][\w-]{0,30}(?: [A-Za-z]\w{0,20}){0,3})\(\s*([^()\n]{0,60})\s*\)")
_FILLER = re.compile(
    r"(?:\s|[`*_;,.\u2022>|-]|\d{1,2}[.)]|->|=>|\u2192|#[^\n]*|//[^\n]*|\bthen\b|\band\b|\bawait\b|\bstep \d:?)*",
    re.IGNORECASE,
)
_SUBCLAUSE = load_pattern("subclauses")
_REASON = re.compile(
    r"[.!;](?:\s|\Z)|\s[-\u2013\u2014]\s|:\s|\s\((?=[a-zA-Z ])|,?\s+(?:because|since|so that|as (?=it|the|there|"
    r"this|we|that)|"
    r"in order|which|where|while|for (?:it|the agent) to)\b|,\s+(?:as|so|to|and now|now|it|the|this)\b|"
    r"\s+to (?:get|see|find|free|make|"
    r"be able|reveal|look|check)\b|\s+(?:that|who) ",
    re.IGNORECASE,
)
_OPEN = load_pattern("open_plans")
_NON_PLAN_HEADING = re.compile(
    r"\b(?:skills|available|possible|options?|vocabulary|objects|sees|allowed|rules|example|not|cannot|can't|never|don't|"
    r"wrong|impossible|if|other agents?|others)\b[^\n]*:?\s*\Z",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r",?\s+(?:and )?so\s+(?=the|it|i\b|we|this|agent)|;\s+|,?\s+(?:therefore|thus|hence),?\s+|:\s+", re.IGNORECASE
)


class StepParser(Protocol):
    """The part of `PlanParser` that `PlanFinder` uses. `max_steps` is the maximum number of steps."""

    skills: list[tuple[str, bool]]
    names: NameMatcher
    max_steps: int

    def step(self, raw_step: Any, previous_object: str = "") -> Step | str: ...
    def plan(self, steps: Sequence[Any]) -> tuple[Step, ...]: ...
    def of_string(self, text: str) -> tuple[Step, ...] | None: ...
    def is_possible(self, step: Step | str) -> bool: ...


class PlanFinder:
    """Finder of plans in texts.

    Args:
        step_parser: parser of single steps.
        agent_name: name of the agent, in addition to `the agent`; "" if it has none.
    """

    def __init__(self, step_parser: StepParser, agent_name: str = "") -> None:
        self.step_parser = step_parser
        self._cue = _cues(agent_name)

    def find_plans(self, text: str, truncated: bool) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return all plans in a text."""
        text = strip_latex(to_ascii(strip_tags(text)))
        candidates = []
        for match in _LATEX_BOX.finditer(text):
            candidates += self._candidate(match.start(), match.end(), _PREFIX.sub("", match[1]).strip(" {}"))
        for match in _LABEL.finditer(text):
            candidates += self._labeled_plans(text, match.start(), match.end(), truncated)
        if not truncated:
            candidates += self._table_plans(text)
        if candidates or truncated:
            return candidates
        text = blank_spans(text, ((table.start, table.end) for table in find_tables(text)))
        return self._list_plans(text) or self._call_plans(text) or self._bare_plan(text)

    def parse_sentences(self, text: str) -> tuple[Step, ...] | None:
        """Return the plan that the sentences of a text give; None if there is none."""
        if REFUSAL.search(text) or _OPEN.search(text) or is_reopened(text):
            return None
        steps: list[Step] = []
        for sentence in re.split(r"(?<=[.!?])\s+|\n+|\u3002", text)[:100]:
            for part in _CONSEQUENCE.split(sentence):
                cue = self._cue.search(part)
                if cue is None:
                    continue
                instruction = _SUBCLAUSE.split(part[cue.end() :], maxsplit=1)[0]
                if negated(f"{part[: cue.end()]}{instruction}"):
                    continue
                clause_steps = self._parse_steps(instruction, steps)
                if clause_steps is None or (clause_steps and is_conditional(part)):
                    return None
                steps += clause_steps
        return tuple(steps[: self.step_parser.max_steps]) or None

    def _parse_steps(self, instruction: str, previous: Sequence[Step]) -> list[Step] | None:
        """Return the steps of a sentence; None if one of them is invalid."""
        steps: list[Step] = []
        for clause in re.split(r"[,;]|\band\b|\bthen\b|\uff0c", instruction):
            start = next(iter(self.step_parser.names.mentions(clause)), None)
            if start is None:
                continue
            last = (*previous, *steps)[-1:]
            step = self.step_parser.step(clause[start[0] :], last[0][1] if last else "")
            if isinstance(step, str):
                return None
            steps.append(step)
        return steps

    def _candidate(self, start: int, end: int, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        if _PLACEHOLDER.search(text):
            return []
        try:
            plan = self.step_parser.of_string(text)
        except InvalidReply as error:
            return [CandidateAnswer(start, end, (), error=str(error))]
        return [CandidateAnswer(start, end, plan)] if plan else []

    def _labeled_plans(
        self, text: str, start: int, content_start: int, truncated: bool
    ) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return the plans that follow a label: a list in brackets, a line, or numbered lines."""
        rest = text[content_start : content_start + 4000]
        if rest.startswith(("{", "[")):
            sign = "}" if rest[0] == "{" else "]"
            closing = rest.find(sign)
            while (
                closing >= 0
                and (separator := re.compile(rf"\s*,?\s*(?:then\s+)?\{rest[0]}").match(rest, closing + 1))
                and rest.find(sign, separator.end()) >= 0
            ):
                closing = rest.find(sign, separator.end())
            inner = re.sub(
                rf"\{sign}\s*,?\s*(?:then\s+)?\{rest[0]}", ", ", rest[1 : closing if closing >= 0 else len(rest)]
            )
            if '"' in inner or ":" in inner or (truncated and closing < 0):
                return []
            end = content_start + (closing + 1 if closing >= 0 else len(rest))
            return self._candidate(start, end, inner)
        items = []
        last = content_start
        for item in _ITEM.finditer(rest):
            if rest[last - content_start : item.start()].strip():
                break
            items.append(item[1])
            last = content_start + item.end()
        if len(items) > 1 or (items and not _INLINE.search(items[0])):
            return self._plan(start, last, items) if not (truncated and last >= len(text.rstrip())) else []
        line = rest.split("\n", 1)[0]
        if not line.strip() or (truncated and content_start + len(line) >= len(text.rstrip())):
            return []
        candidates = self._candidate(start, content_start + len(line), line.strip(" *`"))
        return [candidate for candidate in candidates if not candidate.error]

    def _plan(
        self, start: int, end: int, items: Sequence[str], form: int = 2
    ) -> list[CandidateAnswer[tuple[Step, ...]]]:
        instructions = [_instruction(item) for item in items]
        if len(instructions) > 2 and [
            self.step_parser.names.exact(instruction) for instruction in instructions
        ] == list(range(len(self.step_parser.skills))):
            return []  # the list of all skills
        try:
            return [CandidateAnswer(start, end, self.step_parser.plan(instructions), form=form)]
        except InvalidReply:
            return []

    def _list_plans(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return the plans among the lists of a text. Each line of such a list begins with a step."""
        items = list(_ITEM.finditer(text))[:300]
        if not items or REFUSAL.search(text) or _OPEN.search(text):
            return []
        candidates = []
        for run in _split_lists(text, items):
            heading = text[max(text.rfind("\n\n", 0, run[0].start()), run[0].start() - 200, 0) : run[0].start()]
            heading = heading.strip().rsplit("\n", 1)[-1]
            if _NON_PLAN_HEADING.search(heading) or (heading.endswith(":") and is_doubtful(heading)):
                continue
            instructions = [_instruction(item[1]) for item in run]
            steps = [self.step_parser.step(instruction) for instruction in instructions]
            if all(isinstance(step, str) for step in steps) or not self.step_parser.is_possible(steps[0]):
                continue
            wordy = any(
                len(words(instruction)) > 7
                for instruction, step in zip(instructions, steps, strict=True)
                if isinstance(step, str)
            )
            if all(map(self.step_parser.is_possible, steps)) or (len(run) > 1 and not wordy):
                candidates += self._plan(run[0].start(), run[-1].end(), [item[1] for item in run], form=1)
        return candidates

    def _call_plans(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return plans of consecutive calls such as `go_to(key)`.

        A single call counts only if it is alone on its line.
        """
        runs: list[list[tuple[int, int, str]]] = []
        for call in _CALL.finditer(text):
            # `the calls are go_to(key)`: the call starts at the words that name a skill, else at the last word.
            starts = [call.start(1), *(call.start(1) + space.end() for space in re.finditer(" ", call[1]))]
            skills = [at for at in starts if self.step_parser.names.exact(text[at : call.end(1)]) is not None]
            start = [*skills, starts[-1]][0]
            if runs and _FILLER.fullmatch(text[runs[-1][-1][1] : start]):
                runs[-1].append((start, call.end(), text[start : call.end(1)]))
            else:
                runs.append([(start, call.end(), text[start : call.end(1)])])
        candidates = []
        for run in runs[:50]:
            begin, end = run[0][0], run[-1][1]
            line = text[text.rfind("\n", 0, begin) + 1 : begin]
            if len(run) == 1 and not (_FILLER.fullmatch(line) and _FILLER.fullmatch(text[end:].split("\n", 1)[0])):
                continue
            if self.step_parser.names.exact(run[0][2]) is not None:
                candidates += self._plan(begin, end, [text[first:last] for first, last, _ in run], form=1)
        return candidates if not _OPEN.search(text) else []

    def _table_plans(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return the plans of tables with one row for each step."""
        candidates = []
        for table in find_tables(text):
            skill = table.column_index(("skill", "action", "name", "verb", "command", "what", "step"))
            target = table.column_index([word for word in _OBJECTS if word not in ("on", "to", "agent")])
            if skill is None:
                continue
            if target is None or target == skill:
                instructions = [row[skill] if skill < len(row) else "" for row in table.rows]
            else:
                rows = [row for row in table.rows if max(skill, target) < len(row)]
                instructions = [f"{row[skill]} <{row[target].strip(' <>-')}>" for row in rows]
            if instructions and self.step_parser.is_possible(self.step_parser.step(instructions[0])):
                candidates += self._plan(table.start, table.end, instructions, form=1)
        return candidates

    def _bare_plan(self, text: str) -> list[CandidateAnswer[tuple[Step, ...]]]:
        """Return the plan of a text whose lines consist of steps only."""
        lines = [line.strip(" *`.") for line in text.strip().splitlines() if line.strip(" *`.")]
        if not lines or len(lines) > self.step_parser.max_steps or len(text) > 2000:
            return []
        lines = [re.sub(r"^\(([^()]*)\)$", r"\1", line) for line in lines]
        items = [item for line in lines for item in SPLIT.split(line.strip("{}[] ")) if item and item.strip()]
        steps: list[Step | str] = []
        for item in items:
            steps.append(self.step_parser.step(item, steps[-1][1] if steps and not isinstance(steps[-1], str) else ""))
        wordy = any(len(words(item)) > 7 for item in items)
        if wordy or not all(map(self.step_parser.is_possible, steps)) or all(isinstance(step, str) for step in steps):
            return []
        return [CandidateAnswer(0, len(text), tuple(step for step in steps if not isinstance(step, str)), form=1)]


def _split_lists(text: str, items: Sequence[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Split lines into lists.

    A list ends where the numbers restart, or before other kinds of lines after a paragraph.
    """
    run: list[re.Match[str]] = []
    for item in items:
        if run:
            number, last = _number(item[0]), _number(run[-1][0])
            has_gap = bool(text[run[-1].end() : item.start()].strip())
            anew = number is not None and last is not None and number <= last
            if anew or (number is None) != (last is None) or (has_gap and number is None):
                yield run
                run = []
        run.append(item)
    if run:
        yield run


def _number(line: str) -> int | None:
    match = _STEP_NUMBER.match(line)
    return None if match is None else int(match[1]) if match[1] else ord(match[2]) - 0x245F


def _instruction(item: str) -> str:
    """Return the instruction of a line of a list, without the reason for it."""
    item = re.sub(r"[*`]{1,3}|__|\b(?:skill|object|action)\s?[:=]", " ", item).strip(" _")
    first = _REASON.split(item, maxsplit=1)[0].strip()
    return first or item


def _cues(agent_name: str) -> re.Pattern[str]:
    """Return the pattern of sentence beginnings that say what the agent should do."""
    agent = rf"(?:(?:the|this) agent|it|i|we{'|' + re.escape(agent_name) if agent_name else ''})"
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
