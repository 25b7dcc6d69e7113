"""Overhead per run of the launcher of llmrl in a local sweep, compared with Hydra's basic and joblib launchers.

    python benchmarks/launchers.py [--runs 200] [--rounds 3] [--jobs 2]

All launchers execute the same sweep: `--runs` seeds of a minimal run, which is one principal step of one episode of the
escape room with agents that do not learn. Each run writes its run folder, logs, metrics and provenance. The overhead
of a launcher per run is

    wall / runs - run / jobs      and, in CPU time,      cpu / runs - run_cpu

where `wall` is the duration of the command, `jobs` is the number of concurrent runs (1 for basic), and `run` is the
duration of a run in a process with all imports completed. Startup, composition of configs, creation of processes, and
imports therefore count as overhead. Basic and joblib use Hydra's basic sweeper, which composes every run before it
launches the first, to detect errors. CPU time is that of all processes of the command (Linux); it depends little on the
load of the machine. Target: at most the overhead of joblib. Joblib reuses its processes for many runs. llmrl starts a
process for each run, so that a crash or a memory leak does not affect other runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from llmrl.sweeps.machine import THREAD_VARIABLES, Machine

TASK = [
    "env=escape_room",
    "env.n_envs=1",
    "principal=random",
    "agent=random",
    "design.steps=1",
    "design.references=0",
    "design.adapt_rounds=0",
    "design.validate_episodes=1",
]
TRAIN = [sys.executable, "-c", "from llmrl.cli.train import main; main()"]
REFERENCE_RUNS = 20
REFERENCE = """
import json, os, resource, sys, time
from pathlib import Path
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_job import run_and_print

def cpu():
    usages = [resource.getrusage(process) for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

report, runs, task = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
times = []
for seed in range(runs + 1):
    experiment = Experiment.compose(*task, f"seed={seed}")
    start = time.perf_counter(), cpu()
    run_and_print(experiment)
    times.append((time.perf_counter() - start[0], cpu() - start[1]))
Path(report).write_text(json.dumps(times[1:]))  # the first run imports modules
"""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


@dataclass(frozen=True)
class Cost:
    """Cost of a sweep.

    Attributes:
        wall: duration of the command, seconds.
        cpu: CPU time of the command, seconds.
        first: time until the first run finished, seconds.
    """

    wall: float
    cpu: float
    first: float


def list_launchers(jobs: int) -> dict[str, tuple[int, list[str]]]:
    """Return (number of concurrent runs, overrides that select the launcher) by name."""
    joblib = ["hydra/launcher=joblib", "hydra/sweeper=basic", f"hydra.launcher.n_jobs={jobs}"]
    return {
        "llmrl": (jobs, ["hardware=local", "hardware.device=cpu", "hardware.gpus=0", f"hardware.parallel={jobs}"]),
        "joblib": (jobs, joblib),
        "basic": (1, ["hydra/launcher=basic", "hydra/sweeper=basic"]),
    }


def make_environment() -> dict[str, str]:
    """Return environment variables that limit each run to one thread, for all launchers."""
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}


def run(command: list[str], cwd: Path) -> tuple[float, float]:
    """Run a command, and return its duration and CPU time, seconds; CPU time includes all descendants.

    Raises:
        SystemExit: the command failed.
    """
    cpu_start, start = measure_child_cpu(), time.perf_counter()
    process = subprocess.run(command, cwd=cwd, env=make_environment(), capture_output=True, text=True)
    wall = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexited with code {process.returncode}:\n{process.stderr[-2000:]}")
    wait_for_children()
    return wall, measure_child_cpu() - cpu_start


def measure_child_cpu() -> float:
    """Return the CPU time of exited child processes, seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def adopt_orphans() -> None:
    """Make this process the parent of orphaned helper processes, so that their CPU time is measured."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def wait_for_children() -> None:
    """Wait until all child processes have exited."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def measure_reference(folder: Path) -> tuple[float, float]:
    """Return the median duration and CPU time, seconds, of runs in one process without a launcher."""
    folder.mkdir()
    report = folder / "times.json"
    run([sys.executable, "-c", REFERENCE, str(report), str(REFERENCE_RUNS), *TASK], folder)
    walls, cpus = zip(*json.loads(report.read_text()), strict=True)
    return statistics.median(walls), statistics.median(cpus)


def run_sweep(folder: Path, launcher: list[str], runs: int) -> tuple[Cost, dict[str, float]]:
    """Run a sweep in a new folder, and return its cost and the results by run.

    Args:
        folder: folder that is created.
        launcher: overrides that select the launcher.
        runs: number of seeds.

    Raises:
        SystemExit: not all runs finished.
    """
    folder.mkdir()
    start = time.time()
    wall, cpu = run([*TRAIN, "--multirun", *TASK, *launcher, f"seed=range({runs})"], folder)
    statuses = {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("status.json")}
    results = {name: status["result"] for name, status in statuses.items() if status["state"] == "finished"}
    if len(results) != runs:
        raise SystemExit(f"{len(results)} of {runs} runs have finished ({' '.join(launcher)})")
    return Cost(wall, cpu, min(status["updated"] for status in statuses.values()) - start), results


def compute_overheads(
    costs: list[Cost], references: list[tuple[float, float]], jobs: int, runs: int
) -> list[tuple[float, float]]:
    """Return (duration, CPU time) of the overhead per run in each round, seconds."""
    return [
        (cost.wall / runs - run_wall / jobs, cost.cpu / runs - run_cpu)
        for cost, (run_wall, run_cpu) in zip(costs, references, strict=True)
    ]


def print_report(costs: dict[str, list[Cost]], references: list[tuple[float, float]], args: argparse.Namespace) -> None:
    """Print medians over rounds; ratios are computed within a round, because the load of the machine may vary."""
    run_wall, run_cpu = (statistics.median(column) for column in zip(*references, strict=True))
    print(
        f"{args.runs} runs, {args.jobs} at once, median of {args.rounds} rounds; "
        f"a run without a launcher takes {run_wall * 1e3:.0f} ms ({run_cpu * 1e3:.0f} ms of CPU time)"
    )
    headers = [("total", 9), ("first result", 14), ("overhead per run", 18), ("/ joblib", 10)]
    headers += [("CPU", 12), ("/ joblib", 10)]
    print(" " * 8 + "".join(f"{header:>{width}}" for header, width in headers))
    overheads = {
        name: compute_overheads(costs[name], references, jobs, args.runs)
        for name, (jobs, _) in list_launchers(args.jobs).items()
    }
    for name, rows in overheads.items():
        total, first = (statistics.median(getattr(cost, key) for cost in costs[name]) for key in ("wall", "first"))
        cells = f"{name:8}{total:7.1f} s{first:12.1f} s"
        for k, width in ((0, 15), (1, 9)):
            pairs = zip(rows, overheads["joblib"], strict=True)
            ratio = statistics.median(row[k] / joblib_row[k] for row, joblib_row in pairs)
            cells += f"{statistics.median(row[k] for row in rows) * 1e3:{width}.0f} ms{ratio:10.2f}"
        print(cells)
    pairs = zip(overheads["llmrl"], overheads["joblib"], strict=True)
    ratios = [llmrl_row[0] / joblib_row[0] for llmrl_row, joblib_row in pairs]
    print(f"llmrl / joblib by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)} (target <= 1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs of each sweep (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="sweeps with each launcher (default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs, at most the number of cores (default 2)")
    args = parser.parse_args()
    if args.jobs > (cores := Machine.detect().cores):
        parser.error(f"--jobs {args.jobs}: exceeds the {cores} cores, which limit the concurrent runs of llmrl")
    if find_spec("hydra_plugins.hydra_joblib_launcher") is None:
        parser.error("needs the package hydra-joblib-launcher (pip install hydra-joblib-launcher)")
    adopt_orphans()
    costs: dict[str, list[Cost]] = {name: [] for name in list_launchers(args.jobs)}
    references = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as root:
            references.append(measure_reference(Path(root) / "reference"))
            sweep_results = []
            for name, (_, launcher) in list_launchers(args.jobs).items():
                cost, results = run_sweep(Path(root) / name, launcher, args.runs)
                costs[name].append(cost)
                sweep_results.append(results)
            if any(results != sweep_results[0] for results in sweep_results):
                raise SystemExit("the launchers' results differ")
    print_report(costs, references, args)


if __name__ == "__main__":
    main()
