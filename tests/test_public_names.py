"""Option keys, metric names and keys of `summary.json` change only together with their snapshot."""

import json

import public_names
import pytest

SNAPSHOT = json.loads(public_names.SNAPSHOT.read_text())


@pytest.mark.parametrize(
    ("kind", "read"), [("options", public_names.read_option_keys), ("metrics", public_names.read_metric_names)]
)
def test_names_match_snapshot(kind, read):
    names = set(read())
    assert names == set(SNAPSHOT[kind]), "list the change in docs/changes_*.md and run scripts/public_names.py"


@pytest.mark.slow
def test_summary_keys_match_snapshot():
    assert public_names.read_summary_keys() == SNAPSHOT["summary"]
