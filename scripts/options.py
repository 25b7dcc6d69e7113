"""Write `docs/options.md` from the comments and signatures of options.

python scripts/options.py
"""

from __future__ import annotations

from pathlib import Path

from llmrl.config import option_page


def main() -> None:
    """Write the page."""
    (Path(__file__).parents[1] / "docs" / "options.md").write_text(option_page.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
