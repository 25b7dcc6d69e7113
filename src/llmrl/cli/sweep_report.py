"""`llmrl-report`: a folder of runs as statistics over seeds, with tables, figures and a page."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.printable import printable

if TYPE_CHECKING:
    from llmrl.analysis.report import Report


_IN_TERMINAL = ("group", "runs", "IQM", "mean", "remark")
"""Columns of the tables of scores that fit beside each other there."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from llmrl.experiment.run_lookup import add_root

    p = argparse.ArgumentParser(prog="llmrl-report", description=__doc__)
    p.add_argument(
        "folder",
        type=Path,
        help="outputs, a sweep in it, any folder of runs, or an experiment: run:<hash>, latest:<name>",
    )
    add_root(p)
    p.add_argument("--metric", default="", help="score runs by this metric of metrics.jsonl (default: their result)")
    p.add_argument(
        "--last-fraction",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="with --metric: mean of the last share of its logged values, such as 0.1 (default: the last value)",
    )
    p.add_argument(
        "--target", type=float, default=None, help="score the optimality gap is below (default: the best group's mean)"
    )
    p.add_argument(
        "--curve",
        action="append",
        default=[],
        metavar="METRIC",
        help="draw this metric; repeatable (default: the main objective)",
    )
    p.add_argument(
        "--over",
        choices=("env_steps", "proposals", "updates", "samples", "seconds"),
        default="env_steps",
        help="what curves are drawn over: environment steps, proposals a principal tried, updates, samples that an "
        "imitator was shown, or wall time",
    )
    p.add_argument(
        "--bin",
        type=int,
        default=None,
        metavar="FRAMES",
        help="frames of a bin of a curve of training episodes, train/... (default: 1/50 of the shortest training)",
    )
    p.add_argument(
        "--budget",
        type=int,
        default=None,
        metavar="FRAMES",
        help="frames from the beginning of training that sample efficiency is the mean over (default: as many as all "
        "runs of a task tell of)",
    )
    p.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default 10000)")
    p.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    p.add_argument("--no-figures", action="store_true", help="tables and texts only; needs no matplotlib")
    p.add_argument("--out", type=Path, default=None, help="where the report goes (default: <folder>/report)")
    return p


def report(args: argparse.Namespace) -> tuple[Report, Path]:
    """Read the runs, write the report; returns it and its page.

    Raises:
        LlmrlError: no such folder, no runs, an unknown metric, senseless settings, matplotlib missing, no place to
            write.
    """
    from llmrl.analysis.report import Settings
    from llmrl.analysis.scores import ScoreRule
    from llmrl.display.reports import reported

    rule = ScoreRule(args.metric, args.last_fraction, args.budget)
    settings = Settings(
        rule,
        args.target,
        tuple(dict.fromkeys(args.curve)),
        args.over,
        args.resamples,
        args.seed,
        args.bin,
        args.budget,
    )
    return reported(args.folder, settings, args.out, not args.no_figures, _Said())


class _Said:
    """Says on standard error how far a long report is; a quick one is done before there is anything to say."""

    _FIRST_S, _EVERY_S = 2.0, 10.0

    def __init__(self) -> None:
        self._next = time.monotonic() + self._FIRST_S

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._EVERY_S
            sys.stderr.write(f"llmrl-report: {printable(text, lines=False)}\n")


def print_numbers(numbers: Report, page: Path) -> None:
    """The tables of scores, what is not in them, and where the rest is."""
    from llmrl.analysis.played import players_table
    from llmrl.analysis.study_tasks import tasks_compared
    from llmrl.analysis.tables import beside, efficiency, not_counted, scores
    from llmrl.analysis.write import counted
    from llmrl.display.console import print_line, print_table
    from llmrl.display.reports import print_study, print_tasks

    if numbers.players:
        table = players_table(numbers.players)
        print_table(table.caption, table.columns, table.rows, table.sides)
        for note in table.notes:
            print_line(note)
    if (over := tasks_compared(numbers)) is not None:
        print_tasks(over)
    for section in numbers.sections:
        print_study(section)
        for warning in section.warnings:
            print_line(warning)
        for table in (
            scores(section, "", beside(section, numbers)),
            *([efficiency(section, "")] if section.efficiency else []),
        ):
            kept = [i for i, column in enumerate(table.columns) if column in _IN_TERMINAL]
            rows = [[row[i] for i in kept] for row in table.rows]
            sides = "".join(table.sides[i] for i in kept)
            print_table(table.caption, [table.columns[i] for i in kept], rows, sides)
            for note in table.notes:
                print_line(note)
    if numbers.left:
        table = not_counted(numbers)
        print_table(table.caption, table.columns, table.rows, table.sides)
    print_line(counted(numbers))
    print_line(f"Report: {page}")


def main(argv: list[str] | None = None) -> None:
    """Console script."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    args = parser().parse_args(argv)
    from llmrl.core.privacy import keep_private_like
    from llmrl.run.ending import EXIT_FAILED, ending, say

    with ending("llmrl-report"):
        from llmrl.experiment.run_lookup import folder_of

        args.folder = folder_of(args.folder, args.output_root)
        keep_private_like(args.folder)
        numbers, page = report(args)
        print_numbers(numbers, page)
    if not numbers.counted:
        say("llmrl-report", f"no run in {args.folder} has a score; the report says why")
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    main()
