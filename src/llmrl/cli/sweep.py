"""`llmrl-sweep`: show the state of a sweep's runs, and retry, cancel or clean them."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    from llmrl.results.run_records import RunRecord

STATUS_COLUMNS = (
    *("run", "seed", "state", "try", "stage", "done", "steps/s", "left", "last", "last proposal", "LLM $", "where", ""),
)
"""Columns of the table of runs; the last one, without a title, has the error or a warning."""
_RIGHT_ALIGNED = ("seed", "try", "done", "steps/s", "left", "last", "LLM $")
STATE_STYLES = {"failed": "red", "lost": "red", "unreadable": "red", "running": "green"}
RETRY_STATES = "failed,stopped,preempted,canceled,lost"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.config.permissions import add_trust_option
    from llmrl.experiment.run_lookup import add_output_root_option
    from llmrl.sweeps.run_control import DESCRIPTION_BY_REMOVABLE_KIND

    parser = argparse.ArgumentParser(prog="llmrl-sweep", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def add_command(name: str, text: str, folder_help: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=text, description=text)
        subparser.add_argument("folder", type=Path, help=f"{folder_help}; or run:<hash>, latest:<name>")
        add_output_root_option(subparser)
        return subparser

    any_folder = "outputs, outputs/<name>, or any folder of runs"
    status = add_command(
        "status", "a table of all runs; exit code 1 if one has failed or is lost (0 with --json)", any_folder
    )
    status.add_argument("--json", action="store_true", help="one JSON list, for programs")
    retry = add_command("retry", "resume unfinished runs, each with the config of its folder", any_folder)
    retry.add_argument("--states", default=RETRY_STATES, help=f"which runs, by state (default {RETRY_STATES})")
    add_trust_option(retry)
    retry.add_argument("--no-wait", action="store_true", help="return after submission (backends with a scheduler)")
    add_command("cancel", "stop running and waiting runs; running ones save their state first", any_folder)
    logs = add_command(
        "logs",
        "the last lines of the log files of a run and its job",
        "a run folder, outputs/<name>/<run>/s<seed>, or a folder that contains a single run",
    )
    logs.add_argument("--lines", type=int, default=20, help="lines of each file (default 20)")
    clean = add_command(
        "clean",
        "remove files that are no longer needed, of the chosen kinds; without --yes they are only listed",
        any_folder,
    )
    for kind, text in DESCRIPTION_BY_REMOVABLE_KIND.items():
        clean.add_argument(f"--{kind}", action="store_true", help=text)
    clean.add_argument("--yes", action="store_true", help="remove the listed files")
    return parser


def status(args: argparse.Namespace) -> int:
    """Print the table of runs, or JSON; return the exit code: 1 if a run has failed, is lost or cannot be read."""
    from llmrl.sweeps.run_control import query_run_records

    run_records = query_run_records(args.folder)
    if args.json:
        print(json.dumps([to_json(record) for record in run_records], indent=2))
        return 0
    print_status(run_records, args.folder)
    return 1 if any(record.state in ("failed", "lost", "unreadable") for record in run_records) else 0


def print_status(records: Sequence[RunRecord], folder: Path) -> None:
    """Print a table with a row for each run, and below it the overrides that are equal in all runs."""
    from llmrl.display.console import print_line, print_table
    from llmrl.sweeps.watch import format_stage_counts

    counts = Counter(record.state for record in records)
    common_overrides = dict(set.intersection(*(set(record.overrides.items()) for record in records))) if records else {}
    common_text = ", ".join(f"{key}={value}" for key, value in sorted(common_overrides.items()))
    title = f"{folder.name}: {', '.join(f'{n} {state}' for state, n in counts.most_common()) or 'no runs'}"
    if stages := format_stage_counts(records):
        title += f"\n{stages}"
    parents = {record.folder.parent.parent for record in records}
    prefixes = {parent: f"{_format_parent(parent, folder)}: " if len(parents) > 1 else "" for parent in parents}
    rows = [_format_status_cells(record, common_overrides, prefixes[record.folder.parent.parent]) for record in records]
    # Empty columns are omitted.
    used_columns = [i for i in range(len(STATUS_COLUMNS)) if i < 3 or any(row[i] not in ("", "-") for row in rows)]
    alignments = "".join("r" if STATUS_COLUMNS[i] in _RIGHT_ALIGNED else "l" for i in used_columns)
    columns, *cells = ([row[i] for i in used_columns] for row in (STATUS_COLUMNS, *rows))
    print_table(title, columns, cells, alignments, [STATE_STYLES.get(record.state) for record in records])
    if common_text:
        print_line(common_text)


def _format_parent(parent: Path, folder: Path) -> str:
    """Return the path of a folder of runs relative to `folder`."""
    folder = folder.absolute()
    return str(parent.relative_to(folder)) if parent.is_relative_to(folder) and parent != folder else parent.name


def _format_status_cells(record: RunRecord, common_overrides: dict[str, str], prefix: str) -> list[str]:
    """Return a run's cells under `STATUS_COLUMNS`; its name has the `prefix`, without the `common_overrides`."""
    overrides = {key: value for key, value in record.overrides.items() if key not in common_overrides}
    from llmrl.llms.validity import validity_warning
    from llmrl.run.folder import format_overrides
    from llmrl.run.progress_bar import format_clock
    from llmrl.sweeps.watch import find_latest_value, find_stage, format_stage

    stage = find_stage(record)
    name = format_overrides(overrides) or record.config_hash
    progress, is_running = record.progress, record.state == "running"
    metrics = record.read_last_metrics()
    cost, pending_cost = metrics.get("usage/llm_cost"), metrics.get("usage/llm_unsettled_cost")
    pending_text = f" (+ {pending_cost:.2f}?)" if pending_cost else ""
    return [
        prefix + name,
        str(record.seed),
        record.state,
        str(record.attempt),
        "-" if stage is None else format_stage(stage),
        "100%" if record.state == "finished" else f"{progress.done / progress.total:.0%}" if progress.total else "-",
        f"{progress.steps_per_second:,.3g}" if is_running and progress.steps_per_second else "-",
        "-"
        if (eta_s := stage.eta_s if stage is not None else progress.eta_s if is_running else None) is None
        else format_clock(eta_s),
        "-" if (value := find_latest_value(record, metrics)) is None else f"{value:.4g}",
        progress.proposed or "-",
        "-" if "usage/llm_calls" not in metrics else ("unknown" if cost is None else f"{cost:.2f}") + pending_text,
        f"job {record.job_id}" if record.job_id else record.host,
        record.error
        or record.pending_reason
        or validity_warning(metrics.get("llm/parsed_replies"), metrics.get("llm/invalid_share")),
    ]


def to_json(record: RunRecord) -> dict[str, Any]:
    """Return a run record as plain data, with its stage and the last values of its metrics."""
    from llmrl.sweeps.watch import find_stage

    stage = find_stage(record)
    fields = asdict(record)
    # Programs that read the JSON expect these names.
    fields |= {"waits": fields.pop("pending_reason"), "shared": fields.pop("shared_factors")}
    return {
        **fields,
        "stage": None if stage is None else asdict(stage),
        "folder": str(record.folder),
        "last_metrics": record.read_last_metrics(),
    }


def retry(args: argparse.Namespace) -> int:
    """Launch unfinished runs again, each with the config in its folder; return the exit code."""
    from llmrl.core.errors import ConfigError
    from llmrl.display.console import print_line
    from llmrl.display.sweeps import print_sweep
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.prerequisites import read_config_and_overrides
    from llmrl.experiment.sweep_jobs import RUN_FUNCTION, build_job, with_prerequisites
    from llmrl.results.run_records import RESUMABLE_STATES
    from llmrl.sweeps.launch import launch
    from llmrl.sweeps.run_control import query_run_records

    states = args.states.split(",")
    if unknown := set(states) - set(RESUMABLE_STATES):
        raise ConfigError(
            f"--states: {', '.join(sorted(unknown))} cannot be retried; states: {', '.join(RESUMABLE_STATES)}"
        )
    runs = [run for run in query_run_records(args.folder) if run.state in states]
    if not runs:
        print_line(f"no run in {args.folder} is {' or '.join(states)}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    jobs = []
    for run in runs:
        config, overrides = read_config_and_overrides(run.folder, args.trust)
        jobs.append(build_job(Experiment(config, overrides), overrides))
        if jobs[-1].folder != run.folder:
            raise ConfigError(
                f"{run.folder} was made by another version of llmrl, in which its config has another hash; start this "
                "run by its command"
            )
    folder = Path(jobs[0].config["output_root"]) / ".sweeps" / time.strftime("retry_%Y-%m-%d_%H-%M-%S")
    outcomes, code = launch(with_prerequisites(jobs), RUN_FUNCTION, folder, wait=not args.no_wait)
    print_sweep(outcomes)
    return code


def cancel(args: argparse.Namespace) -> int:
    """Cancel runs; print the numbers of canceled jobs and processes; return 1 if a run is not reached."""
    from llmrl.display.console import print_line
    from llmrl.sweeps.run_control import cancel_runs, query_run_records

    n_jobs, n_processes, unreachable_runs = cancel_runs(query_run_records(args.folder))
    print_line(f"canceled {n_jobs} jobs; {n_processes} processes of this machine save and stop")
    for run in unreachable_runs:
        print_line(f"not reached: {run}")
    return 1 if unreachable_runs else 0


def logs(args: argparse.Namespace) -> int:
    """Print the state of a run and the last lines of its log files; return the exit code 0."""
    from llmrl.core.folder_files import open_file
    from llmrl.display.console import print_line
    from llmrl.results.run_records import find_only_run
    from llmrl.sweeps.run_control import query_run_records

    folder = find_only_run(args.folder)
    (record,) = query_run_records(folder)
    print_line(f"{record.state}{f': {record.error}' if record.error else ''}")
    files = [Path(record.log)] if record.log else []
    for path in (*files, folder / "run.log", folder / "traceback.txt"):
        if path.is_file():
            print_line(f"\n==> {path}")
            try:
                with open_file(path) as file:
                    for line in deque(file, args.lines):
                        print_line(line.decode("utf-8", "replace").removesuffix("\n"))
            except OSError as error:
                print_line(f"it cannot be read: {error.strerror or error}")
    return 0


def clean(args: argparse.Namespace) -> int:
    """List or remove files and folders that are no longer needed; return the exit code 0."""
    from llmrl.core.errors import ConfigError, RunFolderError
    from llmrl.display.console import print_line
    from llmrl.sweeps.run_control import (
        DESCRIPTION_BY_REMOVABLE_KIND,
        compute_disk_usage,
        find_removable_paths,
        query_run_records,
        remove_path,
    )

    kinds = [kind for kind in DESCRIPTION_BY_REMOVABLE_KIND if getattr(args, kind)]
    if not kinds:
        raise ConfigError(f"choose what to remove: {', '.join(f'--{kind}' for kind in DESCRIPTION_BY_REMOVABLE_KIND)}")
    paths = find_removable_paths(args.folder, query_run_records(args.folder, strict=True), kinds)
    sizes = []
    for path in paths:
        n_bytes = compute_disk_usage(path)
        try:
            if args.yes:
                remove_path(args.folder, path)
        except RunFolderError as error:
            print_line(str(error))
            continue
        sizes.append(n_bytes)
        print_line(f"{n_bytes / 1e6:10.1f} MB  {path}")
    print_line(f"{'removed' if args.yes else 'would remove'} {len(sizes)} items, {sum(sizes) / 1e6:.1f} MB")
    if paths and not args.yes:
        print_line("--yes removes them")
    return 0


@console_command("llmrl-sweep")
def main(argv: list[str] | None = None) -> None:
    """Run the console script `llmrl-sweep`, with `argv` or else the process's arguments."""
    args = build_parser().parse_args(argv)
    from llmrl.core.privacy import restrict_permissions_like

    commands = {"status": status, "retry": retry, "cancel": cancel, "logs": logs, "clean": clean}
    from llmrl.experiment.run_lookup import resolve_folder

    args.folder = resolve_folder(args.folder, args.output_root)
    restrict_permissions_like(args.folder)
    raise SystemExit(commands[args.command](args))
