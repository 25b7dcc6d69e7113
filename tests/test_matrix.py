"""The page docs/matrix.md has every pair of parts, and what it says of some of them is tried again."""

import hashlib
import itertools

import matrix_page
import pytest
from matrix_pairs import OMITTED, TABLES, Pairs, pairs

KNOWN: set[str] = set()
"""Parts that are refused where they need not be."""
MOST_WORDS = 600
SAMPLE = 12
"""Pairs of each table that are tried again."""


@pytest.fixture(scope="module")
def text():
    return matrix_page.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cells(text):
    return matrix_page.read(text)


def test_it_has_every_pair_of_parts(cells):
    """After a new part: python scripts/matrix.py --missing"""
    assert list(cells) == [(table, *pair) for table in TABLES for pair in pairs(table)]


def test_it_is_what_is_written_of_its_cells(text, cells):
    assert matrix_page.page(cells) == text


def test_nothing_is_refused_that_need_not_be(cells):
    omitted = {key for key, outcome in cells.items() if outcome.what == OMITTED}
    assert not [key for key in omitted if not KNOWN & {*key[1:]}]


def test_it_is_short_beside_its_tables(text):
    words = itertools.chain(*(line.split() for line in text.splitlines() if not line.startswith(("|", "* `"))))
    assert len([*words]) < MOST_WORDS


@pytest.mark.parametrize(
    ("agent", "what"),
    [("random", "runs"), ("bot", "one_game"), ("cleanup_society", "one_game"), ("projection", "runs")],
)
def test_a_pair_is_tried(tmp_path, agent, what):
    assert Pairs(tmp_path).outcome("env-agent", "nim", agent).what == what


def test_a_principal_searches_where_there_is_no_mechanism(tmp_path):
    tries = Pairs(tmp_path)
    assert tries.outcome("env-principal", "nim", "listed").what == "searches"
    assert tries.outcome("env-principal", "nim", "metagrad").what == "absent"
    assert tries.outcome("env-principal", "escape_room", "listed").what == "runs"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_some_pairs_are_as_it_says(table, cells, tmp_path):
    """After a change of what runs: python scripts/matrix.py"""
    chosen = sorted(pairs(table), key=lambda pair: hashlib.sha256(repr(pair).encode()).digest())[:SAMPLE]
    tries = Pairs(tmp_path, composed=True)
    assert {pair: tries.outcome(table, *pair).what for pair in chosen} == {
        pair: cells[table, *pair].what for pair in chosen
    }
