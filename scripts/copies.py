"""Copy files, or sections of files, into pages of the documentation, which code hosts show as they are.

A page has `<!-- copy: PATH -->` and `<!-- copy: end -->` around a copy; `PATH#NAME` is the section of a file between
its lines `<!-- section: NAME -->` and `<!-- section: end -->`. Files other than Markdown become a code block.

    python scripts/copies.py [--check]

`--check` writes nothing and fails if a copy is not current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COPY = re.compile(r"<!-- copy: (?P<source>(?!end -->)\S+) -->\n.*?<!-- copy: end -->", re.DOTALL)
_SECTION = r"<!-- section: {} -->\n(.*?)<!-- section: end -->"
_LANGUAGES = {".py": "python", ".toml": "toml"}


def pages() -> list[Path]:
    """Return the pages that have copies."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if _COPY.search(path.read_text(encoding="utf-8"))]


def written(page: str) -> str:
    """Return the text of a page with current copies.

    Raises:
        ValueError: a file has no section of that name.
    """
    return _COPY.sub(lambda match: _copy(match["source"]), page)


def _copy(source: str) -> str:
    name, _, section = source.partition("#")
    text = (ROOT / name).read_text(encoding="utf-8")
    if section:
        match = re.search(_SECTION.format(re.escape(section)), text, re.DOTALL)
        if match is None:
            raise ValueError(f"{name} has no section {section!r}")
        text = match[1]
    if language := _LANGUAGES.get(Path(name).suffix):
        text = f"~~~ {{.{language}}}\n{text.rstrip()}\n~~~\n"
    return f"<!-- copy: {source} -->\n{text}<!-- copy: end -->"


def main() -> None:
    """Write all pages, or check them."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        current = written(text)
        if "--check" not in sys.argv:
            page.write_text(current, encoding="utf-8")
        elif current != text:
            sys.exit(f"{page} has a copy that is not current: run python scripts/copies.py")


if __name__ == "__main__":
    main()
