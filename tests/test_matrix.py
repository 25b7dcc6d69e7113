"""The page docs/matrix.md contains all pairs of parts, and the outcomes of a sample are reproduced."""

import hashlib
import itertools

import matrix_page
import pytest
from matrix_pairs import OMITTED, TABLES, PairTester, iterate_pairs

EXISTING: set[str] = set()
"""Parts with known omissions."""
MAX_WORDS = 600
SAMPLE = 12
"""Number of reproduced pairs of each table."""


@pytest.fixture(scope="module")
def text():
    return matrix_page.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cells(text):
    return matrix_page.parse_page(text)


def test_matrix_contains_all_pairs(cells):
    """Run `python scripts/matrix.py --missing` after adding a part."""
    assert list(cells) == [(table, *pair) for table in TABLES for pair in iterate_pairs(table)]


def test_page_matches_cells(text, cells):
    assert matrix_page.format_page(cells) == text


def test_refusals_are_necessary(cells):
    omitted = {key for key, outcome in cells.items() if outcome.status == OMITTED}
    assert not [key for key in omitted if not EXISTING & {*key[1:]}]


def test_text_length_is_limited(text):
    words = itertools.chain(*(line.split() for line in text.splitlines() if not line.startswith(("|", "* `"))))
    assert len([*words]) < MAX_WORDS


@pytest.mark.parametrize(
    ("agent", "status"),
    [("random", "runs"), ("bot", "one_game"), ("cleanup_society", "one_game"), ("projection", "runs")],
)
def test_pair_status(tmp_path, agent, status):
    assert PairTester(tmp_path).test_pair("env-agent", "nim", agent).status == status


def test_principal_searches_when_mechanism_is_missing(tmp_path):
    tester = PairTester(tmp_path)
    assert tester.test_pair("env-principal", "nim", "listed").status == "searches"
    assert tester.test_pair("env-principal", "nim", "metagrad").status == "absent"
    assert tester.test_pair("env-principal", "escape_room", "listed").status == "runs"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_sampled_pairs_match_page(table, cells, tmp_path):
    """Run `python scripts/matrix.py` after changing which pairs run."""
    sample = sorted(iterate_pairs(table), key=lambda pair: hashlib.sha256(repr(pair).encode()).digest())[:SAMPLE]
    tester = PairTester(tmp_path, use_hydra=True)
    assert {pair: tester.test_pair(table, *pair).status for pair in sample} == {
        pair: cells[table, *pair].status for pair in sample
    }
