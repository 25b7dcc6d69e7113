"""Matching of texts to one of several names."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence

from llmrl.llms.reading.number_parser import TENS, UNITS, in_words
from llmrl.llms.reading.reply_cleaning import plain
from llmrl.llms.reading.word_lists import listed

_WORD = re.compile(r"[^\W\d_]+|\d+|[\u2190-\u21ff\u2b05-\u2b07\u27a1]")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SPACELESS = re.compile("[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]")
_NEGATED = re.compile(
    r"\b(?:not|n't|never|avoid|avoids|avoiding|instead of|rather than|without|neither|nor|cannot|wrong|don't|"
    r"shouldn't|won't|"
    r"against|unless|nicht|kein|pas|no|non|nunca)\b|\u4e0d|\u522b",
    re.IGNORECASE,
)
_IDIOM = re.compile(
    r"\bright (?:now|away|here|there|side|one|choice|move|thing|action|answer|after|before|in front|ahead)\b|"
    r"\b(?:all|that's|is|be|you're|you are) right\b"
    r"|\b(?:is|are|sticks?|moves?|steps?) left\b|\b(?:set|make|made|clean|give|end|build|speed|back|pick(?:s|"
    r"ed)?|line|catch|look|keep|tilt\w*) up (?=\w{4})(?!the|from|to)"
    r"|\bstick (?:to|with)\b|\bhit the (?:wall|ground|dealer)\b",
    re.IGNORECASE,
)
NOISE = frozenset(listed("noise"))
"""Words that do not help to identify a name."""
_DIRECTIONS = ("left", "right", "forward", "backward", "north", "south", "east", "west")

Mention = tuple[int, int, int]
"""Start and end of a mention of a name, and the name's index."""


def letters(text: str) -> str:
    """Normalise `text` for comparisons of names: only letters and digits, in one case, and number words as digits.

    >>> letters("Turn-Left") == letters("turn_left") == letters("turn left")
    True
    """
    return "".join(word for word, _, _ in words(text))


def words(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text in one case with their start and end; runs of digits are separate words."""
    text = plain(text).replace("\\", " ")
    found = []
    for match in _WORD.finditer(text):
        start = match.start()
        pieces = _HUMP.split(match[0]) if any(c.isupper() for c in match[0][1:]) else [match[0]]
        for piece in pieces:
            found.append((_DIGITS.get(piece.casefold(), piece.casefold()), start, start + len(piece)))
            start += len(piece)
    return found


class NameMatcher:
    """Matcher that finds which of `names` a text means.

    Args:
        names: names to match, at least one.
        described: description of each name, whose first clause is understood as a synonym.
        numbered: whether a number is the index of a name from 0. Otherwise it means the only name that contains it,
            or, if no name contains digits, the index.
    """

    def __init__(self, names: Sequence[str], described: Sequence[str] = (), numbered: bool = False) -> None:
        self.names, self.numbered = list(names), numbered
        self._digits = any(any(c.isdigit() for c in name) for name in names)
        exact: dict[str, set[int]] = defaultdict(set)
        for i, name in enumerate(names):
            exact[letters(name)].add(i)
        other: dict[str, set[int]] = defaultdict(set)
        for i, text in enumerate(described):
            other[letters(re.split(r"[,;:(]", text)[0])].add(i)
        for phrases, owning in _rows():
            owners = {i for phrase in owning for i in exact.get(phrase, ())}
            if not owners:
                owners = {i for phrase in owning for i in other.get(phrase, ())}
            if len(owners) == 1:
                for phrase in phrases:
                    other[phrase] |= owners
        self._exact = _certain(exact)
        self._other = {key: i for key, i in _certain(other).items() if key not in exact}
        self._longest = max((len(key) for key in (*self._exact, *self._other)), default=0)
        self._known = {word for text in (*names, *described) for word, _, _ in words(text)}

    def exact(self, text: str) -> int | None:
        """Return the index of the name that `text` spells in some way or is a synonym of; None if there is none."""
        key = letters(text)
        found = self._exact.get(key, self._other.get(key))
        if found is not None:
            return found
        key = "".join(word for word, _, _ in words(text) if word not in NOISE)
        return self._exact.get(key, self._other.get(key)) if key else None

    def knows(self, word: str) -> bool:
        """Return whether a word occurs in a name or a description."""
        return word.casefold() in self._known

    def number(self, number: float) -> int | None:
        """Return the index of the name that a number means; None if there is none."""
        if number != int(number) or abs(number) > 10**6:
            return None
        if self._digits and not self.numbered:
            having = [
                i for i, name in enumerate(self.names) if str(int(number)) in (word for word, _, _ in words(name))
            ]
            return having[0] if len(having) == 1 else None
        return int(number) if 0 <= number < len(self.names) else None

    def mentions(self, text: str) -> list[Mention]:
        """Return the mentions of names in a text, the longest one at each position, without idioms."""
        found: list[Mention] = []
        spans = words(text)
        idioms = [(match.start(), match.end()) for match in _IDIOM.finditer(plain(text))]
        i = 0
        while i < len(spans):
            key, best = "", None
            for j in range(i, min(i + 8, len(spans))):
                key += spans[j][0]
                if len(key) > self._longest:
                    break
                chosen = self._exact.get(key, self._other.get(key))
                if chosen is not None:
                    best = (j, chosen)
            if best is None and _SPACELESS.search(spans[i][0]):
                found += self._in_run(*spans[i])
            if best is not None:
                start, end = spans[i][1], spans[best[0]][2]
                if not any(a <= start < b for a, b in idioms):
                    found.append((start, end, best[1]))
                i = best[0]
            i += 1
        return found

    def meant(self, text: str) -> int | None:
        """Return the index of the one name that a short text means; None if there is none.

        Examples: `2: move forward`, `Turn-Left`, `left (the ball is there)`."""
        text = plain(text).strip().strip("*_`\"'<>[]{}$ .\n")
        if not text or len(text) > 300:
            return None
        numbered = re.fullmatch(
            r"(?:(?:action|option|choice|move|answer|number|no\.?|index)\b\s*[:#]?\s*|"
            r"#\s*)?(\d{1,6}(?:\.\d+)?)\s*(?:[.:)\-=,]\s*|(?=\()|\s|\Z)(.*)",
            text,
            re.IGNORECASE | re.DOTALL,
        )
        whole = self.exact(text)
        if whole is not None and not (numbered and self.numbered):
            return whole
        if numbered and not (self._digits and not self.numbered and numbered[2]):
            index, rest = self.number(float(numbered[1])), numbered[2].strip(" ()[]\"'*.`")
            if index is None or not rest:
                return index
            named = self.meant(rest)
            return index if named == index else None
        trailing = re.fullmatch(
            r"(.*?)[\s(\[]+(?:#|no\.?|number|index|action)?\s*(\d{1,6})\s*[)\]]?", text, re.IGNORECASE | re.DOTALL
        )
        if trailing and (named := self.exact(trailing[1])) is not None:
            return named if self.number(float(trailing[2])) == named else None
        gloss = re.fullmatch(r"[^()\d]+\(([^()]+)\)", text)
        if gloss and (named := self.exact(gloss[1])) is not None:
            return named
        number = in_words(text) if text.casefold().split()[0] in UNITS else None
        return self._first_clause(text) if number is None or whole is not None else self.number(number)

    def _first_clause(self, text: str) -> int | None:
        first, *rest = re.split(
            r"[,;:()\n]|\.(?:\s|$)|\s-+\s|\s\u2014\s|\bbecause\b|\bsince\b|\bso that\b", text, maxsplit=1
        )
        if _NEGATED.search(first):
            return None
        named = self.exact(first)
        if named is None:
            named = self._direction(first)
        if named is None:
            mentioned = self.mentions(first)
            chosen = {i for _, _, i in mentioned}
            if len(chosen) != 1:
                return None
            covered = [(a, b) for a, b, _ in mentioned]
            left_over = [w for w, a, b in words(first) if not any(x <= a and b <= y for x, y in covered)]
            if any(w not in NOISE and w not in self._known and not _SPACELESS.search(w) for w in left_over):
                return None
            named = chosen.pop()
        more = rest[0] if rest else ""
        listed_next = {self.exact(piece) for piece in re.split(r"[,;.\n]", more) if piece.strip()}
        if listed_next - {None, named}:
            return None  # a mere list of names
        if re.match(
            r"\s*(?:or|then|and|oder|und|ou|et|followed by|if|unless|maybe|\u7136\u540e)\b", more
        ) and self.mentions(more):
            return None
        return named

    def _direction(self, text: str) -> int | None:
        """Return the only name with the direction that is the whole text, e.g. `turn left` for `left`."""
        said = [word for word, _, _ in words(text) if word not in NOISE]
        if len(said) != 1 or said[0] not in _DIRECTIONS:
            return None
        having = [i for i, name in enumerate(self.names) if said[0] in (word for word, _, _ in words(name))]
        return having[0] if len(having) == 1 else None

    def _in_run(self, run: str, start: int, end: int) -> list[Mention]:
        """Return mentions inside a run of characters of a script without spaces."""
        found, i = [], 0
        while i < len(run):
            for length in range(min(self._longest, len(run) - i), 0, -1):
                key = run[i : i + length]
                chosen = self._exact.get(key, self._other.get(key))
                if chosen is not None:
                    found.append((start + i, start + i + length, chosen))
                    i += length - 1
                    break
            i += 1
        return found


@functools.cache
def _rows() -> list[tuple[list[str], list[str]]]:
    """Return, for each row of synonyms, all its phrases and those that can link the row to a name."""
    rows = listed("same")
    split = [re.split("[|;]", row) for row in rows]
    own = [row.split(";")[0].split("|") for row in rows]
    return [([letters(x) for x in all_], [letters(x) for x in some]) for all_, some in zip(split, own, strict=True)]


def negated(clause: str) -> bool:
    """Return whether a clause contains a negation."""
    return _NEGATED.search(clause) is not None


def _certain(found: dict[str, set[int]]) -> dict[str, int]:
    return {key: next(iter(owners)) for key, owners in found.items() if key and len(owners) == 1}


_DIGITS = (
    {word: str(i) for i, word in enumerate(UNITS) if word != "one"}
    | {word: str(n) for word, n in TENS.items()}
    | {"one": "1"}
)
