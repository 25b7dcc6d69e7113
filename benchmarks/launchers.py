"""Cost of launchers per run of a local sweep: ours, and Hydra's basic and joblib launchers, in turns.

    python benchmarks/launchers.py [--runs 200] [--rounds 3] [--jobs 2]

All three compute the same sweep: `--runs` seeds of the smallest run there is, one principal step of one episode of the
escape room with agents that do not learn, each with its run folder, logs, metrics and provenance. The overhead of a
launcher per run is

    wall / runs - work / jobs      and, in processor time,      cpu / runs - work_cpu

where `wall` is the time of the whole command, from its start to its end; `jobs` is how many runs it computes at once
(1 for basic); and `work` is what one run takes in a process that has imported all it needs and does nothing else.
So starting up, composing configs, starting processes, imports, and whatever makes a run slower than there all count as
overhead. Basic and joblib are used with Hydra's own sweeper, which composes every run once before it launches any, to
find mistakes. Processor time is of all processes of the command together (Linux), and depends little on what else the
machine does. The target is at most the overhead of joblib, whose processes are started once and used for many runs;
ours gives every run a process of its own, so that one that is killed, or leaks, takes none with it.
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
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)

report, runs, task = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
times = []
for seed in range(runs + 1):
    experiment = Experiment.compose(*task, f"seed={seed}")
    before = time.perf_counter(), cpu()
    run_and_print(experiment)
    times.append((time.perf_counter() - before[0], cpu() - before[1]))
Path(report).write_text(json.dumps(times[1:]))  # the first one imports
"""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


@dataclass(frozen=True)
class Cost:
    """Of one sweep, in seconds: the whole command, its processor time, and until the first run had finished."""

    wall: float
    cpu: float
    first: float


def launchers(jobs: int) -> dict[str, tuple[int, list[str]]]:
    """Return, by name, the number of runs at once, and the overrides that choose the launcher."""
    joblib = ["hydra/launcher=joblib", "hydra/sweeper=basic", f"hydra.launcher.n_jobs={jobs}"]
    return {
        "llmrl": (jobs, ["hardware=local", "hardware.device=cpu", "hardware.gpus=0", f"hardware.parallel={jobs}"]),
        "joblib": (jobs, joblib),
        "basic": (1, ["hydra/launcher=basic", "hydra/sweeper=basic"]),
    }


def environment() -> dict[str, str]:
    """Return environment variables that limit each run to one thread with every launcher."""
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}


def run(command: list[str], cwd: Path) -> tuple[float, float]:
    """Return seconds, and processor seconds including those of all children."""
    before, start = children_cpu(), time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    adopt_and_wait()
    return wall, children_cpu() - before


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt_orphans() -> None:
    """Make helper processes that outlive a command by a moment ours to wait for, or their time would go uncounted."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def adopt_and_wait() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def reference(folder: Path) -> tuple[float, float]:
    """Return median seconds and processor seconds of a run by itself."""
    folder.mkdir()
    report = folder / "times.json"
    run([sys.executable, "-c", REFERENCE, str(report), str(REFERENCE_RUNS), *TASK], folder)
    walls, cpus = zip(*json.loads(report.read_text()), strict=True)
    return statistics.median(walls), statistics.median(cpus)


def sweep(folder: Path, chosen: list[str], runs: int) -> tuple[Cost, dict[str, float]]:
    """Return the cost of a sweep in a new `folder`, and its result by run."""
    folder.mkdir()
    started = time.time()
    wall, cpu = run([*TRAIN, "--multirun", *TASK, *chosen, f"seed=range({runs})"], folder)
    statuses = {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("status.json")}
    finished = {name: status["result"] for name, status in statuses.items() if status["state"] == "finished"}
    if len(finished) != runs:
        raise SystemExit(f"{len(finished)} of {runs} runs have finished ({' '.join(chosen)})")
    return Cost(wall, cpu, min(status["updated"] for status in statuses.values()) - started), finished


def overheads(
    costs: list[Cost], works: list[tuple[float, float]], at_once: int, runs: int
) -> list[tuple[float, float]]:
    """Return, by round, seconds and processor seconds per run beyond the run's own."""
    return [
        (cost.wall / runs - work / at_once, cost.cpu / runs - cpu)
        for cost, (work, cpu) in zip(costs, works, strict=True)
    ]


def report(costs: dict[str, list[Cost]], works: list[tuple[float, float]], args: argparse.Namespace) -> None:
    """Print medians over the rounds; ratios are of the same round, because the machine may be busier in another."""
    work, work_cpu = (statistics.median(column) for column in zip(*works, strict=True))
    print(
        f"{args.runs} runs, {args.jobs} at once, median of {args.rounds} rounds; "
        f"a run by itself takes {work * 1e3:.0f} ms ({work_cpu * 1e3:.0f} ms of processor time)"
    )
    heads = [("total", 9), ("first result", 14), ("overhead per run", 18), ("/ joblib", 10)]
    heads += [("processor", 12), ("/ joblib", 10)]
    print(" " * 8 + "".join(f"{head:>{width}}" for head, width in heads))
    extra = {name: overheads(costs[name], works, chosen[0], args.runs) for name, chosen in launchers(args.jobs).items()}
    for name, own in extra.items():
        total, first = (statistics.median(getattr(cost, key) for cost in costs[name]) for key in ("wall", "first"))
        cells = f"{name:8}{total:7.1f} s{first:12.1f} s"
        for k, width in ((0, 15), (1, 9)):
            ratio = statistics.median(a[k] / b[k] for a, b in zip(own, extra["joblib"], strict=True))
            cells += f"{statistics.median(row[k] for row in own) * 1e3:{width}.0f} ms{ratio:10.2f}"
        print(cells)
    ratios = [a[0] / b[0] for a, b in zip(extra["llmrl"], extra["joblib"], strict=True)]
    print(f"llmrl / joblib by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)} (target <= 1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each sweep (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="sweeps with each launcher, in turn (default 3)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, at most the cores there are (default 2)")
    args = parser.parse_args()
    if args.jobs > (cores := Machine.detect().cores):
        parser.error(f"--jobs {args.jobs}: there are {cores} cores, and llmrl would not compute more runs at once")
    if find_spec("hydra_plugins.hydra_joblib_launcher") is None:
        parser.error("needs the package hydra-joblib-launcher (pip install hydra-joblib-launcher)")
    adopt_orphans()
    costs: dict[str, list[Cost]] = {name: [] for name in launchers(args.jobs)}
    works = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as root:
            works.append(reference(Path(root) / "reference"))
            results = []
            for name, (_, chosen) in launchers(args.jobs).items():
                cost, finished = sweep(Path(root) / name, chosen, args.runs)
                costs[name].append(cost)
                results.append(finished)
            if any(finished != results[0] for finished in results):
                raise SystemExit("the launchers' results differ")
    report(costs, works, args)


if __name__ == "__main__":
    main()
