"""The page docs/matrix.md has every pair of parts, and what it says of some of them is tried again."""

import hashlib
import itertools

import matrix_page
import pytest
from matrix_pairs import OMITTED, TABLES, Pairs, pairs

EXISTING: set[str] = set()
"""Parts that are refused where they need not be."""
MAX_WORDS = 600
SAMPLE = 12
"""Pairs of each table that are tried again."""


@pytest.fixture(scope="module")
def text():
    return matrix_page.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cells(text):
    return matrix_page.read(text)


def test_matrix_contains_all_pairs(cells):
    """Run `python scripts/matrix.py --missing` after adding a part."""
    assert list(cells) == [(table, *pair) for table in TABLES for pair in pairs(table)]


def test_page_matches_cells(text, cells):
    assert matrix_page.page(cells) == text


def test_refusals_are_necessary(cells):
    omitted = {key for key, outcome in cells.items() if outcome.what == OMITTED}
    assert not [key for key in omitted if not EXISTING & {*key[1:]}]


def test_text_length_is_limited(text):
    words = itertools.chain(*(line.split() for line in text.splitlines() if not line.startswith(("|", "* `"))))
    assert len([*words]) < MAX_WORDS


@pytest.mark.parametrize(
    ("agent", "status"),
    [("random", "runs"), ("bot", "one_game"), ("cleanup_society", "one_game"), ("projection", "runs")],
)
def test_pair_status(tmp_path, agent, status):
    assert Pairs(tmp_path).outcome("env-agent", "nim", agent).what == status


def test_principal_searches_when_mechanism_is_missing(tmp_path):
    tries = Pairs(tmp_path)
    assert tries.outcome("env-principal", "nim", "listed").what == "searches"
    assert tries.outcome("env-principal", "nim", "metagrad").what == "absent"
    assert tries.outcome("env-principal", "escape_room", "listed").what == "runs"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_sampled_pairs_match_page(table, cells, tmp_path):
    """Run `python scripts/matrix.py` after changing which pairs run."""
    sample = sorted(pairs(table), key=lambda pair: hashlib.sha256(repr(pair).encode()).digest())[:SAMPLE]
    tries = Pairs(tmp_path, composed=True)
    assert {pair: tries.outcome(table, *pair).what for pair in sample} == {
        pair: cells[table, *pair].what for pair in sample
    }
