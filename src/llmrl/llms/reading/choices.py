"""One of several names out of a reply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.llms.reading.deciding import REFUSAL, Candidate, Question
from llmrl.llms.reading.names import Names, letters, negated, words
from llmrl.llms.reading.said import plain
from llmrl.llms.reading.words import listed
from llmrl.llms.structured import InvalidReply

_KEYS, _WRAPPERS = listed("actions"), listed("wrappers")
_OTHER_ACTIONS = ("last", "prev", "legal", "possible", "available", "alternative", "worst", "old", "rejected")
_NUMBERED = re.compile(r"(?:(?:action|option|choice|move|number|no)\s*[:#]?\s*|#\s*)?\d{1,6}(?:\.0*)?", re.IGNORECASE)
_NUMBER_SAID = re.compile(
    r"\b(?:action|answer|decision|choice|option|move|number)\b[\s*_`#:=]{0,6}(?:is\s+)?\d", re.IGNORECASE
)
_TAKEN = re.compile(
    r"\bi(?:'ll| will| would)? (?:choose|pick|select|go with|take)\s+(?P<kind>(?:action|option|number|"
    r"no\.?)\s*#?\s*)?"
    r"(?P<said>\d{1,6}\b[^,;.\n]{0,60})",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\{(?:\\text(?:bf|tt|it)?\{)?([^{}]{1,200})\}?\}")
_LABEL = re.compile(
    r"(?:(?<=[.!?;\n])|\A|(?<=\|))[ \t>*#_\-\u2022\d.)|]{0,20}(?P<label>(?:(?:so|therefore|thus|and)[, ]+)?(?:(?:the|"
    r"my|final|next|chosen|selected|best|correct|own|corrected|current) ){0,3}"
    r"(?:action|answer|decision|choice|move|command|aktion|antwort|accion|acci\u00f3n|r\u00e9ponse|\u52a8\u4f5c|"
    r"\u7b54\u6848|\u884c\u52a8))"
    r"[ \t]*(?:[*_`]{0,3}[ \t]*(?:(?:is|ist|est|es|would be|will be|should be)\b[ \t]*:?|[:=\uff1a]|\u662f)|"
    r"[*_`]{0,3}[ \t]*\n)[ \t*_`:>]*(?:\n[ \t]*){0,2}(?=(?P<value>[^\n]{1,200}))",
    re.IGNORECASE,
)
_OPTION = re.compile(r"^[ \t*\-]*(?:(?:Option|Choice)[ \t]+)?([A-Z])[ \t*]*[).:][ \t*]*([^\n]{1,120})$", re.MULTILINE)
_LETTER_TAKEN = re.compile(
    r"\b(?:[Ii](?:'ll| will)? (?:choose|pick|select|go with|take)|[Mm]y (?:choice|answer|decision) is)[ \t]+"
    r"(?:[Oo]ption[ \t]+)?\(?([A-Z])\b(?![ \t']*[a-z])"
)
_CUE = re.compile(
    r"\bi(?:'ll|'d| will| would|'m going to| am going to| choose| chose| pick| select| take| decide| opt| go| "
    r"move| want to)\b"
    r"|\bmy (?:action|choice|answer|move|decision)\b|\b(?:best|next|right|optimal|chosen|correct|safest|final) "
    r"(?:action|move|choice|option|step|decision)\b[^.]{0,40}?\b(?:is|would be|be)\b"
    r"|\b(?:should|must|let's|let us|(?:it's|it is|is) time to)\b"
    r"|\b(?:action|decision|answer)\b[^.]{0,10}?(?:\bis\b|:)|\u9009\u62e9|"
    r"\u5e94\u8be5|\u51b3\u5b9a|\bich (?:w\u00e4hle|nehme|gehe|fahre|w\u00fcrde)\b|"
    r"\bje (?:choisis|vais)\b|\b(?:elijo|voy a)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[,;\n]|\.(?:\s|$)|[!?]|\bbecause\b|\bsince\b|\bbut\b|\bso that\b|\bin order\b|\bto (?=avoid|counter|get|"
    r"reach|keep|prevent|escape|balance|catch|stop)|\baway from\b|\bas (?=the|"
    r"it|i|we)|[\u3002\uff0c]"
)
_IF = re.compile(
    r"\b(?:if|unless|whether|when|in case|depending|either|or|could|might|may|maybe|perhaps|can|try)\b|\u5982\u679c",
    re.IGNORECASE,
)


_CONTRAST = re.compile(r"\b(?:rather than|instead of|as opposed to|and not|not)\b", re.IGNORECASE)
_CLOSING = frozenset(
    {
        *("so", "therefore", "thus", "hence", "final", "finally", "ok", "okay", "well", "alright", "now", "again"),
        *("me", "it", "is", "i", "ll", "my", "move", "go", "turn", "action", "answer", "choice", "decision", "please"),
    }
)
"""Words of a last sentence that say nothing beside the action in it."""
_LEAD = re.compile(
    r"(?:\b(?:so|therefore|thus|hence|final|finally|now|decision|"
    r"(?:my|this|the|final) (?:action|answer|choice|move|turn))|=>|->|\u21d2)\W*\Z|"
    r"\bi (?:need|must|should|have to|want)\b[^.;:]{0,80}[:,]\W*\Z",
    re.IGNORECASE,
)
"""What stands before an action at the end of a sentence that decides for it."""
_NOT_NOW = re.compile(
    r"\b(?:after|once|later|eventually|afterwards|previously|earlier|normally|usually|otherwise|initially|at first|"
    r"(?:last|previous|prior) (?:time|turn|step|action|move|answer))\b",
    re.IGNORECASE,
)
_OTHERS_DO = re.compile(
    r"\b(?:dealer|opponent|bank|house|he|she|they|others|passenger|players?)\s+(?:\w+\s+)?(?:must|should)\b",
    re.IGNORECASE,
)
_STATEMENT = re.compile(r"\A(?:the|a|an|there|my|that)\b[^:]*\b(?:is|are|was|were|lies|stands|has)\b", re.IGNORECASE)
_OF_ACTIONS = re.compile(r"\b(?:action|move|choice|answer|decision|option|step)\b", re.IGNORECASE)
_LAST_CLAUSE = re.compile(r"[,;]|[=\-]>|[:\uff1a]|\s[\u2013\u2014-]\s|\u21d2")


class Choice(Question[int]):
    """Which of several actions, by its place from 0.

    Args:
        names: of the actions.
        described: what each does.
        numbered: they are answered by their number.
    """

    wanted = "action"
    turn = re.compile(
        r"^[ \t*]*(?:next |new |then )?(?:observation|state)\b[^:\n]{0,20}:"
        r"|\{\s*\"(?:observation|since_your_last_action)\"",
        re.MULTILINE | re.IGNORECASE,
    )

    def __init__(self, names: Sequence[str], described: Sequence[str] = (), numbered: bool = False) -> None:
        self.names = Names(names, described, numbered)

    def of_value(self, value: Any) -> int | None:
        return self._of(value, 0)

    def chosen(self, answer: Any) -> int:
        """The action that the value of a reply's `action` means.

        Raises:
            InvalidReply: none, or no certain one.
        """
        found = self._meant(answer, 0)
        if found is None:
            raise InvalidReply(f"the action {repr(answer)[:60]} does not exist")
        return found

    def _of(self, value: Any, depth: int) -> int | None:
        if depth > 5:
            return None
        if isinstance(value, list):
            found = [self._of(item, depth + 1) for item in value if isinstance(item, dict | list)]
            return _one(found)
        if not isinstance(value, dict) or "properties" in value or "observation" in value:
            return None
        by_key = {letters(key): inner for key, inner in value.items()}
        by_key = {key: inner for key, inner in by_key.items() if not key.startswith(_OTHER_ACTIONS)}
        keys = (
            [key for key in ("action",) if key in by_key]
            or [key for key in _KEYS[1:6] if key in by_key]
            or [
                key
                for key in by_key
                if key in _KEYS or (key.startswith("action") and key != "actions") or key.endswith("action")
            ]
        )
        if not keys and "actions" in by_key:
            keys = ["actions"]
        wrapped = [key for key in by_key if key in _WRAPPERS]
        if keys:
            beside = [
                key
                for key in ("actionname", "actionnumber", "actionindex", "actionid")
                if key in by_key and key not in keys
            ]
            return _one([self.chosen_in(by_key[key], depth) for key in [*keys, *beside]])
        flags = {key: inner for key, inner in by_key.items() if isinstance(inner, bool)}
        true = [index for key, inner in flags.items() if inner and (index := self.names.exact(key)) is not None]
        if len(true) == 1 and sum(flags.values()) == 1:
            return true[0]
        for key in wrapped:
            if isinstance(by_key[key], dict | list) and (chosen := self._of(by_key[key], depth + 1)) is not None:
                return chosen
        if wrapped and isinstance(by_key.get("name"), str):
            return self.names.exact(by_key["name"])
        inner_found = [
            chosen
            for inner in value.values()
            if isinstance(inner, dict | list) and (chosen := self._of(inner, depth + 1)) is not None
        ]
        return _one(inner_found)

    def chosen_in(self, value: Any, depth: int = 0) -> int:
        if isinstance(value, dict):
            found = self._of(value, depth + 1)
            if found is None:
                found = _one(
                    [self._meant(inner, depth) for inner in value.values() if isinstance(inner, str | int | float)]
                )
            if found is not None:
                return found
        return self.chosen(value)

    def _meant(self, answer: Any, depth: int) -> int | None:
        if isinstance(answer, bool) or answer is None or depth > 5:
            return None
        if isinstance(answer, int | float):
            return self.names.number(answer) if abs(answer) < 1e6 else None
        if isinstance(answer, str):
            return self.names.meant(answer)
        if isinstance(answer, list):
            found = {self._meant(item, depth + 1) for item in answer}
            return found.pop() if len(found) == 1 and len(answer) < 4 else None
        return None

    def of_text(self, text: str, cut: bool) -> list[Candidate[int]]:
        text = plain(text)
        stripped = re.sub(r"^(?:```|~~~)\w*\n?|\n?(?:```|~~~)$", "", text.strip()).strip()
        if len(stripped) <= 80 and not {"\n", "?"} & set(stripped) and (whole := self._whole(stripped)) is not None:
            return [] if cut else [Candidate(0, len(text), whole, form=1)]
        letter = {match[1]: index for match in _OPTION.finditer(text) if (index := self._started(match[2])) is not None}
        found = []
        for match in _LETTER_TAKEN.finditer(text):
            if (index := letter.get(match[1])) is not None:
                found.append(Candidate(match.start(), match.end(), index))
        for match in _BOXED.finditer(text):
            if (index := self._labelled(match[1], letter)) is not None:
                found.append(Candidate(match.start(), match.end(), index))
        for match in _TAKEN.finditer(text):
            said = re.split(r"\bbecause\b|\bsince\b|\bas\b", match["said"])[0]
            if (match["kind"] or self.names.numbered) and (index := self.names.meant(said)) is not None:
                found.append(Candidate(match.start(), match.end(), index, form=1))
        for match in _LABEL.finditer(text):
            said = _BOXED.sub(lambda boxed: f" {boxed[1]} ", match["value"]).replace("$", " ")
            if cut and match.end("value") == len(text.rstrip()):
                continue
            if (index := self._labelled(said, letter)) is not None:
                sentence = re.search(r"[.!?;](?=\s)|\Z", match["value"])
                assert sentence is not None
                found.append(Candidate(match.start(), match.end() + sentence.start(), index))
        return found

    def of_prose(self, text: str) -> int | None:
        # A number that was not understood may contradict the name beside it.
        if REFUSAL.search(text) or _NUMBER_SAID.search(text):
            return None
        decided: list[int] = []
        for sentence in re.split(r"(?<=[.!?\u3002])\s+|\n+|\u3002", text)[:200]:
            open_ = False
            for clause in _CLAUSE.split(sentence):
                match = _CUE.search(clause)
                if match is not None and (contrast := _CONTRAST.search(clause, match.end())) is not None:
                    kept = clause[: contrast.start()]
                    clause = kept if self.names.mentions(kept[match.end() :]) else clause
                open_ = open_ or bool(_IF.search(clause[: match.start()] if match else clause))
                if _NOT_NOW.search(clause) or _OTHERS_DO.search(clause):
                    continue
                if match is None or open_ or negated(clause) or sentence.rstrip().endswith("?"):
                    continue
                mentioned = {i for _, _, i in self.names.mentions(clause[match.end() :])}
                mentioned = mentioned or {i for _, _, i in self.names.mentions(clause[match.start() :])}
                if len(mentioned) > 1 or (mentioned and _IF.search(clause[match.end() :])):
                    return None
                decided += mentioned
        if not decided:
            return self._in_closing(text)
        return decided[-1] if len(set(decided)) == 1 else None

    def _in_closing(self, text: str) -> int | None:
        """The action that the last sentence is nothing but: `Stick it is.`, `So now: move east.`; None where another
        sentence is an action by itself, too, as in a list of steps."""
        sentences = [part.strip() for part in re.split(r"(?<=[.!?\u3002])\s+|\n+|\u3002", text)[-200:]]
        *before, last = [part for part in sentences if any(c.isalnum() for c in part)] or [""]
        if not last or last.endswith("?") or _IF.search(last) or _NOT_NOW.search(last) or len(last) > 200:
            return None
        delimiters = list(_LAST_CLAUSE.finditer(last))
        if delimiters and not _LEAD.search(last[: delimiters[-1].end()]):
            return None
        clauses = _LAST_CLAUSE.split(last)
        index = self._nothing_but(clauses[-1])
        alone = {self._nothing_but(re.sub(r"^[\W\d_]+", "", part)) for part in before} - {None}
        in_last = {self._nothing_but(part) for part in clauses} - {None}
        return index if not alone and in_last == {index} else None

    def _nothing_but(self, clause: str) -> int | None:
        """The action that a clause is, but for words that say nothing."""
        if negated(clause):
            return None
        mentioned = self.names.mentions(clause)
        if len({i for _, _, i in mentioned}) != 1:
            return None
        rest = [w for w, a, b in words(clause) if not any(x <= a and b <= y for x, y, _ in mentioned)]
        return mentioned[0][2] if all(w in _CLOSING for w in rest) else None

    def _whole(self, text: str) -> int | None:
        if "->" in text or (_STATEMENT.search(text) and not _OF_ACTIONS.search(text)):
            return None
        bare = re.sub(r"[^\w\s()#:.,+\-\u2190-\u21ff\u2b05-\u2b07\u27a1]", " ", text).strip(" .,:!")
        return self.names.meant(bare)

    def _started(self, text: str) -> int | None:
        return self.names.meant(re.split(r"\s[-\u2013\u2014]\s|[:(,]", text)[0])

    def _labelled(self, text: str, letter: Mapping[str, int]) -> int | None:
        text = re.sub(r"[*_`\"]", lambda m: " " if m[0] in '*`"' else m[0], text).strip()
        single = re.fullmatch(r"\(?([A-Z])\)?[.)]?", text)
        if single and single[1] in letter:
            return letter[single[1]]
        return self.names.meant(text.strip(" ._|"))


def _one(found: Sequence[int | None]) -> int | None:
    """The one that all that are any agree in.

    Raises:
        InvalidReply: they are different.
    """
    some = {each for each in found if each is not None}
    if len(some) > 1:
        raise InvalidReply("there are several different actions in the reply; give one")
    return some.pop() if some else None
