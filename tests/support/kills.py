"""Runs whose process is killed repeatedly."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import commands
from experiments import find_run_folder, load_comparable_metrics, run_silently


def metrics_after_kills(root: Path, overrides: tuple[str, ...], n_kills: int):
    """Return the metrics of a run that was killed repeatedly and those of an undisturbed run, without usage.

    Each attempt is killed shortly after its first checkpoint.

    Args:
        root: output folder.
        overrides: overrides of the run.
        n_kills: number of kills.
    """
    overrides = (*overrides, f"output_root={root}", "checkpoint_seconds=0")
    run_silently(*overrides, "name=undisturbed")
    killed = (*overrides, "name=killed")
    for i in range(n_kills):
        previous = newest_checkpoint(root / "killed")
        process = commands.Process(target=run_silently, args=killed)
        process.start()
        while process.is_alive() and newest_checkpoint(root / "killed") == previous:
            time.sleep(0.02)
        time.sleep(0.03 * i)
        assert process.is_alive(), f"the run has ended after {i} kills"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    run_silently(*killed)
    return [
        [
            {name: x for name, x in row.items() if not name.startswith("usage/")}
            for row in load_comparable_metrics(folder)
        ]
        for folder in (find_run_folder(root / "killed"), find_run_folder(root / "undisturbed"))
    ]


def newest_checkpoint(folder: Path) -> int:
    """Return the time of the newest checkpoint of the run in `folder`, nanoseconds; 0 without one."""
    times = [0]
    for path in folder.glob("*/s0/checkpoints/*"):
        with contextlib.suppress(FileNotFoundError):  # replaced by a newer one
            times.append(path.stat().st_mtime_ns)
    return max(times)
