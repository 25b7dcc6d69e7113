"""Printed tables at the end of a sweep."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.display.console import near, print_line, print_table
from llmrl.display.run_summary import record, validity_warning_of
from llmrl.run.status import SUMMARY_NAME

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import JobOutcome


def print_sweep(outcomes: Sequence[JobOutcome], commands: bool = True) -> None:
    """Print the final tables of a sweep: prerequisite runs, and results.

    Args:
        outcomes: outcomes of all jobs.
        commands: whether to print commands for further steps, too.
    """
    from llmrl.run.folder import split_overrides
    from llmrl.run.folder_names import title

    all_outcomes = list({outcome.folder: outcome for outcome in outcomes}.values())
    outcomes = [outcome for outcome in all_outcomes if not outcome.job.what]
    print_prerequisites(all_outcomes)
    counts = Counter(outcome.state for outcome in outcomes)
    notes = ["nothing to do" if o.skipped and o.state == "finished" else o.error for o in outcomes]
    for i, outcome in enumerate(outcomes):
        if outcome.state == "finished" and (warning := validity_warning_of(record(outcome.folder / SUMMARY_NAME))):
            notes[i] = warning
    title_text = ", ".join(f"{n} {state}" for state, n in counts.most_common())
    rows, styles = [], []
    for outcome, note in zip(outcomes, notes, strict=True):
        name = title(split_overrides(outcome.job.naming)) or outcome.folder.parent.name
        result = "" if outcome.result is None else f"{outcome.result:.5g}"
        styles.append({"finished": None, "submitted": None, "elsewhere": "dim"}.get(outcome.state, "bold"))
        seed = str(outcome.job.config["seed"])
        rows.append([name, seed, outcome.state, result, *([note] if any(notes) else [])])
    print_table(title_text, ["run", "seed", "state", "result", *([""] if any(notes) else [])], rows, "lrlrl", styles)
    incomplete = [o for o in all_outcomes if o.state not in ("finished", "elsewhere", "submitted")]
    if incomplete:
        print_line(f"Log of the first: {shlex.join(['llmrl-sweep', 'logs', str(near(incomplete[0].folder))])}")
        print_line("The same command continues the unfinished runs.")
    if not commands:
        return
    print_commands(common_folder([outcome.folder for outcome in outcomes]))


def print_commands(folder: Path) -> None:
    """Print the commands that show a folder of runs."""
    root = shlex.quote(str(near(folder)))
    for command in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        print_line(f"{command} {root}")


def print_prerequisites(outcomes: Sequence[JobOutcome]) -> None:
    """Print the table of the prerequisite runs of a sweep; nothing without any.

    Args:
        outcomes: outcomes of all jobs of the sweep; jobs of prerequisite runs have `Job.what`.
    """
    from llmrl.core.errors import RunFolderError
    from llmrl.run.progress_bar import clock
    from llmrl.run.status import PrerequisiteRecord, read_status

    jobs = {outcome.folder: outcome for outcome in outcomes if outcome.job.what}
    results = {outcome.folder for outcome in outcomes} - jobs.keys()
    prerequisites = {folder: PrerequisiteRecord(o.job.what, o.job.name, str(folder)) for folder, o in jobs.items()}
    folders = [outcome.folder for outcome in outcomes]
    for folder in folders:  # grows in the loop, because prerequisite runs may need others
        try:
            status = read_status(folder)
        except RunFolderError:
            continue  # the row of that run reports this error
        for prerequisite in [] if status is None else status.prerequisites:
            if (path := Path(prerequisite.folder)) not in results and path not in prerequisites:
                prerequisites[path] = prerequisite
                folders.append(path)
    if not prerequisites:
        return
    rows, styles = [], []
    for folder, prerequisite in sorted(
        prerequisites.items(), key=lambda item: (item[1].what, item[1].name, str(item[0]))
    ):
        state, seconds = jobs[folder].state if folder in jobs else "", None
        try:
            status = read_status(folder)
        except RunFolderError:
            status, state = None, state or "unreadable"
        if status is not None:
            state, seconds = state or status.state, status.updated - status.started
        duration = "-" if seconds is None else clock(seconds)
        styles.append(None if state in ("finished", "submitted") else "bold")
        rows.append([prerequisite.name, prerequisite.what, state or "-", duration, str(near(folder))])
    columns = ["name", "what", "state", "duration", "folder"]
    print_table("Prerequisite runs", columns, rows, "lllrl", styles)


def common_folder(folders: Sequence[Path]) -> Path:
    """Return the deepest folder that contains the groups of all run folders of a sweep."""
    parents = [str(folder.parent.parent) for folder in folders]
    return Path(os.path.commonpath(parents))
