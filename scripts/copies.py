"""Copy files, or sections of files, into pages of the documentation, because code hosts do not process includes.

In a page, a copy is enclosed in `<!-- copy: PATH -->` and `<!-- copy: end -->`. `PATH#NAME` refers to the section of a
file between `<!-- section: NAME -->` and `<!-- section: end -->`. Files other than Markdown become code blocks.

    python scripts/copies.py [--check]

`--check` does not write files, and fails if a copy is outdated.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COPY = re.compile(r"<!-- copy: (?P<source>(?!end -->)\S+) -->\n.*?<!-- copy: end -->", re.DOTALL)
_SECTION = r"<!-- section: {} -->\n(.*?)<!-- section: end -->"
_LANGUAGES = {".py": "python", ".toml": "toml"}


def find_pages() -> list[Path]:
    """Return the pages that contain copies."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if _COPY.search(path.read_text(encoding="utf-8"))]


def update_page(page: str) -> str:
    """Return the text of a page with updated copies.

    Raises:
        ValueError: a file has no section with the requested name.
    """
    return _COPY.sub(lambda match: _format_copy(match["source"]), page)


def _format_copy(source: str) -> str:
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
    """Update all pages, or check them."""
    for page in find_pages():
        text = page.read_text(encoding="utf-8")
        updated = update_page(text)
        if "--check" not in sys.argv:
            page.write_text(updated, encoding="utf-8")
        elif updated != text:
            sys.exit(f"{page} has an outdated copy: run python scripts/copies.py")


if __name__ == "__main__":
    main()
