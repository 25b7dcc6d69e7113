"""Parser of replies that contain plans: steps in JSON, after labels, in lists, as calls, in tables, or in sentences."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL_PHRASE, AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import strip_tags
from llmrl.llms.reading.latex_and_tables import find_tables, strip_latex
from llmrl.llms.reading.name_matcher import has_negation, normalize_name, split_words
from llmrl.llms.reading.non_answer_text import is_conditional, is_doubtful, is_reopened
from llmrl.llms.reading.number_parser import ORDINALS
from llmrl.llms.reading.step_parser import OBJECT_KEYS, SKILL_KEYS, STEP_SEPARATOR, Step, StepParser, is_possible_step
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import blank_spans, to_ascii

Plan = tuple[Step, ...]
PlanCandidates = list[CandidateAnswer[Plan]]

_PLAN_KEYS = load_word_list("plans")
_TOOL_CALL_KEYS = ("arguments", "parameters", "input", "function", "functioncall")
_AGENT_NAME = re.compile(r"\bthe agent is (\w+)", re.IGNORECASE)
_STATE_DESCRIPTION = re.compile(
    r"^[ \t*]*State\W{1,4}(?P<line>[^\n]+)$|\bstate\b[^\n\"]{0,20}\"(?P<quoted>[^\"\n]{1,300})\"",
    re.MULTILINE | re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"<\s*(?:skill|object|action|why|at most[^<>]*)\s*\d?\s*>", re.IGNORECASE)
_PLAN_LABEL = re.compile(
    r"(?:^|(?<=[.!?]\s)|(?<=\*\*))[ \t>*#_\-\u2022\d.)]{0,20}(?:step[ \t]*\d{1,2}[.:)][ \t]*)?(?:the |my |final |"
    r"revised |new |corrected |next |best |own ){0,3}(?:actions?|plans?|answer|steps|sequence|skills|\u8ba1\u5212|"
    r"\u884c\u52a8)\b[ \t]*(?:\([^()\n]{0,60}\))?[ \t]*[*_`]{0,3}[ \t]*(?:[:=]|\bis\b:?|\n)[ \t*_`]*(?:\n[ \t]*){0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_PLAN_PREFIX = re.compile(
    r"\A\s*(?:the |my |final |best )*(?:action|plan|answer|steps|sequence)\s*(?:=|:|\bis\b)\s*", re.IGNORECASE
)
# Start of a list item: a bullet, a number, `Step 2 -`, or an ordinal.
_LIST_MARKER = (
    r"(?:[-*\u2022\u25cf]|\(?\d{1,2}[.):,]\)?|\(\d{1,2}\)|[\u2460-\u2473]|\d\u20e3)"
    r"[ \t]*[*_]{0,2}(?=[^\d\s]|[ \t])[ \t]*"
)
_STEP_LABEL = r"(?:step|schritt|\u6b65\u9aa4)[ \t]*\#?\d{1,2}\b[ \t*_]*(?:[.):\u2013\u2014-][ \t*_]*)?"
_ORDINAL = rf"(?:{'|'.join(ORDINALS)}|finally|then|next|last(?:ly)?|after that)(?:ly)?[ \t*_]*[:\u2013\u2014-][ \t*_]*"
_LIST_ITEM = re.compile(
    rf"^[ \t>#*_]*(?:{_LIST_MARKER}[*_]{{0,2}}(?:{_STEP_LABEL}|{_ORDINAL})?|{_STEP_LABEL}|{_ORDINAL})([^\n]{{1,400}})$",
    re.MULTILINE | re.IGNORECASE,
)
_STEP_NUMBER = re.compile(r"\A\W*(?:step\W*)?(\d{1,2})|\A\W*([\u2460-\u2473])", re.IGNORECASE)
_LATEX_BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
_INLINE_NUMBER = re.compile(r"[\s,]\(?\d{1,2}[.)]\s")
_CALL = re.compile(r"(?<![\w.])(?:\w{1,20}\.)?([A-Za-z][\w-]{0,30}(?: [A-Za-z]\w{0,20}){0,3})\(\s*([^()\n]{0,60})\s*\)")
_SEPARATOR = re.compile(
    r"(?:\s|[`*_;,.\u2022>|-]|\d{1,2}[.)]|->|=>|\u2192|#[^\n]*|//[^\n]*|\bthen\b|\band\b|\bawait\b|\bstep \d:?)*",
    re.IGNORECASE,
)
_SUBCLAUSE = load_pattern("subclauses")
_REASON_START = re.compile(
    r"[.!;](?:\s|\Z)|\s[-\u2013\u2014]\s|:\s|\s\((?=[a-zA-Z ])|,?\s+(?:because|since|so that|as (?=it|the|there|this|"
    r"we|that)|in order|which|where|while|for (?:it|the agent) to)\b|,\s+(?:as|so|to|and now|now|it|the|this)\b|"
    r"\s+to (?:get|see|find|free|make|be able|reveal|look|check)\b|\s+(?:that|who) ",
    re.IGNORECASE,
)
_OPEN_PLAN_PHRASE = load_pattern("open_plans")
_NON_PLAN_HEADING = re.compile(
    r"\b(?:skills|available|possible|options?|vocabulary|objects|sees|allowed|rules|example|not|cannot|can't|never|"
    r"don't|wrong|impossible|if|other agents?|others)\b[^\n]*:?\s*\Z",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r",?\s+(?:and )?so\s+(?=the|it|i\b|we|this|agent)|;\s+|,?\s+(?:therefore|thus|hence),?\s+|:\s+", re.IGNORECASE
)


class PlanParser(AnswerParser[Plan]):
    """Parser of plans. A plan is a tuple of steps (skill, object) with names of `skills` and `objects`; "": no object.

    Steps with objects that are absent in the present state are skipped. A plan ends before its first invalid step, and
    after `max_steps` steps.

    Args:
        skills: pairs (name, whether the skill takes an object).
        objects: names of the objects in the present state.
        max_steps: maximum number of steps of a plan.
        state: sentence in the question that describes the present state; a plan after another state is ignored.
    """

    answer_name = "plan"

    def __init__(
        self, skills: Sequence[tuple[str, bool]], objects: Sequence[str], max_steps: int, state: str = ""
    ) -> None:
        self.step_parser = StepParser(skills, objects, max_steps)
        self.state = normalize_name(state)
        agent_match = _AGENT_NAME.search(state)
        self._instruction_pattern = _build_instruction_pattern(agent_match[1] if agent_match else "")
        self.next_turn_pattern = re.compile(r"(?im)^[ \t*]*(?:(?:next |new )?state|agent sees)\b")

    def answers_this_question(self, text: str, candidate: CandidateAnswer[Plan]) -> bool | None:
        """Return False for a plan after another state, True after a line with this state, None otherwise."""
        if not self.state:
            return None
        states = list(_STATE_DESCRIPTION.finditer(to_ascii(text[max(candidate.start - 3000, 0) : candidate.start])))
        if not states:
            return None
        sentence = normalize_name(states[-1]["line"] or states[-1]["quoted"])
        return sentence == self.state if states[-1]["line"] or sentence != self.state else None

    def parse_value(self, value: Any, depth: int = 0) -> Plan | None:
        if depth > 6:
            return None
        if isinstance(value, list):
            return self._parse_sequence(value, depth)
        if not isinstance(value, dict) or "properties" in value:
            return None
        fields = {normalize_name(str(key)): inner for key, inner in value.items()}
        for key in _PLAN_KEYS:
            inner = fields.get(key)
            if inner is None or (
                key in ("action", "answer") and not isinstance(inner, list | dict) and "object" in fields
            ):
                continue
            if isinstance(inner, str):
                return self.step_parser.parse_text(inner)
            if isinstance(inner, list):
                if key == "answer" and not (inner and all(isinstance(item, dict | str) for item in inner)):
                    return self.parse_value(inner, depth + 1)
                return self.step_parser.parse_plan(inner)
            if isinstance(inner, dict) and (plan := self._parse_steps_object(inner, depth)) is not None:
                return plan
        if self._is_step(value) and "skill" in fields:
            return self.step_parser.parse_plan([value])
        return self._parse_nested(value.values(), depth)

    def _parse_steps_object(self, value: dict[Any, Any], depth: int) -> Plan | None:
        """Return the plan in an object that is one step, has one key per step, or contains a plan; else None."""
        if self._is_step(value):
            return self.step_parser.parse_plan([value])
        if value and all(str(key).strip().lower().removeprefix("step").strip(" _").isdigit() for key in value):
            return self.step_parser.parse_plan(list(value.values()))
        return self.parse_value(value, depth + 1)

    def _parse_nested(self, values: Iterable[Any], depth: int) -> Plan | None:
        """Return the only plan inside `values`; None if there is none. Different plans raise InvalidReply."""
        nested = [inner for inner in values if isinstance(inner, dict | list)]
        plans = {plan for inner in nested if (plan := self.parse_value(inner, depth + 1))}
        if len(plans) > 1:
            raise InvalidReply("there are several different plans in the reply; give one")
        return plans.pop() if plans else None

    def _parse_sequence(self, value: Sequence[Any], depth: int) -> Plan | None:
        """Return the plan that a list consists of, or the only plan inside its elements; None if there is none."""
        keys = [normalize_name(str(key)) for raw_step in value if isinstance(raw_step, dict) for key in raw_step]
        can_be_steps = all(isinstance(item, dict | str) for item in value)
        are_steps = can_be_steps and any(isinstance(item, str) or self._is_step(item) for item in value)
        if are_steps and not set(keys) & set(_TOOL_CALL_KEYS):
            is_plan = isinstance(value[0], dict) or is_possible_step(self.step_parser.parse_step(value[0]))
            return self.step_parser.parse_plan(value) if is_plan else None
        if value and all(isinstance(pair, list) and 1 <= len(pair) <= 2 for pair in value):
            return (
                self.step_parser.parse_plan(value) if is_possible_step(self.step_parser.parse_step(value[0])) else None
            )
        return self._parse_nested(value, depth)

    def _is_step(self, value: Any) -> bool:
        return isinstance(value, dict) and any(
            normalize_name(str(key)) in SKILL_KEYS and isinstance(inner, str) for key, inner in value.items()
        )

    def find_in_text(self, text: str, truncated: bool) -> PlanCandidates:
        text = strip_latex(to_ascii(strip_tags(text)))
        candidates = []
        for match in _LATEX_BOX.finditer(text):
            candidates += self._parse_plan_text(match.start(), match.end(), _PLAN_PREFIX.sub("", match[1]).strip(" {}"))
        for match in _PLAN_LABEL.finditer(text):
            candidates += self._find_labeled_plans(text, match.start(), match.end(), truncated)
        if not truncated:
            candidates += self._find_table_plans(text)
        if candidates or truncated:
            return candidates
        text = blank_spans(text, ((table.start, table.end) for table in find_tables(text)))
        return self._find_list_plans(text) or self._find_call_plans(text) or self._find_bare_plan(text)

    def parse_prose(self, text: str) -> Plan | None:
        if REFUSAL_PHRASE.search(text) or _OPEN_PLAN_PHRASE.search(text) or is_reopened(text):
            return None
        steps: list[Step] = []
        for sentence in re.split(r"(?<=[.!?])\s+|\n+|\u3002", text)[:100]:
            for part in _CONSEQUENCE.split(sentence):
                if (cue := self._instruction_pattern.search(part)) is None:
                    continue
                instruction = _SUBCLAUSE.split(part[cue.end() :], maxsplit=1)[0]
                if has_negation(f"{part[: cue.end()]}{instruction}"):
                    continue
                clause_steps = self._parse_steps(instruction, steps)
                if clause_steps is None or (clause_steps and is_conditional(part)):
                    return None
                steps += clause_steps
        return tuple(steps[: self.step_parser.max_steps]) or None

    def _parse_steps(self, instruction: str, previous: Sequence[Step]) -> list[Step] | None:
        """Return the steps in `instruction`, which follow the steps `previous`; None if one of them is invalid."""
        steps: list[Step] = []
        for clause in re.split(r"[,;]|\band\b|\bthen\b|\uff0c", instruction):
            for mention in self.step_parser.skill_matcher.find_mentions(clause)[:1]:
                *_, (_, previous_object) = ("", ""), *previous, *steps
                step = self.step_parser.parse_step(clause[mention[0] :], previous_object)
                if isinstance(step, str):
                    return None
                steps.append(step)
        return steps

    def _parse_plan_text(self, start: int, end: int, text: str) -> PlanCandidates:
        """Return the plan or the error of `text`, a list of steps with the span `start`, `end`; [] if it is empty."""
        if _PLACEHOLDER.search(text):
            return []
        try:
            plan = self.step_parser.parse_text(text)
        except InvalidReply as error:
            return [CandidateAnswer(start, end, (), error=str(error))]
        return [CandidateAnswer(start, end, plan)] if plan else []

    def _find_labeled_plans(self, text: str, start: int, content_start: int, truncated: bool) -> PlanCandidates:
        """Return the plan after the label at `start`: a list in brackets, a line, or a list of lines."""
        content = text[content_start : content_start + 4000]
        if content.startswith(("{", "[")):
            closing_bracket = "}" if content[0] == "{" else "]"
            separator = re.compile(rf"\{closing_bracket}\s*,?\s*(?:then\s+)?\{content[0]}")
            closing = content.find(closing_bracket)
            while (
                closing >= 0
                and (match := separator.match(content, closing))
                and (next_closing := content.find(closing_bracket, match.end())) >= 0
            ):
                closing = next_closing
            inner = separator.sub(", ", content[1 : closing if closing >= 0 else len(content)])
            if '"' in inner or ":" in inner or (truncated and closing < 0):
                return []
            end = content_start + (closing + 1 if closing >= 0 else len(content))
            return self._parse_plan_text(start, end, inner)
        items, last_end = [], content_start
        for item in _LIST_ITEM.finditer(content):
            if content[last_end - content_start : item.start()].strip():
                break
            items.append(item[1])
            last_end = content_start + item.end()
        # Only plans that end before this position are certainly complete.
        complete_end = len(text.rstrip()) if truncated else len(text) + 1
        if len(items) > 1 or (items and not _INLINE_NUMBER.search(items[0])):
            return self._parse_items(start, last_end, items) if last_end < complete_end else []
        line = content.split("\n", 1)[0]
        end = content_start + len(line)
        candidates = self._parse_plan_text(start, end, line.strip(" *`")) if line.strip() and end < complete_end else []
        return [candidate for candidate in candidates if not candidate.error]

    def _parse_items(self, start: int, end: int, items: Sequence[str], certainty: int = 2) -> PlanCandidates:
        """Return the plan whose steps are `items`; [] if it is invalid or only lists all skills."""
        instructions = [_strip_reason(item) for item in items]
        skills = [self.step_parser.skill_matcher.find_exact(instruction) for instruction in instructions]
        is_skill_list = len(skills) > 2 and skills == list(range(len(self.step_parser.skills)))
        with contextlib.suppress(InvalidReply):
            plan = self.step_parser.parse_plan(instructions)
            return [] if is_skill_list else [CandidateAnswer(start, end, plan, certainty=certainty)]
        return []

    def _find_list_plans(self, text: str) -> PlanCandidates:
        """Return the plans of lists whose items begin with steps."""
        items = list(_LIST_ITEM.finditer(text))[:300]
        if not items or REFUSAL_PHRASE.search(text) or _OPEN_PLAN_PHRASE.search(text):
            return []
        candidates = []
        for list_items in _split_lists(text, items):
            start = list_items[0].start()
            heading = text[max(text.rfind("\n\n", 0, start), start - 200, 0) : start].strip().rsplit("\n", 1)[-1]
            if _NON_PLAN_HEADING.search(heading) or (heading.endswith(":") and is_doubtful(heading)):
                continue
            instructions = [_strip_reason(item[1]) for item in list_items]
            steps = [self.step_parser.parse_step(instruction) for instruction in instructions]
            if all(isinstance(step, str) for step in steps) or not is_possible_step(steps[0]):
                continue
            invalid_texts = [text for text, step in zip(instructions, steps, strict=True) if isinstance(step, str)]
            are_short = len(list_items) > 1 and all(len(split_words(text)) <= 7 for text in invalid_texts)
            if all(map(is_possible_step, steps)) or are_short:
                item_texts = [item[1] for item in list_items]
                candidates += self._parse_items(start, list_items[-1].end(), item_texts, certainty=1)
        return candidates

    def _find_call_plans(self, text: str) -> PlanCandidates:
        """Return plans of consecutive calls such as `go_to(key)`; a single call must be alone on its line."""
        groups: list[list[tuple[int, int, str]]] = []
        find_skill = self.step_parser.skill_matcher.find_exact
        for call in _CALL.finditer(text):
            # In `the calls are go_to(key)`, the call begins at the name of a skill, or otherwise at the last word.
            starts = [call.start(1), *(call.start(1) + space.end() for space in re.finditer(" ", call[1]))]
            start = next((i for i in starts if find_skill(text[i : call.end(1)]) is not None), starts[-1])
            if not groups or not _SEPARATOR.fullmatch(text[groups[-1][-1][1] : start]):
                groups.append([])
            groups[-1].append((start, call.end(), text[start : call.end(1)]))
        candidates = []
        for calls in groups[:50]:
            start, end = calls[0][0], calls[-1][1]
            line = text[text.rfind("\n", 0, start) + 1 : start]
            if len(calls) == 1 and not (
                _SEPARATOR.fullmatch(line) and _SEPARATOR.fullmatch(text[end:].split("\n", 1)[0])
            ):
                continue
            if find_skill(calls[0][2]) is not None:
                candidates += self._parse_items(start, end, [text[first:last] for first, last, _ in calls], certainty=1)
        return candidates if not _OPEN_PLAN_PHRASE.search(text) else []

    def _find_table_plans(self, text: str) -> PlanCandidates:
        """Return the plans of tables with one row for each step."""
        candidates = []
        for table in find_tables(text):
            skill_column = table.column_index(("skill", "action", "name", "verb", "command", "what", "step"))
            object_column = table.column_index([word for word in OBJECT_KEYS if word not in ("on", "to", "agent")])
            if skill_column is None:
                instructions = []
            elif object_column is None or object_column == skill_column:
                instructions = [row[skill_column] if skill_column < len(row) else "" for row in table.rows]
            else:
                rows = [row for row in table.rows if max(skill_column, object_column) < len(row)]
                instructions = [f"{row[skill_column]} <{row[object_column].strip(' <>-')}>" for row in rows]
            if instructions and is_possible_step(self.step_parser.parse_step(instructions[0])):
                candidates += self._parse_items(table.start, table.end, instructions, certainty=1)
        return candidates

    def _find_bare_plan(self, text: str) -> PlanCandidates:
        """Return the plan of a text that consists only of steps; [] for other texts."""
        lines = [line.strip(" *`.") for line in text.strip().splitlines() if line.strip(" *`.")]
        if not lines or len(lines) > self.step_parser.max_steps or len(text) > 2000:
            return []
        lines = [re.sub(r"^\(([^()]*)\)$", r"\1", line) for line in lines]
        items = [item for line in lines for item in STEP_SEPARATOR.split(line.strip("{}[] ")) if item and item.strip()]
        steps: list[Step | str] = []
        for item in items:
            steps.append(
                self.step_parser.parse_step(item, steps[-1][1] if steps and not isinstance(steps[-1], str) else "")
            )
        are_possible = all(map(is_possible_step, steps)) and all(len(split_words(item)) <= 7 for item in items)
        plan = tuple(step for step in steps if not isinstance(step, str))
        return [CandidateAnswer(0, len(text), plan, certainty=1)] if plan and are_possible else []


def _split_lists(text: str, items: Sequence[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Split list items into lists: a new list begins where numbers do not increase, or after other text."""
    group = [*items[:1]]
    for previous, item in pairwise(items):
        previous_number, number = _parse_item_number(previous[0]), _parse_item_number(item[0])
        if number is None or previous_number is None:
            is_new_list = number != previous_number or bool(text[previous.end() : item.start()].strip())
        else:
            is_new_list = number <= previous_number
        if is_new_list:
            yield group
            group = []
        group.append(item)
    yield group


def _parse_item_number(line: str) -> int | None:
    """Return the number at the start of a list item; None if there is none."""
    match = _STEP_NUMBER.match(line)
    return None if match is None else int(match[1]) if match[1] else ord(match[2]) - 0x245F


def _strip_reason(item: str) -> str:
    """Return the instruction in a list item, without its reason."""
    item = re.sub(r"[*`]{1,3}|__|\b(?:skill|object|action)\s?[:=]", " ", item).strip(" _")
    return _REASON_START.split(item, maxsplit=1)[0].strip() or item


def _build_instruction_pattern(agent_name: str) -> re.Pattern[str]:
    """Return a pattern of phrases that begin an instruction to the agent, e.g. "the agent should"."""
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
