"""Agreement of the page about the run folder with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from llmrl.core.plain_data import read_json_object
from llmrl.run.config_hash import EXCLUDED_KEYS
from llmrl.run.provenance import FILE_NAME, write_provenance
from llmrl.run.status import RunProgress, Status, StatusState

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("run_results.md", "formats.md"))
EXCLUSIONS = {
    "CHANGELOG.md": "games on a GPU and on a processor",
    "README.md": "an environment and the published one",
    "docs/gymnasium.md": "two implementations of an environment on one machine",
    "docs/native_engine.md": "games on a GPU and on a processor",
    "docs/native_parity.md": "two implementations of an environment on one machine",
    "docs/options.md": "two implementations of an environment on one machine",
    "docs/results/templates/README.md": "an environment and the published one",
}
"""Pages that call two implementations equal bit for bit. Everywhere else the equality of runs is promised."""


def test_keys_are_documented(tmp_path: Path) -> None:
    names = [
        *EXCLUDED_KEYS,
        *get_args(StatusState),
        *(f.name for f in fields(Status)),
        *(f.name for f in fields(RunProgress)),
    ]
    write_provenance(tmp_path, attempt=1)
    names += read_json_object(tmp_path / FILE_NAME)["attempts"][0]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_hash_exclusions_match_page() -> None:
    sentence = " ".join(PAGE.split()).partition("or when a run ends: ")[2].partition(". It alone")[0]
    assert {name.strip("`") for name in sentence.split(", ")} == set(EXCLUDED_KEYS)


def test_reproducibility_promise_covers_machine_type() -> None:
    section = PAGE.partition("## Reproducibility\n")[2].partition("\n## ")[0]
    assert "same type of machine" in section and "same builds" in section
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    unconditional = {
        str(page.relative_to(ROOT))
        for page in pages
        for paragraph in page.read_text(encoding="utf-8").split("\n\n")
        for line in (paragraph.splitlines() if paragraph.lstrip().startswith("|") else [paragraph])
        if re.search(r"bit\W+(for|by)\W+bit", line, re.IGNORECASE)
        and "#reproducibility)" not in line
        and "same type of machine" not in line
        and '"Bit for bit" holds' not in line
    }
    assert unconditional == set(EXCLUSIONS)
