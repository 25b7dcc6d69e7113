"""Writes the notebooks of the tutorials, `docs/learn/*.ipynb`, from their pages, which are the source.

A block of bash or Python becomes a cell, all else text between them; nothing is executed.

python scripts/notebooks.py
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDER = Path(__file__).parents[1] / "docs" / "learn"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
PATHS = """\
# The commands of the environment that this kernel runs in.
import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}\""""
"""The first cell: a kernel need not have been started from an activated environment."""


def pages() -> list[Path]:
    """The tutorials' pages."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


def notebook(page: str) -> nbformat.NotebookNode:
    """Make a notebook of a page's text, without outputs."""
    parts = BLOCK.split(page)  # text, language, code, text, ...
    cells = [new_markdown_cell(parts[0].strip()), new_code_cell(PATHS)]
    for language, code, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        cells.append(new_code_cell(f"%%bash\n{code.strip()}" if language == "bash" else code.strip()))
        if text.strip():
            cells.append(new_markdown_cell(text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # drawn at random otherwise
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def written(page: Path) -> str:
    """The file that belongs beside a page."""
    return nbformat.writes(notebook(page.read_text(encoding="utf-8"))) + "\n"


def main() -> None:
    """Write all of them."""
    for page in pages():
        page.with_suffix(".ipynb").write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
