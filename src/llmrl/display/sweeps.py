"""The final table of a sweep."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from llmrl.display.console import near, print_line, print_link, terminal
from llmrl.display.run_summary import record, validity_warning_of
from llmrl.run.status import SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import JobOutcome


def print_sweep(outcomes: Sequence[JobOutcome], commands: bool = True) -> None:
    """Print the final tables of a sweep, of the runs that others need and of results.

    Args:
        outcomes: outcomes of all jobs.
        commands: also print commands to use next.
    """
    from llmrl.run.folder import split_overrides
    from llmrl.run.folder_names import title

    every = list({outcome.folder: outcome for outcome in outcomes}.values())
    outcomes = [outcome for outcome in every if not outcome.job.what]
    print_prerequisites(every)
    counts = Counter(outcome.state for outcome in outcomes)
    notes = ["nothing to do" if o.skipped and o.state == "finished" else o.error for o in outcomes]
    for i, outcome in enumerate(outcomes):
        if outcome.state == "finished" and (said := validity_warning_of(record(outcome.folder / SUMMARY_NAME))):
            notes[i] = said
    table = Table(title=", ".join(f"{n} {state}" for state, n in counts.most_common()))
    for column in ("run", "seed", "state", "result", *([""] if any(notes) else [])):
        table.add_column(column, justify="right" if column in ("seed", "result") else "left", overflow="fold")
    for outcome, note in zip(outcomes, notes, strict=True):
        name = title(split_overrides(outcome.job.naming)) or outcome.folder.parent.name
        result = "" if outcome.result is None else f"{outcome.result:.5g}"
        style = {"finished": None, "submitted": None, "elsewhere": "dim"}.get(outcome.state, "bold")
        cells = [name, str(outcome.job.config["seed"]), outcome.state, result, *([note] if any(notes) else [])]
        table.add_row(*cells, style=style)
    console = terminal()
    console.print(table)
    unfinished = [o for o in every if o.state not in ("finished", "elsewhere", "submitted")]
    if unfinished:
        console.print(f"Why: {shlex.join(['llmrl-sweep', 'logs', str(near(unfinished[0].folder))])}", soft_wrap=True)
        console.print("The same command again runs what is missing.")
    if not commands:
        return
    print_commands(common_folder([outcome.folder for outcome in outcomes]))


def print_commands(folder: Path) -> None:
    """Print the commands that show a folder of runs, and a link to the means of its groups."""
    root = shlex.quote(str(near(folder)))
    for command in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        terminal().print(f"{command} {root}", soft_wrap=True)
    print_first_screen(folder)


def print_prerequisites(outcomes: Sequence[JobOutcome]) -> None:
    """Print the table of the runs that results of a sweep needed; nothing without any.

    Args:
        outcomes: outcomes of all jobs of the sweep; jobs of needed runs have `Job.what`.
    """
    from llmrl.core.errors import RunFolderError
    from llmrl.run.progress_bar import clock
    from llmrl.run.status import PrerequisiteRecord, read_status

    jobs = {outcome.folder: outcome for outcome in outcomes if outcome.job.what}
    results = {outcome.folder for outcome in outcomes} - jobs.keys()
    needed = {folder: PrerequisiteRecord(o.job.what, o.job.name, str(folder)) for folder, o in jobs.items()}
    folders = [outcome.folder for outcome in outcomes]
    for folder in folders:  # which grows: needed runs need others
        try:
            status = read_status(folder)
        except RunFolderError:
            continue  # the row of that run reports this error
        for each in [] if status is None else status.prerequisites:
            if (path := Path(each.folder)) not in results and path not in needed:
                needed[path] = each
                folders.append(path)
    if not needed:
        return
    table = Table(title="Prerequisite runs")
    for column in ("name", "what", "state", "duration", "folder"):
        table.add_column(column, justify="right" if column == "duration" else "left", overflow="fold")
    for folder, each in sorted(needed.items(), key=lambda item: (item[1].what, item[1].name, str(item[0]))):
        state, seconds = jobs[folder].state if folder in jobs else "", None
        try:
            status = read_status(folder)
        except RunFolderError:
            status, state = None, state or "unreadable"
        if status is not None:
            state, seconds = state or status.state, status.updated - status.started
        duration = "-" if seconds is None else clock(seconds)
        style = None if state in ("finished", "submitted") else "bold"
        table.add_row(each.name, each.what, state or "-", duration, str(near(folder)), style=style)
    terminal().print(table)


def print_first_screen(folder: Path) -> None:
    """Write the means of a folder's groups for TensorBoard, and print a link to them. Nothing is printed if there are
    no groups to compare, or no finished run has a TensorBoard log."""
    from llmrl.analysis.first_screen import write_first_screen
    from llmrl.analysis.runs import read_runs
    from llmrl.core.errors import LlmrlError

    try:
        screen = write_first_screen(folder, read_runs(folder))
    except LlmrlError as error:
        print_line(f"TensorBoard has no means of the groups: {error}")
        return
    if screen is not None:
        print_link("Means of the groups, with TensorBoard on its usual port", screen.link)


def common_folder(folders: Sequence[Path]) -> Path:
    """Return the deepest folder that has the groups of all run folders of a sweep in it."""
    parents = [str(folder.parent.parent) for folder in folders]
    return Path(os.path.commonpath(parents))
