"""Matching of texts with names, e.g. of actions or objects, in different spellings and languages."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence

from llmrl.llms.reading.number_parser import SMALL_NUMBERS, TENS, parse_number_words
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import to_ascii

_WORD = re.compile(r"[^\W\d_]+|\d+|[\u2190-\u21ff\u2b05-\u2b07\u27a1]")
_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SPACELESS_CHARACTER = re.compile("[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff]")
_NEGATION = load_pattern("negations", "foreign_negations")
_IDIOM = load_pattern("idioms")
UNINFORMATIVE_WORDS = frozenset(load_word_list("noise"))
"""Words that do not distinguish names."""
_DIRECTIONS = ("left", "right", "forward", "backward", "north", "south", "east", "west")
_CONTINUATION_WORD = re.compile(r"\s*(?:or|then|and|oder|und|ou|et|followed by|if|unless|maybe|\u7136\u540e)\b")
_DIGITS_BY_WORD = {word: str(number) for word, number in [*zip(SMALL_NUMBERS, range(20), strict=True), *TENS.items()]}

Mention = tuple[int, int, int]
"""Start and end of a name in a text, and the index of the name."""


def normalize_name(text: str) -> str:
    """Return `text` in a form for comparisons of names: lower case, only letters and digits, number words as digits.

    >>> normalize_name("Turn-Left") == normalize_name("turn_left") == normalize_name("turn left")
    True
    """
    return "".join(word for word, _, _ in split_words(text))


def split_words(text: str) -> list[tuple[str, int, int]]:
    """Return (word, start, end) for each lower-case word; digits, and parts of `camelCase`, are separate words."""
    text = to_ascii(text).replace("\\", " ")
    tokens = []
    for match in _WORD.finditer(text):
        start = match.start()
        pieces = _CASE_BOUNDARY.split(match[0]) if any(c.isupper() for c in match[0][1:]) else [match[0]]
        for piece in pieces:
            tokens.append((_DIGITS_BY_WORD.get(piece.casefold(), piece.casefold()), start, start + len(piece)))
            start += len(piece)
    return tokens


class NameMatcher:
    """Matcher that finds given names in texts.

    Args:
        names: names to match, at least one.
        descriptions: description of each name, whose first clause is a synonym of the name.
        numbered: whether a number always means the index of a name, from 0. Otherwise it means the only name that
            contains the number or, if no name contains digits, the index.
    """

    def __init__(self, names: Sequence[str], descriptions: Sequence[str] = (), numbered: bool = False) -> None:
        self.names, self.numbered = list(names), numbered
        self._has_digits = any(any(c.isdigit() for c in name) for name in names)
        indices_by_name: dict[str, set[int]] = defaultdict(set)
        for i, name in enumerate(names):
            indices_by_name[normalize_name(name)].add(i)
        indices_by_synonym: dict[str, set[int]] = defaultdict(set)
        for i, text in enumerate(descriptions):
            indices_by_synonym[normalize_name(re.split(r"[,;:(]", text)[0])].add(i)
        for phrases, compared_phrases in _load_synonyms():
            indices = {i for phrase in compared_phrases for i in indices_by_name.get(phrase, ())}
            indices = indices or {i for phrase in compared_phrases for i in indices_by_synonym.get(phrase, ())}
            if len(indices) == 1:
                for phrase in phrases:
                    indices_by_synonym[phrase] |= indices
        self._index_by_phrase = {
            key: next(iter(indices))
            for key, indices in (indices_by_synonym | indices_by_name).items()
            if key and len(indices) == 1
        }
        self._max_phrase_length = max(map(len, self._index_by_phrase), default=0)
        self._vocabulary = {word for text in (*names, *descriptions) for word, _, _ in split_words(text)}

    def find_exact(self, text: str) -> int | None:
        """Return the index of the name that `text` consists of, in any spelling or as a synonym; None: no name."""
        index = self._index_by_phrase.get(normalize_name(text))
        return self._index_by_phrase.get("".join(_informative_words(text))) if index is None else index

    def index_of_number(self, number: float) -> int | None:
        """Return the index of the name that a number means (see `numbered`); None if there is none."""
        if number != int(number) or abs(number) > 10**6:
            return None
        if self._has_digits and not self.numbered:
            return self._find_only_name_with(str(int(number)))
        return int(number) if 0 <= number < len(self.names) else None

    def find_mentions(self, text: str) -> list[Mention]:
        """Return the names in a text with their spans: the longest at each position; parts of idioms are no names."""
        mentions: list[Mention] = []
        words = split_words(text)
        idioms = [(match.start(), match.start() + len(match[0].rstrip())) for match in _IDIOM.finditer(to_ascii(text))]
        i = 0
        while i < len(words):
            key, longest_match = "", None
            for j in range(i, min(i + 8, len(words))):
                key += words[j][0]
                if len(key) > self._max_phrase_length:
                    break
                if (index := self._index_by_phrase.get(key)) is not None:
                    longest_match = (j, index)
            if longest_match is None and _SPACELESS_CHARACTER.search(words[i][0]):
                mentions += self._find_mentions_in_unspaced(*words[i])
            if longest_match is not None:
                start, end = words[i][1], words[longest_match[0]][2]
                # A name that equals the idiom, such as `pick up`, is a mention.
                if not any(low <= start < high and (start, end) != (low, high) for low, high in idioms):
                    mentions.append((start, end, longest_match[1]))
                i = longest_match[0]
            i += 1
        return mentions

    def match_text(self, text: str) -> int | None:
        """Return the index of the name in a short text; None if there is none or if it is uncertain.

        Examples: `2: move forward`, `Turn-Left`, `left (the ball is there)`.
        """
        text = to_ascii(text).strip().strip("*_`\"'<>[]{}$ .\n")
        if not text or len(text) > 300:
            return None
        number_match = re.fullmatch(
            r"(?:(?:action|option|choice|move|answer|number|no\.?|index)\b\s*[:#]?\s*|"
            r"#\s*)?(\d{1,6}(?:\.\d+)?)\s*(?:[.:)\-=,]\s*|(?=\()|\s|\Z)(.*)",
            text,
            re.IGNORECASE | re.DOTALL,
        )
        exact_index = self.find_exact(text)
        if exact_index is not None and not (number_match and self.numbered):
            return exact_index
        if number_match and not (self._has_digits and not self.numbered and number_match[2]):
            index, rest = self.index_of_number(float(number_match[1])), number_match[2].strip(" ()[]\"'*.`")
            if index is None or not rest:
                return index
            return index if self.match_text(rest) == index else None
        trailing_number = re.fullmatch(
            r"(.*?)[\s(\[]+(?:#|no\.?|number|index|action)?\s*(\d{1,6})\s*[)\]]?", text, re.IGNORECASE | re.DOTALL
        )
        if trailing_number and (find_name_index := self.find_exact(trailing_number[1])) is not None:
            return find_name_index if self.index_of_number(float(trailing_number[2])) == find_name_index else None
        gloss_match = re.fullmatch(r"[^()\d]+\(([^()]+)\)", text)
        if gloss_match and (find_name_index := self.find_exact(gloss_match[1])) is not None:
            return find_name_index
        number = parse_number_words(text) if text.casefold().split()[0] in SMALL_NUMBERS else None
        if number is not None and exact_index is None:
            return self.index_of_number(number)
        return self._match_first_clause(text)

    def _match_first_clause(self, text: str) -> int | None:
        """Return the index of the only name in the first clause; None if there is none or if other names follow."""
        first, *rest = re.split(
            r"[,;:()\n]|\.(?:\s|$)|\s-+\s|\s\u2014\s|\bbecause\b|\bsince\b|\bso that\b", text, maxsplit=1
        )
        if _NEGATION.search(first):
            return None
        tokens = _informative_words(first)
        index = self.find_exact(first)
        if index is None and len(tokens) == 1 and tokens[0] in _DIRECTIONS:
            index = self._find_only_name_with(tokens[0])  # `turn left` for `left`
        if index is None:
            index, other_words = self.find_sole_mention(first)
            vocabulary = UNINFORMATIVE_WORDS | self._vocabulary
            if any(word not in vocabulary and not _SPACELESS_CHARACTER.search(word) for word in other_words):
                return None
        remainder = rest[0] if rest else ""
        next_indices = {self.find_exact(piece) for piece in re.split(r"[,;.\n]", remainder) if piece.strip()}
        is_list = next_indices - {None, index} or re.match(r"\s*\d+\W*\Z", remainder)
        is_continued = _CONTINUATION_WORD.match(remainder) and self.find_mentions(remainder)
        return None if is_list or is_continued else index

    def find_sole_mention(self, text: str) -> tuple[int | None, list[str]]:
        """Return the index of the only name in a text (else None), and the words that are not part of a name."""
        mentions = self.find_mentions(text)
        indices = {i for _, _, i in mentions}
        other_words = [
            word for word, start, end in split_words(text) if not any(x <= start and end <= y for x, y, _ in mentions)
        ]
        return indices.pop() if len(indices) == 1 else None, other_words

    def _find_only_name_with(self, word: str) -> int | None:
        """Return the index of the only name that contains a word; None if there is none or several."""
        matches = [i for i, name in enumerate(self.names) if word in (other for other, _, _ in split_words(name))]
        return matches[0] if len(matches) == 1 else None

    def _find_mentions_in_unspaced(self, run: str, start: int, end: int) -> list[Mention]:
        """Return the names in `run`, characters without spaces that have the span `start`, `end` in the text."""
        mentions, i = [], 0
        while i < len(run):
            for length in range(min(self._max_phrase_length, len(run) - i), 0, -1):
                if (index := self._index_by_phrase.get(run[i : i + length])) is not None:
                    mentions.append((start + i, start + i + length, index))
                    i += length - 1
                    break
            i += 1
        return mentions


def _informative_words(text: str) -> list[str]:
    """Return the words of a text that are not `UNINFORMATIVE_WORDS`."""
    return [word for word, _, _ in split_words(text) if word not in UNINFORMATIVE_WORDS]


@functools.cache
def _load_synonyms() -> list[tuple[list[str], list[str]]]:
    """Return, for each row of the list `same`, all phrases, and the phrases that are compared with names."""
    return [
        (
            [normalize_name(phrase) for phrase in re.split("[|;]", row)],
            [normalize_name(phrase) for phrase in row.split(";")[0].split("|")],
        )
        for row in load_word_list("same")
    ]


def has_negation(clause: str) -> bool:
    """Return whether a clause contains a negation."""
    return _NEGATION.search(clause) is not None
