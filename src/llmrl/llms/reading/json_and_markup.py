"""Search for structured values in a text: valid or invalid JSON, markup elements, YAML, and Python calls."""

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

from llmrl.llms.reading.non_answer_text import is_doubtful
from llmrl.llms.reading.word_lists import load_word_list
from llmrl.llms.reply_cleaning import blank_spans, strip_control_characters, to_ascii

MAX_DEPTH = 50
"""Maximum nesting depth of objects and lists; deeper values cannot be answers."""
MAX_INTEGER_DIGITS = 300
"""Maximum number of digits of an integer; longer ones are read as floats, because Python limits their conversion."""
MAX_READ_FACTOR = 64
"""Maximum number of characters that the search for JSON reads, with repetitions, as a multiple of the text's length."""
MAX_REPAIR_LENGTH = 8000
"""Maximum number of characters of an invalid value that is repaired."""
MAX_TOTAL_REPAIR_LENGTH = 16_000
"""Maximum number of characters of all repaired values of a reply; repair takes more than linear time."""
MAX_REPAIR_BRACKETS = 400
"""Maximum number of brackets of an invalid value that is repaired."""
TRUNCATION_MARKER = "\x00cut"
"""Last element of a list that is incomplete because the reply was truncated."""

_WHITESPACE = r"(?:\s|\\n)*"
# A bracket, or the quotation mark before JSON inside a string.
_OPENING_BRACKET = re.compile(
    r"(?<![\w\]\\])[{\[]|(?<=\w)\{|(?<=\w)\[(?=\s*[{\"\[])"
    rf'|(?<![\w\\])"(?={_WHITESPACE}(?:\{{{_WHITESPACE}\\"|\[{_WHITESPACE}(?:\{{{_WHITESPACE})?\\"|\\"{_WHITESPACE}[{{\[]))'
)
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]{1,12}\Z")
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_BRACKET = re.compile(r"[{}\[\]]")
# Assumed end of an unclosed object: before a code fence, or before an empty line after which the object does not go on.
_OBJECT_BREAK = re.compile(r"\n[ \t]{0,20}(?:```|~~~)|\n[ \t]{0,20}\n(?![ \t\n]{0,20}[\"'}\]])")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?P<comment>//[^\n]*|/\*.*?\*/|(?<![^\s,\[{])#[^\n]*)', re.DOTALL)
_LIST_REPETITION = re.compile(r"(\[[-+\d.,\s]*\])\s*\*\s*(\d{1,4})")
_LIST_SUM = re.compile(r"\](\s*)\+(\s*)\[")
_NON_PYTHON_ESCAPE = re.compile(r"\\[^\\'\"nrtu]")
_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_UNQUOTED_TOKEN = re.compile(
    rf'"(?:[^"\\]|\\.)*"|(?P<lead>[:,\[]\s*)(?P<token>(?!{_NUMBER}\s*[,\]}}\n])[^\s"\'\[\]{{}},:][^"\'\[\]{{}},:\n]*)'
)
_JSON_SCALAR = re.compile(rf"\s*(?:{_NUMBER}|true|false|null|None|True|False)\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CODE_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(\w*)[^\n]*$", re.MULTILINE)
_MARKUP_TAG = re.compile(
    r"<(?P<end>/?)(?P<name>[A-Za-z_][\w.\-]{0,40})(?:[ =](?P<attributes>[^<>\n]{0,300}?))?[ ]?(?P<empty>/?)>"
)
_ATTRIBUTE = re.compile(r"([A-Za-z_][\w.\-]{0,40})\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_ACTION_ATTRIBUTES = ("skill", "action", "verb", "do", "name")
"""Attributes that name an action; the text of an element with such an attribute is the object of the action."""
_PARAMETER_TAGS = ("parameter", "param", "arg", "argument", "field")
_PARAMETER_NAME = re.compile(r"(?:name\s*=\s*)?[\"']?([\w .\-]+)")
_TEXT_TAGS = frozenset(load_word_list("tags"))
_BLOCK_TAG = re.compile(r"</?(?:p|div|li|ul|ol|br|h\d|tr|table)\b", re.IGNORECASE)
_TEXT_TAG = re.compile(rf"</?(?:{'|'.join(sorted(_TEXT_TAGS))})\b[^<>\n]{{0,200}}>", re.IGNORECASE)
_PYTHON_CALL = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*\(\s*(?=[A-Za-z_]\w*\s*=[^=]|[\[(])")
_NESTED_YAML = re.compile(r"^[ \t]*-?[ \t]*[\w\"' ]+:[ \t]*[>|]?[+-]?\n[ \t]*[-\w]", re.MULTILINE)

_OpenElement = tuple[str, str, int, int, list[tuple[str, Any]], dict[str, Any]]
"""Tag name, key, start of the tag, end of the tag, child elements (key, value), and attributes."""


@dataclass(frozen=True)
class FoundValue:
    """JSON-like value with its span in the text; `is_repaired`: the text of the span was invalid JSON."""

    start: int
    end: int
    value: Any
    is_repaired: bool = False


class ConflictingValues:
    """Marker for a key that occurs twice in an object with different values."""


def find_outermost_values(text: str, truncated: bool = False) -> list[FoundValue]:
    """Return all outermost structured values in `text`, ordered by their ends.

    If the text is `truncated`, an incomplete list has `TRUNCATION_MARKER` as its last element.
    """
    calls = list(_find_calls(text))
    text_without_calls = blank_spans(text, ((found_value.start, found_value.end) for found_value in calls))
    values = [*calls, *_find_json(text_without_calls, truncated), *_find_elements(text)] or _find_yaml(text)
    values = [replace(found_value, value=_parse_nested_json(found_value.value, truncated)) for found_value in values]
    return sorted(values, key=lambda found_value: (found_value.end, -found_value.start))


def _parse_nested_json(value: Any, truncated: bool, depth: int = 0) -> Any:
    """Return `value` with each string that consists of JSON replaced by the parsed JSON."""
    if isinstance(value, dict):
        return {key: _parse_nested_json(inner, truncated, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [_parse_nested_json(inner, truncated, depth) for inner in value]
    if not isinstance(value, str) or depth > 2 or not to_ascii(value.lstrip()[:1]).startswith(("{", "[", '"')):
        return value
    values = list(_find_json(value, truncated))
    if len(values) != 1 or value[: values[0].start].strip() or value[values[0].end :].strip():
        return value
    return _parse_nested_json(values[0].value, truncated, depth + 1)


def strip_tags(text: str) -> str:
    """Return `text` with HTML tags removed or replaced by line breaks."""
    text = re.sub(r"<li\b[^<>\n]{0,200}>", "\n- ", text, flags=re.IGNORECASE)
    return _TEXT_TAG.sub(lambda tag: "\n" if _BLOCK_TAG.match(tag[0]) else "", text)


def _find_json(text: str, truncated: bool) -> Iterator[FoundValue]:
    """Yield the outermost JSON objects and lists of a text; repair invalid ones."""
    ascii_text = to_ascii(text)
    # Remaining numbers of characters that may be decoded and repaired, so that the time is linear.
    position, n_readable_characters, n_repairable_characters = 0, MAX_READ_FACTOR * len(text), MAX_TOTAL_REPAIR_LENGTH
    while n_readable_characters > 0 and (opening := _OPENING_BRACKET.search(ascii_text, position)):
        start = opening.start()
        position = start + 1
        if _LATEX_COMMAND.search(text[max(start - 13, 0) : start]):
            continue  # argument of a LaTeX command
        value = None
        for source_text in (text, ascii_text):
            try:
                value, end = _DECODER.raw_decode(source_text, start)
                value = _clean_strings(value)
                break
            except json.JSONDecodeError as error:
                # Count the characters that were read. For an unterminated string, the decoder read to the end.
                n_readable_characters -= (len(text) if error.msg.startswith("Unterminated") else error.pos) - start
            except RecursionError:
                n_readable_characters -= len(text) - start
                value = None
        if value is not None:
            yield FoundValue(start, end, value)
            position = end
            continue
        if ascii_text[start] == '"':
            continue
        end, is_closed, is_possible_step = _find_value_end(ascii_text, start)
        n_readable_characters -= end - start
        if not is_possible_step:
            position = end
            continue
        candidate = ascii_text[start:end]
        if len(candidate) > min(MAX_REPAIR_LENGTH, n_repairable_characters) or not _is_plausible_json(candidate):
            continue
        n_repairable_characters -= len(candidate)
        value = repair_json(candidate, truncated and not is_closed and not ascii_text[end:].strip("`~ \n"))
        if isinstance(value, dict | list) and value:
            yield FoundValue(start, end, value, is_repaired=True)
            position = end


def repair_json(text: str, truncated: bool = False) -> Any:
    """Return the value of invalid JSON; None if it cannot be repaired.

    Unquoted tokens such as an ellipsis, a sum or a percentage are quoted first, because json_repair would drop them.
    """
    text = _COMMENT.sub(lambda m: "" if m["comment"] else m[0], text)
    text = re.sub(r"\\([_*\[\]<>$&#%~])", r"\1", text)
    text = _LIST_REPETITION.sub(_expand_repetition, text)
    text = _LIST_SUM.sub(r",\1\2", text) if "] +" in text or "]+" in text else text
    if truncated:
        text = _close_brackets(text)
    tidy_text = _TRAILING_COMMA.sub(lambda m: m[0] if m[0].startswith('"') else "", text)
    closing_brackets = "".join("}" if bracket == "{" else "]" for bracket in reversed(_unclosed_brackets(tidy_text)))
    # Heuristic repair is not needed for Python literals, and JSON with only trailing commas or unclosed brackets.
    for decode, source in (
        (_DECODER.decode, tidy_text),
        (_DECODER.decode, tidy_text + closing_brackets),
        (_parse_python, tidy_text),
    ):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return _clean_strings(decode(source))
    with contextlib.suppress(ValueError, RecursionError, IndexError, TypeError):
        return _clean_strings(json_repair.loads(_UNQUOTED_TOKEN.sub(_quote_token, text), skip_json_loads=True))
    return None


def _parse_python(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError, SyntaxError, RecursionError, MemoryError: the text is not a valid literal.
    """
    if _NON_PYTHON_ESCAPE.search(text):
        raise ValueError("invalid escape sequence")
    return ast.literal_eval(text.strip())


def _expand_repetition(match: re.Match[str]) -> str:
    """Return the list that a repetition such as `[1, 2] * 2` means; the unchanged text if the list is too long."""
    inner, times = match[1][1:-1].strip(" ,\n"), int(match[2])
    return f"[{', '.join([inner] * times)}]" if times * (inner.count(",") + 1) <= 2000 else match[0]


def _quote_token(match: re.Match[str]) -> str:
    """Return a token in quotation marks if it is no JSON scalar but contains a digit, an ellipsis or `<`."""
    token = match["token"]
    if token is None or _JSON_SCALAR.fullmatch(token) or not re.search(r"\d|\.\.\.|\u2026|<", token):
        return match[0]
    return f"{match['lead']}{json.dumps(token.strip(), ensure_ascii=False)}"


def _close_brackets(text: str) -> str:
    """Return truncated JSON with closed brackets.

    The incomplete last value is removed, and `TRUNCATION_MARKER` is appended to each unclosed list.
    """
    quote = text.find('"', max((string.end() for string in _STRING.finditer(text)), default=0))
    text = text[:quote] if quote >= 0 else re.sub(r"[^\s\[\]{},:\"]+\Z", "", text.rstrip())
    open_brackets = _unclosed_brackets(text)
    text = re.sub(r'("(?:[^"\\]|\\.)*"\s*:|,)\s*\Z', "", text)
    for bracket in reversed(open_brackets):
        comma = "" if text.rstrip().endswith(("[", "{", ",")) else ","
        text += f"{comma} {json.dumps(TRUNCATION_MARKER)}]" if bracket == "[" else "}"
    return text


def _unclosed_brackets(text: str) -> list[str]:
    """Return the unclosed brackets of a text, from the outermost to the innermost."""
    open_brackets: list[str] = []
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "{[":
            open_brackets.append(token[0])
        elif token[0] in "}]":
            del open_brackets[-1:]
    return open_brackets


def _is_plausible_json(text: str) -> bool:
    """Return whether a text with an opening bracket can be JSON: an object needs keys, a list needs elements."""
    return (
        (":" in text or "=" in text)
        if text.startswith("{")
        else bool(re.match(r"\[\s*(?:[\"'{\[(<]|[-+.\d]|\w[^\]\n]{0,80},)", text))
    )


def _find_value_end(text: str, start: int) -> tuple[int, bool, bool]:
    """Return the end of the value whose bracket is at `start`, whether it is closed, and whether it can be repaired.

    It cannot if it exceeds `MAX_DEPTH` or `MAX_REPAIR_BRACKETS`; its end is then the position of the excess.
    """
    limit = min(len(text), start + MAX_REPAIR_LENGTH + 1)
    for pattern in (_STRING_OR_BRACKET, _BRACKET):
        depth = n_brackets = 0
        for token in pattern.finditer(text, start, limit):
            if token[0] not in ("{", "[", "}", "]"):
                continue
            n_brackets += 1
            depth += 1 if token[0] in "{[" else -1
            if depth <= 0:
                return token.end(), True, True
            if depth > MAX_DEPTH or n_brackets > MAX_REPAIR_BRACKETS:
                return token.end(), False, False
    object_break = _OBJECT_BREAK.search(text, start, limit)
    return object_break.start() if object_break else limit, False, True


def _find_calls(text: str) -> Iterator[FoundValue]:
    """Yield Python calls with named arguments, `act(action="left")`, and arrays, `np.array([1, 2])`."""
    if len(text) > MAX_REPAIR_LENGTH:
        return
    text, position, n_attempts = to_ascii(text), 0, 0
    while n_attempts < 20 and (call := _PYTHON_CALL.search(text, position)):
        n_attempts, position = n_attempts + 1, call.end()
        end = _closing_position(text, text.index("(", call.start()))
        if end is None or _NON_PYTHON_ESCAPE.search(text, call.start(), end):
            continue
        try:
            node = ast.parse(text[call.start() : end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        assert isinstance(node, ast.Call)
        arguments = {keyword.arg: _parse_literal(keyword.value) for keyword in node.keywords if keyword.arg}
        if arguments:
            yield FoundValue(call.start(), end, arguments)
        elif len(node.args) == 1 and isinstance(values := _parse_literal(node.args[0]), list):
            yield FoundValue(call.start(), end, values)
        position = end if arguments else position


def _closing_position(text: str, start: int) -> int | None:
    """Return the position after the round bracket that closes the one at `start`; None if it is not closed."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[()]', text[start:]):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return start + match.end()
    return None


def _parse_literal(node: ast.expr) -> Any:
    """Return the value of a call's argument, or its source text if it is not a literal."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(node)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        return _clean_strings(json.loads(json.dumps(value, default=str)))
    return None


def _find_elements(text: str) -> list[FoundValue]:
    """Return the outermost markup elements as objects; adjacent elements are merged into one object.

    An object maps names of elements to texts, attributes or nested elements. HTML tags for text layout are ignored.
    """
    elements: list[FoundValue] = []
    open_elements: list[_OpenElement] = []
    value: Any
    for tag in _MARKUP_TAG.finditer(text):
        name = tag["name"].lower()
        if name in _TEXT_TAGS:
            continue
        attributes = {
            match[1]: match[2] if match[2] is not None else match[3]
            for match in _ATTRIBUTE.finditer(tag["attributes"] or "")
        }
        if not tag["end"]:
            key = name
            parameter = tag["attributes"] if name in _PARAMETER_TAGS else None
            if parameter and (name_match := _PARAMETER_NAME.match(parameter.strip())):
                key = name_match[1].strip()
                attributes.pop("name", None)
            if not tag["empty"]:
                open_elements.append((name, key, tag.start(), tag.end(), [], attributes))
                del open_elements[:-MAX_DEPTH]
            elif attributes:
                value = attributes["value"] if list(attributes) == ["value"] else attributes
                _add_element(elements, open_elements, text, FoundValue(tag.start(), tag.end(), (key, value)))
            continue
        depth = next((i for i in range(len(open_elements) - 1, -1, -1) if open_elements[i][0] == name), None)
        if depth is None:
            continue
        _, key, start, content_start, children, attributes = open_elements[depth]
        element_text = strip_tags(text[content_start : tag.start()]).strip()
        value = _merge_pairs(children) if children else element_text
        if not children and attributes and not element_text:
            value = attributes["value"] if list(attributes) == ["value"] else attributes
        elif (
            not children
            and any(word in attributes for word in _ACTION_ATTRIBUTES)
            and name not in ("parameter", "param")
        ):
            value = {**attributes, "object": element_text}
        del open_elements[depth:]
        _add_element(elements, open_elements, text, FoundValue(start, tag.end(), (key, value)))
    return elements


def _add_element(elements: list[FoundValue], open_elements: list[_OpenElement], text: str, element: FoundValue) -> None:
    """Add `element`, with value (key, value), to the innermost open element, and to `elements` instead of its parts."""
    key, value = element.value
    if open_elements:
        open_elements[-1][4].append((key, value))
    while elements and elements[-1].start >= element.start:
        elements.pop()
    start, pairs = element.start, [(key, value)]
    if elements and not text[elements[-1].end : element.start].strip():
        fields = elements[-1].value
        if key not in fields or (isinstance(value, dict) and list(fields) == [key]):
            start, pairs = elements.pop().start, [*fields.items(), (key, value)]
    elements.append(FoundValue(start, element.end, _merge_pairs(pairs)))


def _merge_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of (key, value) pairs; the values of a repeated key become a list."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            value = [*(fields[key] if isinstance(fields[key], list) else [fields[key]]), value]
        fields[key] = value
    return fields


def _find_yaml(text: str) -> Iterator[FoundValue]:
    """Yield the nested YAML in a fenced block or the whole text. Parsers find flat YAML as labels (`find_in_text`)."""
    fences = list(_CODE_FENCE.finditer(text))
    blocks = [(opening.end(), closing.start()) for opening, closing in pairwise(fences) if not closing[1]]
    for start, end in [*blocks, (0, len(text))]:
        block = text[start:end]
        if (
            len(block) > MAX_REPAIR_LENGTH
            or not _NESTED_YAML.search(block)
            or re.search(r"[{}<&]|^\s*\*", block, re.MULTILINE)
        ):
            continue
        try:
            value = yaml.load(block, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
        if isinstance(value, dict) and not any(is_doubtful(str(key)) for key in value):
            yield FoundValue(start, end, value)
            return


def _clean_strings(value: Any, depth: int = 0) -> Any:
    """Return a parsed value without control characters in its strings.

    Raises:
        RecursionError: the value is nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return value if value == TRUNCATION_MARKER else strip_control_characters(value)
    if isinstance(value, list | tuple):
        return [_clean_strings(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {strip_control_characters(str(key)): _clean_strings(item, depth + 1) for key, item in value.items()}
    return "..." if value is ... else value


def _mark_conflicts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of (key, value) pairs, with `ConflictingValues` for keys with different values."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        fields[key] = value if key not in fields or fields[key] == value else ConflictingValues()
    return fields


_DECODER = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float(digits),
    object_pairs_hook=_mark_conflicts,
)
