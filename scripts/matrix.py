"""Test the compatibility of all pairs of parts, and write the results to docs/matrix.md.

python scripts/matrix.py                        # all pairs
python scripts/matrix.py --only env-agent       # the pairs of one table; other tables are unchanged
python scripts/matrix.py --pairs cleanup:ppo    # some pairs, with their messages
python scripts/matrix.py --missing              # pairs that are missing in the page, or that are omissions
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import matrix_page
import torch
from matrix_page import MARKS, PAGE
from matrix_pairs import OMITTED, TABLES, Outcome, PairTester, iterate_pairs


def main() -> None:
    """Test the selected pairs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, action="append", help="table to test")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="ROW:COLUMN", help="pairs to test, in all tables")
    parser.add_argument(
        "--missing", action="store_true", help="only pairs that are missing in the page, or that are omissions"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    stored = matrix_page.parse_page(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    all_pairs = [(table, *pair) for table in TABLES for pair in iterate_pairs(table)]
    selected = [
        key
        for key in all_pairs
        if (not args.only or key[0] in args.only)
        and (not args.pairs or f"{key[1]}:{key[2]}" in args.pairs)
        and not (args.missing and key in stored and stored[key].status != OMITTED)
    ]
    cells = {key: stored.get(key, Outcome(OMITTED, "not tested")) for key in all_pairs}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tester = PairTester(Path(folder))
        for (table, row), columns in itertools.groupby(selected, lambda key: key[:2]):
            mark_counts: Counter[str] = Counter()
            for *_, column in columns:
                outcome = tester.test_pair(table, row, column)
                cells[table, row, column] = outcome
                mark = MARKS[outcome.status][0]
                mark_counts[mark] += 1
                if args.pairs or outcome.status == OMITTED:
                    _print(f"{mark} {table} {row}:{column} {outcome.message}")
            marks = ", ".join(f"{n} {mark}" for mark, n in mark_counts.items())
            _print(f"{time.monotonic() - start:6.0f} s  {table} {row}: {marks}")
            # The page is written after each row, so that an interrupted command can be continued with --missing.
            PAGE.write_text(matrix_page.format_page(cells), encoding="utf-8")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
