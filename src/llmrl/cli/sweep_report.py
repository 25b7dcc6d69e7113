"""`llmrl-report`: statistics over the seeds of runs, as tables, figures and an HTML page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.printable import printable
from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    from llmrl.analysis.report import Report


_TERMINAL_COLUMNS = ("group", "runs", "mean", "IQM", "remark")
"""Columns of the tables of scores that are printed, because a terminal is too narrow for all of them."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.experiment.run_lookup import add_output_root_option

    parser = argparse.ArgumentParser(prog="llmrl-report", description=__doc__)
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="outputs, a sweep in it, any folder of runs, or an experiment: run:<hash>, latest:<name>; the runs of "
        "several folders are compared with each other, whatever their names",
    )
    parser.add_argument("--diff", action="store_true", help="print the options in which the compared runs differ")
    add_output_root_option(parser)
    parser.add_argument(
        "--metric", default="", help="score runs by this metric of metrics.jsonl (default: their result)"
    )
    parser.add_argument(
        "--tail-fraction",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="with --metric: mean of the last share of its logged values, such as 0.1 (default: the last value)",
    )
    parser.add_argument(
        "--curve",
        action="append",
        default=[],
        metavar="METRIC",
        help="draw this metric; repeatable (default: the main objective)",
    )
    parser.add_argument(
        "--x-axis",
        choices=("env_steps", "proposals", "updates", "samples", "seconds"),
        default="env_steps",
        help="x axis of curves: environment steps, proposals of a principal, updates, samples of behavior cloning, or "
        "seconds",
    )
    parser.add_argument(
        "--bin",
        type=int,
        default=None,
        metavar="FRAMES",
        help="frames of a bin of a curve of training episodes, train/... (default: 1/50 of the shortest training)",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=None,
        metavar="FRAMES",
        help="frames from the beginning of training over which sample efficiency is averaged (default: as many as all "
        "runs of a task have recorded)",
    )
    parser.add_argument("--no-figures", action="store_true", help="tables and texts only; needs no matplotlib")
    parser.add_argument(
        "--explore",
        action="store_true",
        help="write an explorer instead of a report: episodes step by step, proposals and conversations about them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder of the report (default: <folder>/report; with --explore <folder>/explorer; of several folders: "
        "comparison in their innermost common folder)",
    )
    return parser


def write_report(args: argparse.Namespace) -> tuple[Report, Path]:
    """Read the runs and write the report; return the report and the path of its page.

    Raises:
        LlmrlError: a folder is missing or has no runs, a setting is invalid, matplotlib is missing, or the report
            cannot be written.
    """
    from llmrl.analysis.report import ReportSettings
    from llmrl.analysis.scores import ScoreRule
    from llmrl.display.sweeps import create_report

    rule = ScoreRule(args.metric, args.tail_fraction, args.budget)
    curves = tuple(dict.fromkeys(args.curve))
    settings = ReportSettings(rule, curves, args.x_axis, args.bin, args.budget, by_name=len(args.folders) == 1)
    folders = [folder.absolute() for folder in args.folders]
    common_folder = args.folders[0] if len(folders) == 1 else Path(os.path.commonpath(folders))
    # The folder "report" may contain the report of all runs in the common folder.
    out = args.out or (common_folder / "comparison" if len(args.folders) > 1 else None)
    return create_report(common_folder, settings, out, not args.no_figures, _ProgressWriter(), args.folders)


def print_differences(report: Report) -> None:
    """Print the options in which the groups of each task differ.

    Raises:
        RunFolderError: the config of a run cannot be read.
    """
    from llmrl.analysis.report_tables import build_config_differences
    from llmrl.display.console import print_line, print_report_table
    from llmrl.results.groups import group_into_tasks

    for task in group_into_tasks([run for _, _, run, _ in report.runs], report.folder, report.settings.by_name):
        table = build_config_differences(task)
        if table.rows:
            print_report_table(table)
        else:
            print_line(f"All runs of {task.title} have the same options.")


class _ProgressWriter:
    """A writer of progress messages to standard error: none in the first 2 s, and then one in 10 s at most."""

    _FIRST_SECONDS, _INTERVAL_SECONDS = 2.0, 10.0

    def __init__(self) -> None:
        self._next_time = time.monotonic() + self._FIRST_SECONDS

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._next_time:
            self._next_time = time.monotonic() + self._INTERVAL_SECONDS
            sys.stderr.write(f"llmrl-report: {printable(text, multiline=False)}\n")


def print_report(report: Report, page: Path) -> None:
    """Print the tables of scores, the runs without a score, and the path of the report."""
    from llmrl.analysis.final_episodes import build_players_table
    from llmrl.analysis.report_files import describe_run_counts
    from llmrl.analysis.report_tables import (
        build_efficiency_table,
        build_excluded_runs_table,
        build_scores_table,
        compare_tasks,
    )
    from llmrl.display.console import print_line, print_report_table
    from llmrl.display.sweeps import print_study

    if report.players:
        print_report_table(build_players_table(report.players))
    if (comparison := compare_tasks(report)) is not None:
        print_study(comparison)
    for section in report.sections:
        if section.study is not None:
            print_study(section.study)
        for warning in section.warnings:
            print_line(warning)
        tables = [build_scores_table(section, report.settings)]
        for table in [*tables, build_efficiency_table(section)] if section.efficiency else tables:
            columns = [i for i, column in enumerate(table.columns) if column in _TERMINAL_COLUMNS]
            rows = [[row[i] for i in columns] for row in table.rows]
            print_report_table(replace(table, columns=[table.columns[i] for i in columns], rows=rows, n_text_columns=1))
    if report.excluded:
        print_report_table(build_excluded_runs_table(report))
    print_line(describe_run_counts(report))
    print_line(f"Report: {page}")


@console_command("llmrl-report")
def main(argv: list[str] | None = None) -> None:
    """Run the console script `llmrl-report`, with `argv` or else the process's arguments."""
    args = build_parser().parse_args(argv)
    from llmrl.core.errors import ConfigError
    from llmrl.core.privacy import restrict_permissions_like
    from llmrl.display.console import print_line
    from llmrl.experiment.run_lookup import resolve_folder
    from llmrl.run.command_exit import EXIT_FAILED, print_message

    args.folders = list(dict.fromkeys(resolve_folder(folder, args.output_root) for folder in args.folders))
    for folder in args.folders:
        restrict_permissions_like(folder)
    if args.explore:
        from llmrl.analysis.explorer.write import write_explorer

        if len(args.folders) > 1:
            raise ConfigError(f"--explore takes one folder of runs, not {len(args.folders)}")
        page = write_explorer(args.folders[0], args.out, _ProgressWriter())
        print_line(f"Explorer: {page}\nOpen it in a browser: {page.absolute().as_uri()}")
        return
    report, page = write_report(args)
    print_report(report, page)
    if args.diff:
        print_differences(report)
    if not report.n_scored_runs:
        print_message("llmrl-report", f"no run in {', '.join(map(str, args.folders))} has a score; the report says why")
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    main()
