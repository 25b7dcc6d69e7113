"""Time, memory, files and bytes of commands on an output root with many runs.

    python benchmarks/output_root.py [--runs 100 1000 10000] [--seeds 100] [--folder FOLDER] [--commands status resume]

One tiny run is computed, and copied with other seeds and values of `design.spending_cost`, so that a sweep finds all of
its runs finished. Each command is measured in a process of its own: seconds by the clock, seconds of the processor, and
peak memory. A ratio is that of the processor's seconds to those with the number of runs in the row before.
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
SWEPT = "design.spending_cost"
EVENT_READER = """
import sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
EventMultiplexer().AddRunsFromDirectory(sys.argv[1]).Reload()
"""
"""Reading of all event files, as by `tensorboard --logdir --load_fast=false`."""


@dataclass(frozen=True)
class Cost:
    """Resources that a process used.

    Attributes:
        wall_s, cpu_s: seconds by the clock, and of the processor.
        memory_mb: peak memory, megabytes.
    """

    wall_s: float
    cpu_s: float
    memory_mb: float


def measure(command: Sequence[str], folder: Path) -> Cost:
    """Return the cost of a command that is run in a folder.

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


def sweep_command(n_settings: int, n_seeds: int) -> list[str]:
    """Return the command of the sweep over `n_settings` settings and `n_seeds` seeds."""
    values = ",".join(f"{0.001 * i:g}" for i in range(n_settings))
    arguments = [*OPTIONS, f"{SWEPT}={values}", f"seed=range(0,{n_seeds})"]
    return [sys.executable, "-m", "llmrl", "train", "--multirun", *arguments]


def commands(n_settings: int, n_seeds: int) -> dict[str, list[str]]:
    """Return the measured commands by name."""
    folder = f"outputs/{NAME}"
    return {
        "status": [sys.executable, "-m", "llmrl", "sweep", "status", folder],
        "report": [sys.executable, "-m", "llmrl", "report", folder],
        "resume": sweep_command(n_settings, n_seeds),
        "TensorBoard reading": [sys.executable, "-c", EVENT_READER, folder],
    }


def copy_run(source: Path, folder: Path, changes: Mapping[str, str], result: float) -> None:
    """Copy the files of a finished run.

    Args:
        source: folder of the run.
        folder: folder of the copy.
        changes: replacements in its texts.
        result: result of the copy.
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
        measure(sweep_command(1, 1), Path(folder))
        (source,) = Path(folder, "outputs", NAME).glob("*/s0")
        copy_sweep(source, root / "outputs", n_settings, n_seeds)


def copy_sweep(source: Path, outputs: Path, n_settings: int, n_seeds: int) -> None:
    """Copy a finished run of the first setting with seed 0 to all runs of a sweep below `outputs`."""
    config = read_config(source, ())
    for i in range(n_settings):
        value = f"{0.001 * i:g}"
        changed = {**config, "design": {**config["design"], "spending_cost": float(value)}}
        label = format_run_label([f"{SWEPT}={value}"], NAME)
        for seed in range(n_seeds):
            folder = outputs / NAME / f"{label}-{config_hash(changed)}" / f"s{seed}"
            changes = {
                "seed: 0\n": f"seed: {seed}\n",
                '"seed=0"': f'"seed={seed}"',
                "spending_cost: 0.0\n": f"spending_cost: {float(value)}\n",
                f'"{SWEPT}=0"': f'"{SWEPT}={value}"',
                str(source.parent): str(folder.parent),
                str(source.parents[2]): str(outputs),
            }
            copy_run(source, folder, changes, -10.0 + (i + seed) % 7)


def describe_files(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of files and folders below `folder`, and the bytes of its files."""
    n_files = n_folders = n_bytes = 0
    for place, folders, files in os.walk(folder):
        n_folders += len(folders)
        n_files += len(files)
        n_bytes += sum(Path(place, name).stat().st_size for name in files)
    return n_files, n_folders, n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seeds", type=int, default=100, help="runs of a setting")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the runs, which are kept")
    parser.add_argument("--commands", nargs="+", default=list(commands(1, 1)), choices=list(commands(1, 1)))
    args = parser.parse_args()
    earlier: dict[str, float] = {}
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
                cost = measure(commands(n_settings, n_runs // n_settings)[name], root)
                ratio = f"{cost.cpu_s / earlier[name]:.1f}" if name in earlier else "-"
                earlier[name] = cost.cpu_s
                cells = [f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}", ratio, f"{cost.memory_mb:,.0f}"]
                print(f"| {name} | {n_runs:,} | {' | '.join(cells)} |", flush=True)
    print("\n| runs | files | folders | MB |\n|---:|---:|---:|---:|")
    for n_runs, n_files, n_folders, n_bytes in sizes:
        print(f"| {n_runs:,} | {n_files:,} | {n_folders:,} | {n_bytes / 1e6:,.1f} |")


if __name__ == "__main__":
    main()
