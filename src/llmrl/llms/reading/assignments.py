"""Numbers that sentences and lines give to names: `pay 2 for cleaning, nothing for eating`, `the first should be 1`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmrl.llms.reading.non_answer_text import exemplary
from llmrl.llms.reading.number_parser import ORDINALS, SPOKEN, WRITTEN
from llmrl.llms.reading.reply_cleaning import blank_spans

_MONEY = r"(?:[$\u20ac\u00a3\u00a5]\s?)?"
_DIGITS = rf"{_MONEY}(?<![\w.])(?:{WRITTEN})(?![\w]|\.\d)"
_VALUE = re.compile(rf"(?P<digits>{_DIGITS})|(?<![\w.-])(?P<spoken>{SPOKEN})(?![\w-])", re.IGNORECASE)
_NUM = rf"(?:{_MONEY}(?<![\w.])[+-]?(?:\d{{1,20}}(?:\.\d{{1,20}})?|\.\d{{1,20}})\s?%?)"
_PLURAL_NOUNS = r"(?:brackets?|knobs?|levers?|rates?|numbers?|parameters?|params?|values?|weights?|tiers?|bands?|ones?)"
# What is no number that anything is set to: what it was, of which turn it is, how much it changes, what bounds it.
_DROPPED = re.compile(
    rf"\b(?:generations?|gen|rounds?|iterations?|rows?|steps?|turns?|proposal|context)\b[\s#:*]{{0,3}}(?:number )?"
    rf"\d{{1,6}}(?: (?:and|to|-) \d{{1,6}})?(?![\w.%]*[\w%])|"
    rf"\b(?:payoff|return|score)\b[\s:=]{{0,3}}(?:of |was |is )?{_NUM}(?![\w.]*\w)|"
    rf"\b(?:instead of|rather than|compared (?:to|with)|relative to|up from|down from|(?:which )?(?:was|were)(?: at)?|"
    rf"previously|formerly|before it was|not)\s+{_NUM}(?![\w.]*\w)|"
    rf"\b(?:two|three|four|five|six|all|\d{{1,2}})\s+{_PLURAL_NOUNS}\b|"
    r"\bfrom (?:the )?(?:lowest|bottom|poorest|first|low) (?:\w+ )?to (?:the )?(?:highest|top|richest|last|"
    r"high)(?: \w+)?",
    re.IGNORECASE,
)
_SLASHED = re.compile(rf"{_NUM}(?:/{_NUM}){{2,}}")
_ASIDE = re.compile(r"\((?P<inner>[^()\n]{0,120})\)")
_PURE = re.compile(rf"\s*=?\s*{_NUM}(?: ?[A-Za-z%\u00b0]{{1,8}}|(?:\s*[,/;]\s*{_NUM})+)?\s*")
_FROM_TO = re.compile(
    rf"\bfrom\s+{_NUM}\s*(?:[A-Za-z]+\s)?(?:to|down to|up to|->|\u2192)\s*(?P<kept>{_NUM})(?![\w.]*\w)", re.IGNORECASE
)
_BY_TO = re.compile(
    rf"\bby\s+{_NUM}\s*(?:[A-Za-z]+\s)?,?\s*(?:to|so (?:that )?(?:it|this) (?:is|becomes)|giving|which (?:gives|makes)|"
    rf"->|=>|=|\u2192)\s*(?P<kept>{_NUM})(?![\w.]*\w)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    rf"\b(?:between|from)\s+{_NUM}\s*(?:and|to|-)\s*{_NUM},?\s*(?:\(\s*)?(?:say|namely|more exactly|precisely|"
    rf"specifically),?"
    rf"\s*(?:at )?(?P<kept>{_NUM})(?![\w.]*\w)",
    re.IGNORECASE,
)
_ARROW = re.compile(rf"{_NUM}\s*(?:->|=>|\u2192|\u27f6)\s*(?P<kept>{_NUM})(?![\w.]*\w)")
_BOUND = re.compile(
    rf"(?:\b(?:at least|at most|more than|less than|no (?:more|less|lower|higher) than|up to|above|below|over|"
    rf"under|around|"
    rf"about|approximately|roughly|near|close to|nearly|almost|by|between|minimum of|maximum of|or|times|exceed|"
    rf"beyond)|"
    rf"[~<>\u2248\u2264\u2265\u00b1\u00d7])\s*{_NUM}|"
    rf"{_NUM}\s*(?:-|\u2013|\.\.|to|or|\u00b1|~)\s*{_NUM}|{_NUM}\s*(?:or (?:so|more|less|higher|lower)|upwards|"
    rf"downwards|-ish)\b",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:was|were|had|gave|got|yielded|scored|achieved|reached|produced|earned|brought|used|tried|tested|resulted|"
    r"best so far|so far|previous|last time|earlier|currently|at present|best (?:point|row|one|result|generation)|"
    r"worked)\b",
    re.IGNORECASE,
)
_PLANNED = re.compile(
    r"\b(?:i|i'll|i'd|i'm|we|we'll|let's|let us|should|shall|will|would|propos\w*|set|now|new|next|choose|raise|lower|"
    r"reduce|increase|decrease|keep)\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:if|suppose|assum(?:e|ing)|imagine|when|unless|either|might|may|could|perhaps|maybe|whether|possibly|"
    r"worth (?:trying|testing)|ranges?|"
    r"for example|for instance|e\.g\.|such as|something like|values? like|and so on|etc|(?:do not|don't|"
    r"never) (?:set|use|choose|pay|raise|lower|go|give|put|make|change|let|exceed)|too (?:low|high|"
    r"much|little)|would you|do you|not sure|unsure|depends?|depending|reply with|one can)\b|\?\s*\Z|\.\.\.|\u2026",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|never|avoid|without)\b|n't\b", re.IGNORECASE)
_SO = re.compile(r"\b(?:so|therefore|thus|hence|but|and (?:it|they))\b|;", re.IGNORECASE)
_LINK = re.compile(
    r"(?:\A|\b(?:to|is|at|of|be|are|gets?|receives?|pays?|paid|with|as|becomes?|stays?|remains?|earns?|costs?|by|"
    r"(?:set|fix|put|keep|paid|taxed|charged)(?: to| at)?|exactly|only|again|just|it|them|auf|\u4e3a|"
    r"\u8bbe\u4e3a)|[:=\uff1a,(\u2192|-]|->|=>)"
    r"[\s*_`\"'$]*\Z",
    re.IGNORECASE,
)
_FOR = re.compile(
    r"\A[\s*_`\"']*(?:\w+[\s*_`]+){0,3}?(?:for|to|at|on|in|as|per)[\s*_`\"']+(?:(?:the|an?|any|each|every|all|those|agents?|"
    r"players?|lever|payment|price|\w+ing)[\s*_`\"']+){0,3}\Z|\A[\s*_`\"']{1,4}\Z",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"[\s,;/&+*_`\"'=]*(?:and|as well as|plus|und|et|y)?[\s,*_`\"']*(?:the|for|to|at|on|both)?[\s*_`\"']*",
    re.IGNORECASE,
)
_REST = r"(?:all )?(?:the )?(?:others|rest|remaining \w+|other \w+)\b|(?:every|any)thing else\b"
_ALL = r"\b(?:all|each|every|both)\b(?: (?:of )?(?:them|the|three|two|four|five)\b)?(?: (?:\w+s|one|\w+)\b)?"
_SENTENCES = re.compile(r"(?<=[.!?\u3002])\s+|\n+|\u3002|;\s")
_PROPOSES = re.compile(
    r"\bi(?:'ll|'d| will| would)?(?: \w+)? ?(?:go with|propose|suggest|choose|pick|try|use|set|submit|start with|"
    r"recommend|"
    r"select|take|answer|test|move to)\b|\bmy (?:\w+ )?(?:proposal|answer|choice|suggestion|pick|vector|numbers|"
    r"values)\b|"
    r"\b(?:let's|let us) (?:try|use|go with|set|take|test)\b|\A\W*(?:use|try|set|proposal|answer|final answer|"
    r"propose|choose)\b",
    re.IGNORECASE,
)
_NOUNS = "number|parameter|param|bracket|value|rate|one|entry|knob|weight|coefficient|tier|band|lever"
_LEVELS = {0: "lowest|bottom|poorest|low", 1: "middle|mid|medium|central", 2: "highest|top|richest|high"}


@dataclass(frozen=True)
class _Token:
    """A name (its places from 0) or a number in a sentence."""

    start: int
    end: int
    places: tuple[int, ...] = ()
    said: str = ""


class Assignments:
    """Finds what sentences set each of several names to.

    Args:
        names: of the numbers.
        number: the number that a text means for the place of a name; None where it means none.
    """

    def __init__(self, names: Sequence[str], number: Callable[[str, int], float | None]) -> None:
        self.d, self.number = len(names), number
        self._all = tuple(range(self.d))
        patterns = sorted(((_called(names, i), i) for i in range(self.d)), key=lambda each: -len(names[each[1]]))
        alternatives = [f"(?P<n{i}>{pattern})" for pattern, i in patterns]
        self._spelled = re.compile(rf"(?<!\w)(?:{'|'.join(map(spelled, names))})(?!\w)", re.IGNORECASE)
        other = next((i for i, name in enumerate(names) if name.casefold() in ("other", "others", "rest")), None)
        if other is None:
            alternatives.append(f"(?P<rest>{_REST})")
        self._name = re.compile(rf"(?<![\w.])(?:{'|'.join(alternatives)})(?![\w\]])", re.IGNORECASE)

    def read(self, text: str) -> list[float] | None:
        """The `d` numbers that sentences give, each at least once and none twice with different values; None else."""
        named: dict[int, float] = {}
        rest: set[float] = set()
        for sentence in _planned(text):
            for token, value in self._set(sentence) or ():
                places = token.places or (-1,)
                for place in places:
                    number = self.number(value.said, max(place, 0))
                    if number is None or (place >= 0 and named.setdefault(place, number) != number):
                        return None
                    if place < 0:
                        rest.add(number)
        if rest and len(rest) == 1 and len(named) < self.d:
            named = dict.fromkeys(self._all, rest.pop()) | named
        if len(named) == self.d:
            return [named[i] for i in self._all]
        return None if named else self._without_names(text)

    def _set(self, sentence: str) -> list[tuple[_Token, _Token]] | None:
        """Names and the number that each is given in a sentence; None where that is not certain."""
        tokens, sentence = self._tokens(sentence)
        kinds = "".join("N" if not token.said else "V" for token in tokens)
        half = len(tokens) // 2
        if len(tokens) > 3 and kinds in ("N" * half + "V" * half, "V" * half + "N" * half):
            names, values = tokens[:half], tokens[half:]
            if kinds[0] == "V":
                names, values = values, names
            return list(zip(names, values, strict=True)) if self._listed(sentence, names) else None
        if re.fullmatch(r"(?:N+V)+", kinds):
            return self._paired(sentence, tokens, names_first=True)
        if re.fullmatch(r"(?:VN+)+", kinds):
            return self._paired(sentence, tokens, names_first=False)
        return None

    def _paired(self, sentence: str, tokens: Sequence[_Token], names_first: bool) -> list[tuple[_Token, _Token]] | None:
        found: list[tuple[_Token, _Token]] = []
        names: list[_Token] = []
        value: _Token | None = None
        for token in tokens:
            if names_first and token.said:
                gap = sentence[names[-1].end : token.start]
                if not self._listed(sentence, names) or not _linked(gap):
                    return None
                found += [(name, token) for name in names]
                names = []
            elif token.said:
                value, names = token, []
            else:
                names.append(token)
                if not names_first:
                    assert value is not None
                    if len(names) == 1 and not _FOR.match(sentence[value.end : token.start]):
                        return None
                    if not self._listed(sentence, names[-2:]):
                        return None
                    found.append((token, value))
        return found

    def _listed(self, sentence: str, names: Sequence[_Token]) -> bool:
        """Whether names are nothing but listed one beside the other."""
        return all(_JOINED.fullmatch(sentence[a.end : b.start]) for a, b in pairwise(names))

    def _tokens(self, sentence: str) -> tuple[list[_Token], str]:
        """Names and numbers in order, and the sentence without names and what is no number that anything is set to;
        no tokens where a number beside names is a range, a change or a bound."""
        names = [
            _Token(
                match.start(), match.end(), () if match.lastgroup == "rest" else (int((match.lastgroup or "n0")[1:]),)
            )
            for match in self._name.finditer(sentence)
        ]
        hidden = blank_spans(sentence, [(name.start, name.end) for name in names])
        if not names and (match := re.search(_ALL, hidden, re.IGNORECASE)):
            names = [_Token(match.start(), match.end(), self._all)]
            hidden = blank_spans(hidden, [match.span()])
        if not names:
            return [], hidden
        hidden = _simple(hidden)
        if _BOUND.search(hidden):
            return [], hidden
        values = []
        for match in _VALUE.finditer(hidden):
            spoken = match["spoken"]
            after = hidden[match.end() :]
            if spoken and not (
                _linked(hidden[: match.start()][-60:]) or re.match(r"\s+(?:\w+\s+)?(?:for|to|at|in)\b", after)
            ):
                continue
            said = match[0].strip().lstrip("$\u20ac\u00a3\u00a5 ")
            if (unit := re.match(r"\s?(?:%|per ?cent\b|percent\b)", after)) and "%" not in said and "cent" not in said:
                said += " %"
                values.append(_Token(match.start(), match.end() + unit.end(), said=said))
                continue
            values.append(_Token(match.start(), match.end(), said=said))
        return sorted([*names, *values], key=lambda token: token.start) if values else [], hidden

    def _without_names(self, text: str) -> list[float] | None:
        """The one list of exactly `d` numbers that a sentence proposes, in the order of the question."""
        if self.d < 2:
            return None
        joint = r"\s*(?:,\s*and\b|,|/|\||\band\b)\s*"
        chain = re.compile(rf"(?<![\w.,/]){_NUM}(?:{joint}{_NUM}){{{self.d - 1}}}(?![\w%]|\.\d|{joint}{_NUM})")
        found: set[tuple[float | None, ...]] = set()
        for sentence in _planned(text):
            cue = _PROPOSES.search(sentence)
            said = _DROPPED.sub(lambda m: " " * len(m[0]), sentence)
            if cue is None or self._spelled.search(said):
                continue
            said = _simple(said)
            for match in chain.finditer(said, cue.start()):
                if _BOUND.search(said[max(match.start() - 12, 0) : match.start()] + "1") and re.search(
                    r"(?:between|from|about|around|over|under|by)\s*\Z", said[: match.start()]
                ):
                    continue
                pieces = re.split(r"\s*(?:,\s*and\b|,|/|\||\band\b)\s*", match[0])
                found.add(tuple(self.number(piece.strip(), i) for i, piece in enumerate(pieces)))
        if len(found) != 1:
            return None
        numbers = found.pop()
        return [x for x in numbers if x is not None] if None not in numbers else None


def _planned(text: str) -> Iterator[str]:
    """The sentences that say what is to be, without hedges, conditions, questions and what was."""
    for sentence in _SENTENCES.split(text)[:300]:
        if len(sentence) > 2000 or _HEDGED.search(sentence) or exemplary(sentence[:400]):
            continue
        if _PAST.search(_ASIDE.sub(" ", sentence)) and not _PLANNED.search(sentence):
            continue
        yield sentence


def _simple(sentence: str) -> str:
    """A sentence without asides and old numbers; of ranges and changes that end in a number that one only."""
    sentence = _ASIDE.sub(lambda m: m[0] if _PURE.fullmatch(m["inner"]) else " " * len(m[0]), sentence)
    sentence = _SLASHED.sub(lambda m: m[0].replace("/", ";"), sentence)
    for pattern in (_BETWEEN, _FROM_TO, _BY_TO, _ARROW):
        sentence = pattern.sub(lambda m: f"{' to ':<{m.start('kept') - m.start()}}{m['kept']}", sentence)
    return _DROPPED.sub(lambda m: ("." if re.match("was|were|not", m[0], re.IGNORECASE) else " ") * len(m[0]), sentence)


def _linked(gap: str) -> bool:
    """Whether what stands between a name and a number says that the one is set to the other."""
    said = _SO.split(gap)[-1]
    return (
        len(gap) < 160
        and not _NOT.search(said)
        and bool(_LINK.search(gap.rstrip(" $\u20ac\u00a3")) or not gap.strip(" *_`\"'"))
    )


def spelled(name: str) -> str:
    r"""A regular expression for a name, in whichever spelling: `rate_1` is `Rate 1`, `rate\_1` and `rate-1`, too."""
    return r"[\s_\\\-]{0,3}".join(re.escape(piece) for piece in re.findall(r"[^\W\d_]+|\d+|[^\w\s]", name))


def _called(names: Sequence[str], i: int) -> str:
    """A regular expression of what sentences call a name: itself, its -ing, its ordinal number, its index."""
    name = names[i]
    ways = [spelled(name)]
    if name.isalpha():
        ways = [rf"{ways[0]}(?:ing|s)?"] + ([rf"{re.escape(name[:-1])}ing"] if name.endswith("e") else [])
        if name.casefold() in ("other", "others"):
            ways = [
                r"(?:any|every)thing else",
                r"(?:all |any )?others?(?: (?:actions?|activit(?:y|ies)|things?|behaviou?rs?))?",
            ]
    else:
        ways += _counted(names, i)
    gloss = r"(?:[ \t*_`]*\([^()\n]{1,60}\)(?=[ \t*_`]*[:=\uff1a]))?"
    return f"(?:{'|'.join(ways)}){gloss}"


def _counted(names: Sequence[str], i: int) -> list[str]:
    """Ordinals and indices of a name with a number in it, among those that differ from it in the number only."""
    parts = re.match(r"\W*([^\W\d_]*)[\W_]*(\d*)", names[i])
    assert parts is not None
    stem, digits = parts[1], parts[2]
    family = [k for k, name in enumerate(names) if re.match(rf"\W*{re.escape(stem)}[\W_]*\d+\W*\Z", name)]
    if not digits or i not in family:
        return []
    order = family.index(i)
    ordinal = rf"{order + 1}(?:st|nd|rd|th)" + (f"|{ORDINALS[order]}" if order < len(ORDINALS) else "")
    noun = rf"(?:{re.escape(stem)}|{_NOUNS})"
    if len(family) < len(names):
        return [rf"(?:{ordinal})\s+{re.escape(stem)}"]
    ways = [rf"(?:{ordinal})(?:[\s_]+(?:tax[\s_]+)?{noun})?", rf"{noun}\s+(?:number\s+)?{digits}"]
    if (
        stem.casefold() in ("rate", "tax", "bracket")
        and len(names) <= 3
        and (order in (0, len(names) - 1) or len(names) == 3)
    ):
        level = 0 if order == 0 else 2 if order == len(names) - 1 else 1
        ways.append(rf"(?:{_LEVELS[level]})(?:[\s-]+(?:tax|income|earning)?[\s-]*{noun})?(?: earners)?")
    return ways
