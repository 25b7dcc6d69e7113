"""The page about the run folder says what the code does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from llmrl.run.config_hash import EXCLUDED
from llmrl.run.provenance import collect
from llmrl.run.status import STATES, RunProgress, Status

PAGE = (Path(__file__).parents[2] / "docs" / "run_folder.md").read_text(encoding="utf-8")


def test_every_key_is_explained(tmp_path: Path) -> None:
    names = [*EXCLUDED, *STATES, *(f.name for f in fields(Status)), *(f.name for f in fields(RunProgress))]
    names += collect(tmp_path / "code-1.diff")
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_the_hash_leaves_out_exactly_what_the_page_lists() -> None:
    listed = " ".join(PAGE.split()).partition("cannot change the numbers: ")[2].partition(". It alone")[0]
    assert {name.strip("`") for name in listed.split(", ")} == set(EXCLUDED)
