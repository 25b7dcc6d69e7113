"""Tries every part with every other, and writes what became of them to docs/matrix.md.

python scripts/matrix.py                        # all pairs
python scripts/matrix.py --only env-agent       # the pairs of one table; the others stay as they are
python scripts/matrix.py --pairs cleanup:ppo    # some pairs, with what is said of them
python scripts/matrix.py --missing              # those that the page does not have, or has as omissions
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
from matrix_pairs import OMITTED, TABLES, Outcome, Pairs, pairs


def main() -> None:
    """Try the pairs that are asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, action="append", help="a table")
    parser.add_argument("--pairs", nargs="+", default=[], metavar="ROW:COLUMN", help="of any table")
    parser.add_argument("--missing", action="store_true", help="only what the page lacks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    known = matrix_page.read(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    every = [(table, *pair) for table in TABLES for pair in pairs(table)]
    wanted = [
        key
        for key in every
        if (not asked.only or key[0] in asked.only)
        and (not asked.pairs or f"{key[1]}:{key[2]}" in asked.pairs)
        and not (asked.missing and key in known and known[key].what != OMITTED)
    ]
    cells = {key: known.get(key, Outcome(OMITTED, "not tried")) for key in every}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tries = Pairs(Path(folder))
        for (table, row), columns in itertools.groupby(wanted, lambda key: key[:2]):
            counted: Counter[str] = Counter()
            for *_, column in columns:
                outcome = tries.outcome(table, row, column)
                cells[table, row, column] = outcome
                mark = MARKS[outcome.what][0]
                counted[mark] += 1
                if asked.pairs or outcome.what == OMITTED:
                    _print(f"{mark} {table} {row}:{column} {outcome.said}")
            marks = ", ".join(f"{n} {mark}" for mark, n in counted.items())
            _print(f"{time.monotonic() - began:6.0f} s  {table} {row}: {marks}")
            # After each row: who is stopped by a defect goes on with --missing.
            PAGE.write_text(matrix_page.page(cells), encoding="utf-8")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
