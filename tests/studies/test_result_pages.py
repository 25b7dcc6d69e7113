"""Pages of results: their commands compose, and the figures and data that they name are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llmrl.config.treatments import list_studies
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import check_values
from some import mark_long_except_every

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
COMMANDS = [
    line.strip()
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in re.sub(r"\\\n\s*", "", block).splitlines()
]


@pytest.mark.parametrize(
    "line", mark_long_except_every(3, sorted({line for line in COMMANDS if line.startswith("llmrl-train ")}))
)
def test_command_composes(line):
    words = [word.partition("=") for word in shlex.split(line, comments=True)[1:] if not word.startswith("--")]
    overrides = [
        f"{key}={value if value.startswith(('[', '{')) else value.split(',')[0]}"
        for key, _, value in words
        if not value.startswith("latest:")
    ]
    check_values(Experiment.compose(*(word for word in overrides if word != "llm=replay")).config)


def test_page_references_exist():
    for page in PAGES:
        for place in re.findall(r"\]\(((?:figures|data)/[^)]+)\)", page.read_text()):
            assert (page.parent / place).is_file(), f"{page.name}: {place}"


SOURCES = {"measurements.csv", "passages.csv", "settings.csv"}
"""Files that name the sources of numbers on the pages (`scripts/results_pages.py`)."""


def test_figures_are_shown():
    text = " ".join(page.read_text() for page in PAGES)
    for part in ("figures", "data"):
        for path in (ROOT / "docs" / "results" / part).iterdir():
            assert path.name in SOURCES or f"{part}/{path.name}" in text, path.name


def test_single_command_studies_have_pages():
    text = " ".join(page.read_text() for page in PAGES)
    for study in list_studies():
        if study.startswith(("studies/", "first/")):
            assert f"experiment={study}" in text or study.partition("/")[2] in text, study
