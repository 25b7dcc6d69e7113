"""Parser of replies that choose one of several named actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL_PHRASE, AnswerParser, CandidateAnswer
from llmrl.llms.reading.latex_and_tables import strip_latex
from llmrl.llms.reading.name_matcher import NameMatcher, has_negation, normalize_name
from llmrl.llms.reading.non_answer_text import is_conditional, is_doubtful, is_example, is_reopened
from llmrl.llms.reading.number_parser import NUMBER_IN_DIGITS, NUMBER_IN_WORDS, parse_number
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import to_ascii

_ACTION_KEYS, _WRAPPER_KEYS = load_word_list("actions"), load_word_list("wrappers")
_ADDITIONAL_ACTION_KEYS = ("actionname", "actionnumber", "actionindex", "actionid")
_FOREIGN_KEYS = tuple(load_word_list("foreign_keys"))
_NUMBER_MENTION = re.compile(
    r"\b(?:action|answer|decision|choice|option|move|number)\b[\s*_`#:=]{0,6}(?:is\s+)?\d", re.IGNORECASE
)
_NUMBER_CHOICE = re.compile(
    r"\bi(?:'ll| will| would)? (?:choose|pick|select|go with|take)\s+(?P<kind>(?:action|option|number|"
    r"no\.?)\s*#?\s*)?(?P<choice>\d{1,6}\b[^,;.\n]{0,60})",
    re.IGNORECASE,
)
_LATEX_BOX = re.compile(r"\\boxed\{([^{}]{1,200})\}")
_LABEL_PREFIX = re.compile(
    r"\A(?:(?:the|my|final|next|chosen|best|optimal) )*(?:action|answer|decision|choice|move)\s*(?:=|:|is\b)\s*",
    re.IGNORECASE,
)
_ANSWER_LABEL = re.compile(
    r"(?:(?<=[.!?;\n])|\A|(?<=\|))[ \t>*#_\-\u2022\d.)|]{0,20}(?P<label>(?:(?:so|therefore|thus|and)[, ]+)?(?:(?:the|"
    r"my|mein|meine|mon|ma|final|next|chosen|selected|best|correct|own|corrected|current|recommended|"
    r"optimal) ){0,3}(?:action|answer|decision|choice|vote|votum|ballot|move|command|output|selection|aktion|antwort|"
    r"accion|acci\u00f3n|r\u00e9ponse|\u52a8\u4f5c|\u7b54\u6848|\u884c\u52a8))[ \t]*(?:[*_`]{0,3}[ \t]*(?:(?:is|ist|"
    r"est|es|would be|will be|should be)\b[ \t]*:?|[:=\uff1a]|\u662f|->|=>|\u2192|[-\u2014](?=[ \t]))|"
    r"[*_`]{0,3}[ \t]*\n)[ \t*_`:>]*(?:\n[ \t]*){0,2}(?=(?P<value>[^\n]{1,200}))",
    re.IGNORECASE,
)
_DECISION_CUE = load_pattern("choices")
_CLAUSE_BOUNDARY = re.compile(
    r"[,;\n]|\.(?:\s|$)|[!?]|\bbecause\b|\bsince\b|\bbut\b|\bso that\b|\bin order\b|(?<!\bis )\bto (?=avoid|counter|"
    r"get|reach|keep|prevent|escape|balance|catch|stop)|\baway from\b|\bas (?=the|it|i|we)|[\u3002\uff0c]"
)
_INDECISION = load_pattern("open_choices")
_EXPLANATION = re.compile(
    r"\b(?:not|than|instead|since|because|as|so|but|where|which|while|to|for|after|before)\b|[.(\u2014]", re.IGNORECASE
)
"""Words between two actions after which the second action is an explanation, not another decision."""
_CONTRAST = re.compile(r"\b(?:rather than|instead of|as opposed to|and not|not)\b", re.IGNORECASE)
_CLOSING_WORDS = frozenset(
    {
        *("so", "therefore", "thus", "hence", "final", "finally", "ok", "okay", "well", "alright", "now", "again"),
        *("me", "it", "is", "i", "ll", "my", "move", "go", "turn", "action", "answer", "choice", "decision", "please"),
    }
)
"""Words that may accompany the action in a sentence that consists only of a decision."""
_AMOUNT = re.compile(
    r"\W*(?:(?:catch|take|harvest|fish|put(?: out)?|send|graze|settle|stick|go|choose|pick|emit|release|make it)\b\s*)?"
    r"(?:(?:for|with|just|only|exactly|another)\s+)*[*_\"'`]*(?<![+-])"
    rf"(?P<number>{NUMBER_IN_WORDS}|{NUMBER_IN_DIGITS})(?:\s?(?:{'|'.join(load_word_list('units'))})\b)?"
    r"(?=\W*\Z|[*_\"'`]*\s*[,;:.!()\u2014]|\s-|[*_\"'`]*\s+(?:again|this|now|today|instead|for|from|out|on|onto|"
    r"please|because|since|so|like|it is)\b)",
    re.IGNORECASE,
)
"""Amount with its unit at the beginning of a text; not a bound, a difference, or an amount of something else."""
RECONSIDERATION_PHRASE = load_pattern("reconsiderations")
"""Words after which an earlier decision is no longer valid."""
_DECISION_LEAD = re.compile(
    r"(?:\b(?:so|therefore|thus|hence|final|finally|now|decision|(?:my|this|the|final) (?:action|answer|choice|move|"
    r"turn))|=>|->|\u21d2)\W*\Z|\bi (?:need|must|should|have to|want)\b[^.;:]{0,80}[:,]\W*\Z",
    re.IGNORECASE,
)
"""Words that announce a decision, before an action at the end of a sentence."""
_OTHER_TIME = load_pattern("other_times")
_OPPONENT_DUTY = load_pattern("duties")
_STATEMENT = re.compile(r"\A(?:the|a|an|there|my|that)\b[^:]*\b(?:is|are|was|were|lies|stands|has)\b", re.IGNORECASE)
_ACTION_NOUN = re.compile(r"\b(?:action|move|choice|answer|decision|option|step)\b", re.IGNORECASE)
_VERB = re.compile(r"\b(?:is|are|was|were|be|been|has|have|had|would|will|does|did|seems?)\b", re.IGNORECASE)
_LAST_CLAUSE = re.compile(r"[,;]|[=\-]>|[:\uff1a]|\s[\u2013\u2014-]\s|\u21d2")


class ChoiceParser(AnswerParser[int]):
    """Parser of replies that choose one of several actions; the answer is its index from 0.

    Args:
        names: names of the actions.
        descriptions: description of each action.
        numbered: whether the question numbers the actions from 0, so that numbers in replies are indices.
    """

    answer_name = "action"
    next_turn_pattern = re.compile(
        r"^[ \t*]*(?:next |new |then )?(?:observation|state)\b[^:\n]{0,20}:"
        r"|\{\s*\"(?:observation|since_your_last_action)\"",
        re.MULTILINE | re.IGNORECASE,
    )

    def __init__(self, names: Sequence[str], descriptions: Sequence[str] = (), numbered: bool = False) -> None:
        self.matcher = NameMatcher(names, descriptions, numbered)
        self.index_by_amount = {} if numbered else _map_amounts_to_indices(names)
        self._has_digits = any(any(c.isdigit() for c in name) for name in names)

    def parse_value(self, value: Any, depth: int = 0) -> int | None:
        if depth > 5:
            return None
        if isinstance(value, list):
            choices = [self.parse_value(item, depth + 1) for item in value if isinstance(item, dict | list)]
            return _select_only_choice(choices)
        if not isinstance(value, dict) or "properties" in value or ("observation" in value and "action" not in value):
            return None
        fields = {normalize_name(key): inner for key, inner in value.items()}
        fields = {
            key: inner
            for key, inner in fields.items()
            if (key == "step" and isinstance(inner, str)) or not key.startswith(_FOREIGN_KEYS)
        }
        keys = (
            [key for key in fields if re.fullmatch(r"action\d*", key)]
            or [key for key in _ACTION_KEYS[1:6] if key in fields]  # chosenaction to actionname
            or [
                key
                for key in fields
                if key in _ACTION_KEYS or (key.startswith("action") and key != "actions") or key.endswith("action")
            ]
            or [key for key in fields if key == "actions"]
        )
        if keys:
            keys += [key for key in _ADDITIONAL_ACTION_KEYS if key in fields and key not in keys]
            return _select_only_choice([self._parse_choice_field(fields[key], depth) for key in keys])
        flags = {key: inner for key, inner in fields.items() if isinstance(inner, bool)}
        true_actions = [
            index for key, inner in flags.items() if inner and (index := self.matcher.find_exact(key)) is not None
        ]
        if len(true_actions) == 1 and sum(flags.values()) == 1:
            return true_actions[0]
        wrapped = [inner for key, inner in fields.items() if key in _WRAPPER_KEYS]
        for inner in wrapped:
            if isinstance(inner, dict | list) and (choice := self.parse_value(inner, depth + 1)) is not None:
                return choice
        if wrapped and isinstance(fields.get("name"), str):
            return self.matcher.find_exact(fields["name"])
        nested = [inner for inner in value.values() if isinstance(inner, dict | list)]
        return _select_only_choice([self.parse_value(inner, depth + 1) for inner in nested])

    def _parse_choice_field(self, value: Any, depth: int) -> int:
        """Return the index of the action that the value of a field such as `action` means.

        Raises:
            InvalidReply: the value is neither name nor number of an action, or is ambiguous.
        """
        if isinstance(value, dict):
            index = self.parse_value(value, depth + 1)
            if index is None:
                scalars = [inner for inner in value.values() if isinstance(inner, str | int | float)]
                if sum(isinstance(inner, int | float) for inner in scalars) < 2:
                    index = _select_only_choice([self._parse_action(inner, depth) for inner in scalars])
            if index is not None:
                return index
        if (index := self._parse_action(value, 0)) is None:
            raise InvalidReply(f"the {self.answer_name} {repr(value)[:60]} does not exist")
        return index

    def _parse_action(self, value: Any, depth: int) -> int | None:
        """Return the index of the action that a name, a number, or a list of them means; None if it is unclear."""
        if isinstance(value, str):
            return self._parse_name(value) if depth <= 5 else None
        if isinstance(value, list) and depth <= 5:
            indices = {self._parse_action(item, depth + 1) for item in value}
            return indices.pop() if len(indices) == 1 and len(value) < 4 else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and depth <= 5
        return self.matcher.index_of_number(value) if is_number and abs(value) < 1e6 else None

    def contradicts(self, text: str, answer: int) -> bool:
        if self.index_by_amount:
            return any(self.index_by_amount.get(float(number)) != answer for number in re.findall(r"\d{1,9}", text))
        if self._has_digits:
            return any(i != answer for _, _, i in self.matcher.find_mentions(text))
        return not has_negation(text) and self.parse_prose(to_ascii(text)) not in (None, answer)

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[int]]:
        text = strip_latex(to_ascii(text))
        unfenced_text = re.sub(r"^(?:```|~~~)\w*\n?|\n?(?:```|~~~)$", "", text.strip()).strip()
        if (index := self._parse_short_reply(unfenced_text)) is not None:
            return [] if truncated else [CandidateAnswer(0, len(text), index, certainty=1)]
        candidates = []
        for match in _LATEX_BOX.finditer(text):
            phrase = _LABEL_PREFIX.sub("", re.split(r"->|=>", " ".join(match[1].split()))[0])
            if (index := self._parse_label(phrase)) is not None:
                candidates.append(CandidateAnswer(match.start(), match.end(), index))
        for match in _NUMBER_CHOICE.finditer(text):
            phrase = re.split(r"\bbecause\b|\bsince\b|\bas\b", match["choice"])[0]
            if (match["kind"] or self.matcher.numbered) and (index := self._parse_name(phrase)) is not None:
                candidates.append(CandidateAnswer(match.start(), match.end(), index, certainty=1))
        for match in _ANSWER_LABEL.finditer(text):
            phrase = _LATEX_BOX.sub(lambda box: f" {box[1]} ", match["value"]).replace("$", " ")
            is_partial = truncated and match.end("value") == len(text.rstrip())
            if not is_partial and (index := self._parse_label(phrase)) is not None:
                sentence = re.split(r"[.!?;](?=\s)", match["value"], maxsplit=1)[0]
                candidates.append(CandidateAnswer(match.start(), match.end() + len(sentence), index))
        return candidates

    def parse_prose(self, text: str) -> int | None:
        # A number that the parser does not understand may contradict the name next to it.
        if REFUSAL_PHRASE.search(text) or (_NUMBER_MENTION.search(text) and not self._has_digits):
            return None
        markers = RECONSIDERATION_PHRASE.finditer(text)
        # A marker may also be the name of an action, e.g. `wait`.
        marker_ends = [marker.end() for marker in markers if self.matcher.find_exact(marker[0].strip(",.!")) is None]
        if marker_ends:  # decisions before the last marker are ignored
            return self.parse_prose(text[marker_ends[-1] :])
        decisions: list[int] = []
        for sentence in re.split(r"(?<=[.!?\u3002])\s+|\n+|\u3002", text)[:200]:
            is_undecided = is_example(sentence)
            if decisions and is_reopened(sentence):
                return None
            for clause in _CLAUSE_BOUNDARY.split(sentence):
                match = _DECISION_CUE.search(clause)
                if match is not None and (contrast := _CONTRAST.search(clause, match.end())) is not None:
                    clause_beginning = clause[: contrast.start()]
                    clause = clause_beginning if self.matcher.find_mentions(clause_beginning[match.end() :]) else clause
                is_undecided = is_undecided or bool(_INDECISION.search(clause[: match.start()] if match else clause))
                if _OTHER_TIME.search(clause) or _OPPONENT_DUTY.search(clause):
                    continue
                if match is None or is_undecided or has_negation(clause) or sentence.rstrip().endswith("?"):
                    continue
                indices = {i for _, _, i in self.matcher.find_mentions(clause[match.end() :])}
                indices = indices or {i for _, _, i in self.matcher.find_mentions(clause[match.start() :])}
                rest = sentence[sentence.index(clause) + match.end() :]
                if self.index_by_amount:
                    index = self._parse_amount_action(rest)
                    indices = set() if index is None else {index}
                if len(indices) > 1 or (
                    indices and (_INDECISION.search(clause[match.end() :]) or self._has_alternatives(rest))
                ):
                    return None
                decisions += indices
        if not decisions:
            return self._parse_last_sentence(text)
        return decisions[-1] if len(set(decisions)) == 1 else None

    def _has_alternatives(self, text: str) -> bool:
        """Return whether a text contains a condition, or several actions as steps or alternatives."""
        gaps = [text[end:start] for (_, end, i), (start, _, j) in pairwise(self.matcher.find_mentions(text)) if i != j]
        return any(not _EXPLANATION.search(gap) for gap in gaps) or is_conditional(text)

    def _parse_last_sentence(self, text: str) -> int | None:
        """Return the action if the last sentence, but no other one, consists only of an action; else None.

        Examples: `Stick it is.`, `So now: move east.` If another sentence also does, the text may be a list of steps.
        """
        sentences = [part.strip() for part in re.split(r"(?<=[.!?\u3002])\s+|\n+|\u3002", text)[-200:]]
        *preceding, last = [part for part in sentences if any(c.isalnum() for c in part)] or [""]
        if not last or last.endswith("?") or _INDECISION.search(last) or _OTHER_TIME.search(last) or len(last) > 200:
            return None
        clause_delimiters = list(_LAST_CLAUSE.finditer(last))
        if clause_delimiters and not _DECISION_LEAD.search(last[: clause_delimiters[-1].end()]):
            return None
        clauses = _LAST_CLAUSE.split(last)
        index = self._find_sole_action(clauses[-1])
        preceding_actions = {self._find_sole_action(re.sub(r"^[\W\d_]+", "", part)) for part in preceding} - {None}
        last_sentence_actions = {self._find_sole_action(part) for part in clauses} - {None}
        return index if not preceding_actions and last_sentence_actions == {index} else None

    def _find_sole_action(self, clause: str) -> int | None:
        """Return the action if a clause consists of one action and `_CLOSING_WORDS`; else None."""
        if has_negation(clause) or (self.index_by_amount and "+" in clause):
            return None
        index, other_words = self.matcher.find_sole_mention(clause)
        return index if all(word in _CLOSING_WORDS for word in other_words) else None

    def _parse_short_reply(self, text: str) -> int | None:
        """Return the action if the reply is short and consists of one action; else None."""
        if (
            len(text) > 80
            or any(sign in text for sign in ("\n", "?", "->", '":'))
            or is_reopened(text)
            or (_STATEMENT.search(text) and not _ACTION_NOUN.search(text))
        ):
            return None
        phrase = re.sub(r"[^\w\s()#:.,+\-\u2190-\u21ff\u2b05-\u2b07\u27a1]", " ", text).strip(" .,:!")
        index = self._parse_name(phrase)
        return self._parse_command(phrase) if index is None else index

    def _parse_command(self, text: str) -> int | None:
        """Return the action if a text begins with it and contains no other: `go forward 3 times`; else None."""
        mentions = self.matcher.find_mentions(text)
        begins_with_action = len(mentions) == 1 and mentions[0][0] == 0
        is_unclear = self.index_by_amount or has_negation(text) or _INDECISION.search(text) or _VERB.search(text)
        return mentions[0][2] if begins_with_action and not is_unclear else None

    def _parse_name(self, text: str) -> int | None:
        """Return the action that a short text names, else None; a number suffices for actions such as `take_1`."""
        is_unclear = bool(self.index_by_amount and re.search(r"\d\D+\d|\+\s?\d", re.sub(r"\([^()]*\)", "", text)))
        index = None if is_unclear else self.matcher.match_text(text)
        if index is not None or not self.index_by_amount or has_negation(text) or len(text) > 80:
            return index
        return self._parse_amount_action(re.sub(r"\([^()]*\)", "", to_ascii(text)))

    def _parse_amount_action(self, text: str) -> int | None:
        """Return the index of the action with the amount that a text begins with; None if the amount is uncertain."""
        match = _AMOUNT.match(text)
        if match is None or match["number"].startswith("+"):
            return None
        rest, number = text[match.end() :], parse_number(match["number"])
        is_unclear = number is None or re.search(r"\d", rest) or is_doubtful("", rest)
        return None if number is None or is_unclear else self.index_by_amount.get(number)

    def _parse_label(self, text: str) -> int | None:
        return self._parse_name(re.sub(r"[*`\"]", " ", text).strip().strip(" ._|"))


def _map_amounts_to_indices(names: Sequence[str]) -> dict[float, int]:
    """Return the index of each name by the number in it, if all are such as `take_0`, `take_1`, ...; else {}."""
    matches = [match for name in names if (match := re.fullmatch(r"(.*?)_?(\d+)", name))]
    stems = {match[1] for match in matches}
    if len(names) < 3 or len(matches) < len(names) or len(stems) != 1:
        return {}
    is_unspecific = normalize_name(stems.pop()) in ("", "option", "action", "choice")
    return {} if is_unspecific else {float(match[2]): i for i, match in enumerate(matches)}


def _select_only_choice(choices: Sequence[int | None]) -> int | None:
    """Return the only distinct index in `choices`, without None; None if there is no index.

    Raises:
        InvalidReply: there are different indices.
    """
    distinct = {choice for choice in choices if choice is not None}
    if len(distinct) > 1:
        raise InvalidReply("there are several different answers in the reply; give one")
    return distinct.pop() if distinct else None
