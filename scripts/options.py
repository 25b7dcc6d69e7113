"""Writes what is generated from the comments and signatures of options: `conf/schema/` and `docs/options.md`.

python scripts/options.py
"""

from __future__ import annotations

from pathlib import Path

from llmrl.config import option_page, option_schema
from llmrl.core.option_files import root


def main() -> None:
    """Write all files."""
    folder = root() / option_schema.FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in option_schema.generated().items():
        (folder / name).write_text(text, encoding="utf-8")
    (Path(__file__).parents[1] / "docs" / "options.md").write_text(option_page.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
