"""A plan out of a reply: skills, each with the object it is for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmrl.llms.reading.deciding import REFUSAL, Candidate, Question
from llmrl.llms.reading.names import Names, letters, negated, words
from llmrl.llms.reading.said import plain
from llmrl.llms.reading.structures import CUT, without_tags
from llmrl.llms.reading.words import listed
from llmrl.llms.structured import InvalidReply

Step = tuple[str, str]
_LONGEST_STEP = 300
NO_OBJECT = frozenset(letters(word) for word in ("", "none", "nothing", "null", "no object", "n/a", "nil"))

_PLANS, _SKILLS, _OBJECTS = listed("plans"), listed("skills"), listed("objects")
_CALLED = ("arguments", "parameters", "input", "function", "functioncall")
_PLACEHOLDER = re.compile(r"<\s*(?:skill|object|action|why|at most[^<>]*)\s*\d?\s*>", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:^|(?<=[.!?]\s)|(?<=\*\*))[ \t>*#_\-\u2022\d.)]{0,20}(?:step[ \t]*\d{1,2}[.:)][ \t]*)?(?:the |my |final |"
    r"revised |new |corrected |next |best |own ){0,3}(?:actions?|plans?|answer|steps|sequence|skills|"
    r"\u8ba1\u5212|\u884c\u52a8)\b"
    r"[ \t]*(?:\([^()\n]{0,60}\))?[ \t]*[*_`]{0,3}[ \t]*(?:[:=]|\bis\b:?|\n)[ \t*_`]*(?:\n[ \t]*){0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM = re.compile(
    r"^[ \t>]*(?:(?:step[ \t]*)?\d{1,2}[.):]|[-*\u2022]|\(\d{1,2}\))[ \t]+([^\n]{1,300})$", re.MULTILINE | re.IGNORECASE
)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
_SPLIT = re.compile(
    r",\s*(?:and\s+)?(?:then\s+)?|;|\s*(?:->|\u2192|=>|\u27f6|>>)\s*|\n|\bthen\b|\bafter that\b|(?:^|(?<=\s)|"
    r"(?<=,))\(?\d{1,2}[.)]\s+|"
    r"\.(?:\s|$)"
)
_IT = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)
_INLINE = re.compile(r"[\s,]\(?\d{1,2}[.)]\s")
_TOOL = re.compile(r"\b(?:with|using|by)\b.*", re.IGNORECASE | re.DOTALL)
_CUE = re.compile(
    r"\A\W*(?:(?:so|therefore|thus|hence|first|then|next|finally|now|after that|in this (?:case|state|"
    r"situation))\b\W*)*"
    r"(?:(?:(?:the|this) agent|it|i|we)(?:'ll|\s+(?:should|must|will|would|shall|needs? to|has to|am going to))|"
    r"let's|let us|\b(?<=first)|\b(?<=then)|\u667a\u80fd\u4f53\u5e94\u8be5)",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\b(?:because|since|so that|in order to|as (?:it|the|there|this)|while|which|who|to (?:find|get|open|"
    r"unlock|reach|avoid|free|make)|where|without|before|until|if|unless|directly)\b|\(",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"\b(?:either|or|could|might|may|consider|alternatives?|options?|possible|suggest that you|up to you|"
    r"directions?)\b",
    re.IGNORECASE,
)


class _Ahead(str):
    """Why a step means none here: it is for an object that is not there, as steps that look ahead are."""


class Steps(Question[tuple[Step, ...]]):
    """A list of steps (skill, object), in the names' own spelling; "" for no object.

    Steps for an object that is not there are passed over: they cannot be done yet. Of a plan with a step that cannot be
    meant at all the steps before it are the answer, and of a longer one the first `most`.

    Args:
        skills: (name, whether it takes an object).
        objects: that a plan may name here.
        most: steps.
        state: the sentence that was asked about; another one begins another turn.
    """

    wanted = "plan"

    def __init__(self, skills: Sequence[tuple[str, bool]], objects: Sequence[str], most: int, state: str = "") -> None:
        self.skills, self.objects, self.most = list(skills), list(objects), most
        self.names = Names([name for name, _ in skills])
        self.things = Names(objects) if objects else None
        self.state = letters(state)
        self.turn = re.compile(r"^[ \t*]*(?:(?:next |new )?state|agent sees)\b", re.MULTILINE | re.IGNORECASE)

    def of_value(self, value: Any) -> tuple[Step, ...] | None:
        return self._of(value, 0)

    def of_text(self, text: str, cut: bool) -> list[Candidate[tuple[Step, ...]]]:
        text = plain(without_tags(text))
        found = []
        for match in _BOXED.finditer(text):
            inner = re.sub(r"\\text\w*\{([^{}]*)\}", r"\1", match[1])
            found += self._candidate(match.start(), match.end(), inner)
        for match in _LABEL.finditer(text):
            found += self._labelled(text, match.start(), match.end(), cut)
        if not found and not cut:
            found += self._listed(text)
            found += self._bare(text)
        return found

    def of_prose(self, text: str) -> tuple[Step, ...] | None:
        if REFUSAL.search(text) or _OPEN.search(text):
            return None
        steps: list[Step] = []
        for sentence in re.split(r"(?<=[.!?])\s+|\n+|\u3002", text)[:100]:
            cue = _CUE.search(sentence)
            if cue is None:
                continue
            said = _ASIDE.split(sentence[cue.end() :], maxsplit=1)[0]
            if negated(said):
                continue
            for clause in re.split(r"[,;]|\band\b|\bthen\b|\uff0c", said):
                start = next(iter(self.names.mentions(clause)), None)
                if start is None:
                    continue
                step = self._step(clause[start[0] :], steps[-1][1] if steps else "")
                if isinstance(step, str):
                    return None
                steps.append(step)
        return tuple(steps[: self.most]) or None

    def mine(self, text: str, candidate: Candidate[tuple[Step, ...]]) -> bool | None:
        """An answer under another state than this one's is one to another question."""
        if not self.state:
            return None
        states = list(
            re.finditer(
                r"^[ \t*]*State\W{1,4}([^\n]+)$", text[max(candidate.start - 3000, 0) : candidate.start], re.MULTILINE
            )
        )
        return None if not states else letters(states[-1][1]) == self.state

    def plan(self, steps: Sequence[Any]) -> tuple[Step, ...]:
        """The steps up to the first that cannot be meant, without those for objects that are not there.

        Raises:
            InvalidReply: none is left.
        """
        if not steps:
            raise InvalidReply(f"a plan has 1 to {self.most} steps, and this one has 0")
        if any(said == CUT for said in steps):
            raise InvalidReply("the plan was cut off")
        found: list[Step] = []
        fault = ""
        for said in steps[: self.most]:
            step = self._step(said, found[-1][1] if found else "")
            if isinstance(step, str):
                fault = fault or step
                if isinstance(step, _Ahead):
                    continue
                break
            found.append(step)
        if not found:
            raise InvalidReply(fault)
        return tuple(found)

    def _of(self, value: Any, depth: int) -> tuple[Step, ...] | None:
        if depth > 6:
            return None
        if isinstance(value, list):
            return self._of_list(value, depth)
        if not isinstance(value, dict) or "properties" in value:
            return None
        by_key = {letters(str(key)): inner for key, inner in value.items()}
        for key in _PLANS:
            inner = by_key.get(key)
            if inner is None or (
                key in ("action", "answer") and not isinstance(inner, list | dict) and "object" in by_key
            ):
                continue
            if isinstance(inner, str):
                return self._of_string(inner)
            if isinstance(inner, list):
                return self.plan(inner) if key not in ("answer",) or _steplike(inner) else self._of(inner, depth + 1)
            if isinstance(inner, dict):
                if self._is_step(inner):
                    return self.plan([inner])
                if inner and all(str(k).strip().lower().removeprefix("step").strip(" _").isdigit() for k in inner):
                    return self.plan(list(inner.values()))
                if (found := self._of(inner, depth + 1)) is not None:
                    return found
                if len(inner) == 1 and isinstance(only := next(iter(inner.values())), list):
                    return self.plan(only)
                if len(inner) == 1 and isinstance(only, dict):
                    return self.plan([only])
        if self._is_step(value) and "skill" in by_key:
            return self.plan([value])
        return self._inside(list(value.values()), depth)

    def _inside(self, values: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        """The one plan that is inside of values."""
        plans = {plan for inner in values if isinstance(inner, dict | list) and (plan := self._of(inner, depth + 1))}
        if len(plans) > 1:
            raise InvalidReply("there are several different plans in the reply; give one")
        return plans.pop() if plans else None

    def _of_list(self, value: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        called = [
            item for item in value if isinstance(item, dict) and any(letters(str(key)) in _CALLED for key in item)
        ]
        if (
            not called
            and _steplike(value)
            and any(self._is_step(item) if isinstance(item, dict) else isinstance(item, str) for item in value)
        ):
            usable = isinstance(value[0], dict) or _possible(self._step(value[0]))
            return self.plan(value) if usable else None
        if value and all(isinstance(item, list) and 1 <= len(item) <= 2 for item in value):
            return self.plan(value) if _possible(self._step(value[0])) else None
        return self._inside(value, depth)

    def _of_string(self, text: str) -> tuple[Step, ...] | None:
        items = [item for item in _SPLIT.split(plain(text).strip(" .{}[]\n")) if item and item.strip(" .*`")]
        if not items:
            return None
        return self.plan(items)

    def _is_step(self, value: Any) -> bool:
        return isinstance(value, dict) and any(
            letters(str(key)) in _SKILLS and isinstance(inner, str) for key, inner in value.items()
        )

    def _step(self, said: Any, before: str = "") -> Step | str:
        """The step that a value means; or else, in words, why it means none. `before`: what "it" is."""
        skill, thing = "", ""
        if isinstance(said, dict):
            by_key = {letters(str(key)): inner for key, inner in said.items()}
            skill = next((str(by_key[key]) for key in _SKILLS if isinstance(by_key.get(key), str)), "")
            given = next((by_key[key] for key in _OBJECTS if by_key.get(key) is not None), "")
            if isinstance(given, dict):
                given = next(iter(given.values()), "")
            if isinstance(given, list):
                given = given[0] if len(given) == 1 else " ".join(map(str, given))
            if not skill and len(said) == 1:
                skill, given = next(iter(said.items()))
            thing = "" if given is None or isinstance(given, bool | dict | list) else str(given)
        elif isinstance(said, list) and 1 <= len(said) <= 2 and all(isinstance(each, str | None) for each in said):
            skill, thing = said[0] or "", (said[1] or "") if len(said) == 2 else ""
        elif isinstance(said, str):
            skill = said
        return self._meant(f"{skill} <{thing}>" if thing else skill, skill, before)

    def _meant(self, text: str, skill: str, before: str) -> Step | str:
        text = text[:_LONGEST_STEP]
        text = (
            plain(re.sub(r"\((?![^()]*\d\))[^()]*\)", " ", text))
            if "(" in text and not re.search(r"\w\(", text)
            else plain(text)
        )
        spans = [(word, a, b) for word, a, b in words(text)]
        while (
            spans
            and spans[0][0]
            in (
                "the",
                "agent",
                "i",
                "should",
                "to",
                "then",
                "first",
                "and",
                "step",
                "finally",
                "next",
                "will",
                "it",
                "must",
            )
            and len(spans) > 1
        ):
            if self.names.mentions(text[spans[0][1] :])[:1] and self.names.mentions(text[spans[0][1] :])[0][0] == 0:
                break
            spans = spans[1:]
        text = text[spans[0][1] :] if spans else ""
        mentioned = self.names.mentions(text)
        if not mentioned or mentioned[0][0] > 0:
            tried = " ".join(re.sub(r"[<>]", " ", text if not skill or len(skill) > 60 else skill).split())[:60]
            return f"there is no skill {tried!r}; there are {', '.join(name for name, _ in self.skills)}"
        name, takes = self.skills[mentioned[0][2]]
        rest = text[mentioned[0][1] :]
        if not takes:
            return name, ""
        thing = self._object(_TOOL.sub("", rest)) or self._object(rest)
        if thing is None and before and _IT.search(text):
            thing = before
        if thing is None:
            shown = " ".join(re.sub(r"[<>\"'`*_()]", " ", rest).split())[:60]
            there = ", ".join(self.objects) or "none"
            fault = f"the skill {name!r} needs an object of this state, and {shown!r} is none; there are: {there}"
            return fault if letters(shown) in NO_OBJECT or self._several(rest) else _Ahead(fault)
        return name, thing

    def _object(self, text: str) -> str | None:
        """The one object that a text means: by its name, a part of it, or its number; None if none or several."""
        if self.things is None:
            return None
        said = [
            word
            for word, _, _ in words(text)
            if word not in ("the", "a", "an", "object", "to", "it", "this", "that", "of")
        ]
        if not said or "".join(said) in NO_OBJECT:
            return None
        whole = self.things.exact(" ".join(said))
        if whole is not None:
            return self.objects[whole]
        parts = [i for i, name in enumerate(self.objects) if _part_of(said, [word for word, _, _ in words(name)])]
        if len(parts) == 1:
            return self.objects[parts[0]]
        mentioned = {i for _, _, i in self.things.mentions(text)}
        return self.objects[mentioned.pop()] if not parts and len(mentioned) == 1 and len(said) <= 6 else None

    def _several(self, text: str) -> bool:
        """Whether a text may mean one of several objects."""
        said = [word for word, _, _ in words(text) if word not in ("the", "a", "an")]
        return sum(_part_of(said, [word for word, _, _ in words(name)]) for name in self.objects) > 1

    def _candidate(self, start: int, end: int, text: str) -> list[Candidate[tuple[Step, ...]]]:
        if _PLACEHOLDER.search(text):
            return []
        try:
            plan = self._of_string(text)
        except InvalidReply as fault:
            return [Candidate(start, end, (), fault=str(fault))]
        return [Candidate(start, end, plan)] if plan else []

    def _labelled(self, text: str, start: int, inside: int, cut: bool) -> list[Candidate[tuple[Step, ...]]]:
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
            return self._candidate_of(start, last, items) if not (cut and last >= len(text.rstrip())) else []
        line = rest.split("\n", 1)[0]
        if not line.strip() or (cut and inside + len(line) >= len(text.rstrip())):
            return []
        found = self._candidate(start, inside + len(line), line.strip(" *`"))
        return [each for each in found if not each.fault]

    def _candidate_of(self, start: int, end: int, items: Sequence[str]) -> list[Candidate[tuple[Step, ...]]]:
        try:
            return [Candidate(start, end, self.plan([_bare_item(item) for item in items]))]
        except InvalidReply:
            return []

    def _listed(self, text: str) -> list[Candidate[tuple[Step, ...]]]:
        """Numbered or bulleted lines each of which is a step."""
        items = list(_ITEM.finditer(text))
        if not items or REFUSAL.search(text) or _OPEN.search(text):
            return []
        steps = [self._step(_bare_item(item[1])) for item in items]
        if not all(map(_possible, steps)) or all(isinstance(step, str) for step in steps):
            return []
        return [
            Candidate(
                items[0].start(), items[-1].end(), tuple(step for step in steps if not isinstance(step, str)), form=1
            )
        ]

    def _bare(self, text: str) -> list[Candidate[tuple[Step, ...]]]:
        """Lines that are nothing but steps."""
        lines = [line.strip(" *`.") for line in text.strip().splitlines() if line.strip(" *`.")]
        if not lines or len(lines) > self.most or len(text) > 2000:
            return []
        items = [item for line in lines for item in _SPLIT.split(line.strip("{}[] ")) if item and item.strip()]
        spoken: list[Step | str] = []
        for item in items:
            spoken.append(self._step(item, spoken[-1][1] if spoken and not isinstance(spoken[-1], str) else ""))
        wordy = any(len(words(item)) > 7 for item in items)
        if wordy or not all(map(_possible, spoken)) or all(isinstance(step, str) for step in spoken):
            return []
        return [Candidate(0, len(text), tuple(step for step in spoken if not isinstance(step, str)), form=1)]


def _possible(step: Step | str) -> bool:
    """Whether a step can be done, here or later."""
    return not isinstance(step, str) or isinstance(step, _Ahead)


def _steplike(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(item, dict | str) for item in value)


def _bare_item(item: str) -> str:
    return re.sub(r"[*`_]{1,3}", " ", re.split(r"\s[-\u2013\u2014]\s|:\s|\((?=[a-z])", item)[0]).strip()


def _part_of(said: Sequence[str], name: Sequence[str]) -> bool:
    """Whether words are a part of a name: its last words, or a number in it."""
    joined = "".join(said)
    return any("".join(name[i:]) == joined for i in range(1, len(name)))
