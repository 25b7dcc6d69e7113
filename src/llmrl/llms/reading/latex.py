"""LaTeX as plain text of the same length, so that positions in the text stay the same."""

from __future__ import annotations

import re

_STYLES = (
    r"text(?:bf|tt|it|rm|sf|normal)?|math(?:bf|rm|tt|it|sf|bb|cal)?|operatorname|boldsymbol|bm|mbox|emph|underline|"
    r"textcolor\{\w{1,20}\}|fbox"
)
_STYLED = re.compile(rf"\\(?:{_STYLES})\*?[ ]?\{{([^{{}}]{{0,2000}})\}}")
_FRACTION = re.compile(r"\\[dt]?frac[ ]?\{([^{}]{1,40})\}[ ]?\{([^{}]{1,40})\}")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbvB]?(?:small)?matrix|array)\}(?:\{[clr|]{1,40}\})?(?P<inner>(?:(?!\\end\{)[\s\S]){0,4000})"
    r"\\end\{(?P=kind)\}"
)
_ROWS = re.compile(r"\\(?:begin|end)\{(?:aligned|align\*?|gathered|gather\*?|cases|equation\*?|split)\}")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=\s?[\[\](){}|.\\])")
_SIGNS = {
    "->": r"\\(?:long|Long)?(?:right|Right)arrow(?![a-z])|\\to(?![a-z])|\\mapsto(?![a-z])|\\implies(?![a-z])",
    "~": r"\\approx(?![a-z])|\\sim(?![a-z])",
    "<": r"\\leq?(?![a-z])|\\lt(?![a-z])",
    ">": r"\\geq?(?![a-z])|\\gt(?![a-z])",
    "*": r"\\times(?![a-z])|\\cdot(?![a-z])",
    "\u00b0": r"\^\{?\\circ\}?",
    "": r"\\q?quad(?![a-z])|\\[,;:! ]",
}
_ESCAPED = re.compile(r"(?<!\\)\\([{}_%$#&])")
_BREAK = re.compile(r"\\\\(?:\[[^\[\]]{0,10}\])?")


def strip_latex(text: str) -> str:
    r"""Replace LaTeX commands by what they display, padded with blanks to the same length.

    This covers styles, fractions, matrices (as lists), arrows, spaces and escaped characters. `\boxed{}` stays.

    >>> strip_latex(r"\boxed{\text{stick}}").replace(" ", "")
    '\\boxed{stick}'
    """
    if "\\" not in text:
        return text
    text = _MATRIX.sub(_list, text)
    if _ROWS.search(text):
        text = _BREAK.sub(lambda m: _padded("\n", m), _ROWS.sub(lambda m: _padded("", m), text)).replace("&", " ")
    for _ in range(3):
        text, count = _STYLED.subn(lambda m: _blank_outside(m, 1), text)
        text, fractions = _FRACTION.subn(lambda m: _padded(f"{m[1].strip()}/{m[2].strip()}", m), text)
        if not count + fractions:
            break
    text = _SIZE.sub(lambda m: _padded("", m), text)
    for sign, command in _SIGNS.items():
        text = re.sub(command, lambda m, sign=sign: _padded(sign, m), text)  # type: ignore[misc]
    return _ESCAPED.sub(lambda m: f" {m[1]}", text)


def blank_brace_escapes(text: str) -> str:
    """Replace the backslashes before curly brackets, escapes of LaTeX and Markdown, by blanks."""
    return re.sub(r"(?<!\\)\\([{}])", r" \1", text) if "\\{" in text else text


def _padded(text: str, match: re.Match[str]) -> str:
    return text.ljust(len(match[0]))


def _blank_outside(match: re.Match[str], group: int) -> str:
    """Return the match with blanks outside of a group."""
    prefix_length, suffix_length = match.start(group) - match.start(), match.end() - match.end(group)
    return f"{' ' * prefix_length}{match[group]}{' ' * suffix_length}"


def _list(match: re.Match[str]) -> str:
    """Return a matrix as the list of its entries, row by row, padded to the same length."""
    inner = _BREAK.sub(lambda m: _padded(",", m), match["inner"].replace("&", ","))
    if inner.rstrip().endswith(","):
        inner = inner.rstrip()[:-1].ljust(len(inner))
    prefix_length = match.start("inner") - match.start()
    return f"[{' ' * (prefix_length - 1)}{inner}{']'.ljust(match.end() - match.end('inner'))}"
