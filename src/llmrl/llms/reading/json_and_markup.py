"""Values that are written in a text: JSON, as it should be or broken, tags, YAML and calls in Python."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import json_repair
import yaml

from llmrl.llms.reading.reply_cleaning import blank_spans, cleaned, plain
from llmrl.llms.reading.word_lists import listed

DEEPEST = 50
"""Levels of objects and lists inside one another; what is nested deeper is no answer to any question."""
LONGEST_INTEGER = 300
"""Digits of an integer that is read as one; longer ones, which Python refuses to convert, become floats."""
ATTEMPTS = 64
"""Times that the whole text is gone through at most, in search of JSON."""
LONGEST_BROKEN = 8000
"""Characters of one broken value that is repaired, and"""
MOST_BROKEN = 16_000
"""of all of a reply together; the library that repairs them takes longer than linear time."""
MOST_BRACKETS = 400
"""Brackets of a broken value that is repaired."""
CUT = "\x00cut"
"""Stands where a list ends because the reply was cut."""

_GAP = r"(?:\s|\\n)*"
# A bracket, or the beginning of JSON that is written as a text.
_OPENING = re.compile(
    r"(?<![\w\]\\])[{\[]|(?<=\w)\{|(?<=\w)\[(?=\s*[{\"\[])"
    rf'|(?<![\w\\])"(?={_GAP}(?:\{{{_GAP}\\"|\[{_GAP}(?:\{{{_GAP})?\\"|\\"{_GAP}[{{\[]))'
)
_COMMAND = re.compile(r"\\[A-Za-z]{1,12}\Z")
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_BRACKET = re.compile(r"[{}\[\]]")
# Where an object without an end is taken to end: before a fence, or before a paragraph that does not go on with it.
_STOP = re.compile(r"\n[ \t]{0,20}(?:```|~~~)|\n[ \t]{0,20}\n(?![ \t\n]{0,20}[\"'}\]])")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?P<comment>//[^\n]*|/\*.*?\*/|(?<![^\s,\[{])#[^\n]*)', re.DOTALL)
_REPEATED = re.compile(r"(\[[-+\d.,\s]*\])\s*\*\s*(\d{1,4})")
_JOINED = re.compile(r"\](\s*)\+(\s*)\[")
_ESCAPE = re.compile(r"\\[^\\'\"nrtu]")
_TRAILING = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_ODD = re.compile(
    rf'"(?:[^"\\]|\\.)*"|(?P<lead>[:,\[]\s*)(?P<odd>(?!{_NUMBER}\s*[,\]}}\n])[^\s"\'\[\]{{}},:][^"\'\[\]{{}},:\n]*)'
)
_BARE = re.compile(rf"\s*(?:{_NUMBER}|true|false|null|None|True|False)\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(\w*)[^\n]*$", re.MULTILINE)
_TAG = re.compile(r"<(/?)([A-Za-z_][\w.\-]{0,40})(?:[ =]([^<>\n]{0,300}?))?[ ]?(/?)>")
_ATTRIBUTE = re.compile(r"([A-Za-z_][\w.\-]{0,40})\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_DOING = ("skill", "action", "verb", "do", "name")
"""Attributes that tell what is done; the text of their element then tells to what."""
_NAME = re.compile(r"(?:name\s*=\s*)?[\"']?([\w .\-]+)")
_TEXT_TAGS = frozenset(listed("tags"))
_PLAIN_TAG = re.compile(rf"</?(?:{'|'.join(sorted(_TEXT_TAGS))})\b[^<>\n]{{0,200}}>", re.IGNORECASE)
_CALL = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*\(\s*(?=[A-Za-z_]\w*\s*=[^=]|[\[(])")
_NESTED = re.compile(r"^[ \t]*-?[ \t]*[\w\"' ]+:[ \t]*[>|]?[+-]?\n[ \t]*[-\w]", re.MULTILINE)

_OpenElement = tuple[str, str, int, int, list[tuple[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class FoundValue:
    """A value and where it stands in the text; `broken`: it had to be repaired."""

    start: int
    end: int
    value: Any
    broken: bool = False


class DuplicateKey:
    """The value of a key that stands in an object twice, with different values."""


def structures(text: str, cut: bool = False) -> list[FoundValue]:
    """All outermost values in `text`, in order; of a `cut` text, a value in which it ends is marked by `CUT`."""
    calls = list(_calls(text))
    found = [*calls, *_json(blank_spans(text, ((each.start, each.end) for each in calls)), cut), *_tags(text)]
    found = [replace(each, value=_unpacked(each.value, cut)) for each in found or _yaml(text)]
    return sorted(found, key=lambda each: (each.end, -each.start))


def _unpacked(value: Any, cut: bool, depth: int = 0) -> Any:
    """`value` with the values that texts in it are, in their place."""
    if isinstance(value, dict):
        return {key: _unpacked(inner, cut, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unpacked(inner, cut, depth) for inner in value]
    if not isinstance(value, str) or depth > 2 or not plain(value.lstrip()[:1]).startswith(("{", "[", '"')):
        return value
    found = list(_json(value, cut))
    if len(found) != 1 or value[: found[0].start].strip() or value[found[0].end :].strip():
        return value
    return _unpacked(found[0].value, cut, depth + 1)


def without_tags(text: str) -> str:
    """`text` with line breaks or nothing in place of HTML's tags."""
    return _PLAIN_TAG.sub(
        lambda tag: (
            "\n- "
            if tag[0][:3].lower() == "<li"
            else "\n"
            if re.match(r"</?(?:p|div|li|ul|ol|br|h\d|tr|table)\b", tag[0], re.I)
            else ""
        ),
        text,
    )


def _json(text: str, cut: bool) -> Iterator[FoundValue]:
    """JSON objects and lists; broken ones are repaired."""
    even = plain(text)
    position, patience, repairs = 0, ATTEMPTS * len(text), MOST_BROKEN
    while patience > 0 and (opening := _OPENING.search(even, position)):
        start = opening.start()
        position = start + 1
        if _COMMAND.search(text[max(start - 13, 0) : start]):
            continue  # LaTeX
        value = None
        for source in (text, even):
            try:
                value, end = _DECODER.raw_decode(source, start)
                value = _cleaned(value)
                break
            except json.JSONDecodeError as error:
                # Of a string without an end the error names the beginning, and all was read.
                patience -= (len(text) if error.msg.startswith("Unterminated") else error.pos) - start
            except RecursionError:
                patience -= len(text) - start
                value = None
        if value is not None:
            yield FoundValue(start, end, value)
            position = end
            continue
        if even[start] == '"':
            continue
        end, closed, possible = _extent(even, start)
        patience -= end - start
        if not possible:
            position = end
            continue
        if end - start > min(LONGEST_BROKEN, repairs):
            continue
        piece = even[start:end]
        if not _worth(piece):
            continue
        repairs -= len(piece)
        value = repaired(piece, cut and not closed and not even[end:].strip("`~ \n"))
        if isinstance(value, dict | list) and value:
            yield FoundValue(start, end, value, broken=True)
            position = end


def repaired(piece: str, cut: bool = False) -> Any:
    """The value of broken JSON; None where there is none.

    The library leaves out what it does not know (an ellipsis, a sum, a per cent sign): these become texts first.
    """
    piece = _COMMENT.sub(lambda m: "" if m["comment"] else m[0], piece)
    piece = re.sub(r"\\([_*\[\]<>$&#%~])", r"\1", piece)
    piece = _REPEATED.sub(_multiplied, piece)
    piece = _JOINED.sub(r",\1\2", piece) if "] +" in piece or "]+" in piece else piece
    if cut:
        piece = _closed(piece)
    tidy = _TRAILING.sub(lambda m: m[0] if m[0].startswith('"') else "", piece)
    closing = "".join("}" if bracket == "{" else "]" for bracket in reversed(_open(tidy)))
    # What is JSON but for a comma or its last brackets, or Python, is not guessed at.
    for whole, source in ((_DECODER.decode, tidy), (_DECODER.decode, tidy + closing), (_python, tidy)):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return _cleaned(whole(source))
    piece = _ODD.sub(_as_text, piece)
    try:
        value = json_repair.loads(piece, skip_json_loads=True)
        return _cleaned(value)
    except (ValueError, RecursionError, IndexError, TypeError):
        return None


def _python(text: str) -> Any:
    """The value of a literal of Python.

    Raises:
        ValueError, SyntaxError, RecursionError, MemoryError: it is none.
    """
    if _ESCAPE.search(text):
        raise ValueError("of such an escape Python would warn")
    return ast.literal_eval(text.strip())


def _multiplied(match: re.Match[str]) -> str:
    """`[1, 2] * 2` as the list it stands for."""
    inner, times = match[1][1:-1].strip(" ,\n"), int(match[2])
    return f"[{', '.join([inner] * times)}]" if times * (inner.count(",") + 1) <= 2000 else match[0]


def _as_text(match: re.Match[str]) -> str:
    odd = match["odd"]
    if odd is None or _BARE.fullmatch(odd):
        return match[0]
    if not re.search(r"\d|\.\.\.|\u2026|<", odd):
        return match[0]
    return f"{match['lead']}{json.dumps(odd.strip(), ensure_ascii=False)}"


def _closed(piece: str) -> str:
    """A piece that was cut, without the value it ends in, and with `CUT` in the list that it ends in."""
    ended = 0
    for string in _STRING.finditer(piece):
        ended = string.end()
    opened = piece.find('"', ended)
    piece = piece[:opened] if opened >= 0 else re.sub(r"[^\s\[\]{},:\"]+\Z", "", piece.rstrip())
    stack = _open(piece)
    piece = re.sub(r'("(?:[^"\\]|\\.)*"\s*:|,)\s*\Z', "", piece)
    marked = json.dumps(CUT)
    for bracket in reversed(stack):
        comma = "" if piece.rstrip().endswith(("[", "{", ",")) else ","
        piece += f"{comma} {marked}]" if bracket == "[" else "}"
    return piece


def _open(piece: str) -> list[str]:
    """The brackets that are not closed, from the outermost to the innermost."""
    stack: list[str] = []
    for token in _TOKEN.finditer(piece):
        if token[0] in "{[":
            stack.append(token[0])
        elif token[0] in "}]" and stack:
            stack.pop()
    return stack


def _worth(piece: str) -> bool:
    """Whether a piece can be JSON at all: an object has names, a list has members."""
    if piece.startswith("{"):
        return ":" in piece or "=" in piece
    return bool(re.match(r"\[\s*(?:[\"'{\[(<]|[-+.\d]|\w[^\]\n]{0,80},)", piece))


def _extent(text: str, start: int) -> tuple[int, bool, bool]:
    """Where a bracket's value ends, whether by its own bracket, and whether it can be a value at all: what has more
    brackets or is deeper than any answer can not, and ends where that shows."""
    limit = min(len(text), start + LONGEST_BROKEN + 1)
    for pattern in (_TOKEN, _BRACKET):
        depth = count = 0
        for token in pattern.finditer(text, start, limit):
            if token[0] not in ("{", "[", "}", "]"):
                continue
            count += 1
            depth += 1 if token[0] in "{[" else -1
            if depth <= 0:
                return token.end(), True, True
            if depth > DEEPEST or count > MOST_BRACKETS:
                return token.end(), False, False
    stop = _STOP.search(text, start, limit)
    return stop.start() if stop else limit, False, True


def _calls(text: str) -> Iterator[FoundValue]:
    """Calls in Python with named arguments, `act(action="left")`, and arrays, `np.array([1, 2])`."""
    if len(text) > LONGEST_BROKEN:
        return
    text, position, attempts = plain(text), 0, 0
    while attempts < 20 and (call := _CALL.search(text, position)):
        attempts, position = attempts + 1, call.end()
        end = _closing(text, text.index("(", call.start()))
        if end is None:
            continue
        try:
            if _ESCAPE.search(text, call.start(), end):
                continue
            node = ast.parse(text[call.start() : end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        assert isinstance(node, ast.Call)
        named = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
        if named:
            yield FoundValue(call.start(), end, named)
        elif len(node.args) == 1 and isinstance(values := _literal(node.args[0]), list):
            yield FoundValue(call.start(), end, values)
        position = end if named else position


def _closing(text: str, start: int) -> int | None:
    """The place after the round bracket that closes the one at `start`."""
    depth = 0
    for token in re.finditer(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[()]', text[start:]):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return start + token.end()
    return None


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(node)
    try:
        return _cleaned(json.loads(json.dumps(value, default=str)))
    except (TypeError, ValueError, RecursionError):
        return None


def _tags(text: str) -> list[FoundValue]:
    """Outermost elements of a markup as objects, those side by side as one: names with a text or with other elements.
    Tags of HTML's text are none."""
    elements: list[FoundValue] = []
    stack: list[_OpenElement] = []
    value: Any
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if name in _TEXT_TAGS:
            continue
        given = {
            match[1]: match[2] if match[2] is not None else match[3] for match in _ATTRIBUTE.finditer(tag[3] or "")
        }
        parameter = name in ("parameter", "param", "arg", "argument", "field")
        if not tag[1]:
            key = name
            if tag[3] and (said := _NAME.match(tag[3].strip())) and parameter:
                key = said[1].strip()
                given = {inner: value for inner, value in given.items() if inner != "name"}
            if not tag[4]:
                stack.append((name, key, tag.start(), tag.end(), [], given))
                del stack[:-DEEPEST]
            elif given:
                value = given["value"] if list(given) == ["value"] else given
                _add(elements, stack, text, FoundValue(tag.start(), tag.end(), (key, value)))
            continue
        depth = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == name), None)
        if depth is None:
            continue
        _, key, start, inside, children, given = stack[depth]
        inner = without_tags(text[inside : tag.start()]).strip()
        value = _object(children) if children else inner
        if not children and given and not inner:
            value = given["value"] if list(given) == ["value"] else given
        elif not children and any(word in given for word in _DOING) and name not in ("parameter", "param"):
            value = {**given, "object": inner}
        del stack[depth:]
        _add(elements, stack, text, FoundValue(start, tag.end(), (key, value)))
    return elements


def _add(elements: list[FoundValue], stack: list[_OpenElement], text: str, new: FoundValue) -> None:
    """Add an element, whose value is its name and value, to the innermost open one and to the outermost elements."""
    key, value = new.value
    if stack:
        stack[-1][4].append((key, value))
    while elements and elements[-1].start >= new.start:
        elements.pop()
    before = elements[-1] if elements else None
    follows = before is not None and not text[before.end : new.start].strip()
    if before and follows and (key not in before.value or (isinstance(value, dict) and list(before.value) == [key])):
        elements[-1] = FoundValue(before.start, new.end, _object([*before.value.items(), (key, value)]))
    else:
        elements.append(FoundValue(new.start, new.end, {key: value}))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        earlier = found.get(key, [])
        found[key] = value if key not in found else [*(earlier if isinstance(earlier, list) else [earlier]), value]
    return found


def _yaml(text: str) -> Iterator[FoundValue]:
    """Nested YAML in a fence, or as the whole text. Flat lines are labels, which are read elsewhere."""
    for start, end in [*fences(text), (0, len(text))]:
        piece = text[start:end]
        if len(piece) > LONGEST_BROKEN or not _NESTED.search(piece) or re.search(r"[{}<&]|^\s*\*", piece, re.MULTILINE):
            continue
        try:
            value = yaml.load(piece, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
        if isinstance(value, dict):
            yield FoundValue(start, end, value)
            return


def fences(text: str) -> list[tuple[int, int]]:
    """Where the inner texts of fenced blocks are."""
    marks = list(_FENCE.finditer(text))
    return [(a.end(), b.start()) for a, b in pairwise(marks) if not b[1]]


def _cleaned(value: Any, depth: int = 0) -> Any:
    """A parsed value with all its texts cleaned.

    Raises:
        RecursionError: it is nested deeper than `DEEPEST`.
    """
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return value if value == CUT else cleaned(value)
    if isinstance(value, list | tuple):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {cleaned(str(key)): _cleaned(item, depth + 1) for key, item in value.items()}
    return "..." if value is ... else value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_INTEGER else float(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = value if key not in found or found[key] == value else DuplicateKey()
    return found


_DECODER = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_unique)
