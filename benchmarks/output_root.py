"""Duration and memory of commands on an output root with many runs, and number and size of its files.

    python benchmarks/output_root.py [--runs 100 1000 10000] [--seeds 100] [--folder FOLDER] [--commands status resume]

A small run is computed and copied with other seeds and values of `design.spending_cost`, so that all runs of a sweep
are finished. Each command is measured in a separate process: wall-clock seconds, CPU seconds and peak memory. The ratio
compares CPU seconds with the next smaller number of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.run.artifacts import read_config
from llmrl.run.config_hash import config_hash
from llmrl.run.folder import format_run_label

NAME = "scale"
OPTIONS = ["env=escape_room", "principal=ucb", f"name={NAME}", "+debug=quick", "agent.core_hidden=[4]"]
SWEPT_OPTION = "design.spending_cost"
EVENT_READER = """
import sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
EventMultiplexer().AddRunsFromDirectory(sys.argv[1]).Reload()
"""
"""Program that reads all event files, like `tensorboard --logdir --load_fast=false`."""


@dataclass(frozen=True)
class Cost:
    """Resources that a process used.

    Attributes:
        wall_s, cpu_s: wall-clock and CPU seconds.
        memory_mb: peak memory, megabytes.
    """

    wall_s: float
    cpu_s: float
    memory_mb: float


def measure(command: Sequence[str], folder: Path) -> Cost:
    """Run a command in a folder, and return its cost.

    Raises:
        RuntimeError: the command failed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)[:200]}: {output.read()[-2000:].decode()}")
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def make_sweep_command(n_settings: int, n_seeds: int) -> list[str]:
    """Return the command of the sweep over `n_settings` settings and `n_seeds` seeds."""
    values = ",".join(f"{0.001 * i:g}" for i in range(n_settings))
    arguments = [*OPTIONS, f"{SWEPT_OPTION}={values}", f"seed=range(0,{n_seeds})"]
    return [sys.executable, "-m", "llmrl", "train", "--multirun", *arguments]


def list_commands(n_settings: int, n_seeds: int) -> dict[str, list[str]]:
    """Return the measured commands by name."""
    folder = f"outputs/{NAME}"
    return {
        "status": [sys.executable, "-m", "llmrl", "sweep", "status", folder],
        "report": [sys.executable, "-m", "llmrl", "report", folder],
        "resume": make_sweep_command(n_settings, n_seeds),
        "TensorBoard reading": [sys.executable, "-c", EVENT_READER, folder],
    }


def copy_run(source: Path, folder: Path, changes: Mapping[str, str], result: float) -> None:
    """Copy the files of a finished run.

    Args:
        source: folder of the run.
        folder: folder of the copy.
        changes: replacements in text files, by replaced text.
        result: result in the status of the copy.
    """
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix in (".json", ".jsonl", ".yaml", ".log"):
            text = path.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            (folder / path.name).write_text(text)
        elif path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy(path, folder)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"result": result}, indent=2))


def create_runs(root: Path, n_settings: int, n_seeds: int) -> None:
    """Create the finished runs of a sweep below `root/outputs`: compute one, and copy it."""
    with tempfile.TemporaryDirectory() as folder:
        measure(make_sweep_command(1, 1), Path(folder))
        (source,) = Path(folder, "outputs", NAME).glob("*/s0")
        copy_sweep(source, root / "outputs", n_settings, n_seeds)


def copy_sweep(source: Path, outputs: Path, n_settings: int, n_seeds: int) -> None:
    """Copy a finished run of the first setting with seed 0 to all runs of a sweep below `outputs`."""
    config = read_config(source, ())
    for i in range(n_settings):
        value = f"{0.001 * i:g}"
        setting_config = {**config, "design": {**config["design"], "spending_cost": float(value)}}
        label = format_run_label([f"{SWEPT_OPTION}={value}"], NAME)
        for seed in range(n_seeds):
            folder = outputs / NAME / f"{label}-{config_hash(setting_config)}" / f"s{seed}"
            changes = {
                "seed: 0\n": f"seed: {seed}\n",
                '"seed=0"': f'"seed={seed}"',
                "spending_cost: 0.0\n": f"spending_cost: {float(value)}\n",
                f'"{SWEPT_OPTION}=0"': f'"{SWEPT_OPTION}={value}"',
                str(source.parent): str(folder.parent),
                str(source.parents[2]): str(outputs),
            }
            copy_run(source, folder, changes, -10.0 + (i + seed) % 7)


def describe_files(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of files and folders below `folder`, and the bytes of its files."""
    n_files = n_folders = n_bytes = 0
    for parent, folders, files in os.walk(folder):
        n_folders += len(folders)
        n_files += len(files)
        n_bytes += sum(Path(parent, name).stat().st_size for name in files)
    return n_files, n_folders, n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seeds", type=int, default=100, help="seeds of each setting")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the runs (default: temporary)")
    parser.add_argument("--commands", nargs="+", default=list(list_commands(1, 1)), choices=list(list_commands(1, 1)))
    args = parser.parse_args()
    previous_cpu: dict[str, float] = {}
    print("| command | runs | seconds | CPU seconds | ratio | memory, MB |\n|---|---:|---:|---:|---:|---:|")
    sizes = []
    for n_runs in args.runs:
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary) if args.folder is None else args.folder / str(n_runs)
            n_settings = max(1, n_runs // args.seeds)
            if not (root / "outputs").exists():
                root.mkdir(parents=True, exist_ok=True)
                create_runs(root, n_settings, n_runs // n_settings)
            sizes.append((n_runs, *describe_files(root / "outputs")))
            for name in args.commands:
                cost = measure(list_commands(n_settings, n_runs // n_settings)[name], root)
                ratio = f"{cost.cpu_s / previous_cpu[name]:.1f}" if name in previous_cpu else "-"
                previous_cpu[name] = cost.cpu_s
                cells = [f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", ratio, f"{cost.memory_mb:,.0f}"]
                print(f"| {name} | {n_runs:,} | {' | '.join(cells)} |", flush=True)
    print("\n| runs | files | folders | MB |\n|---:|---:|---:|---:|")
    for n_runs, n_files, n_folders, n_bytes in sizes:
        print(f"| {n_runs:,} | {n_files:,} | {n_folders:,} | {n_bytes / 1e6:,.1f} |")


if __name__ == "__main__":
    main()
