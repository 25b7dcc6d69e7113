"""Worker processes of tests/run/test_processes.py: collective operations and training runs of a toy regression."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmrl.core.errors import ConfigError, ProcessesError
from llmrl.core.processes import ProcessGroup, leave_group_at_exit
from llmrl.run import signals
from llmrl.run.distributed import open_run
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

CONFIG = {"env": {"_target_": "toy"}, "seed": 0}
UPDATES = 6


class ToyRegression:
    """Regression with distributed batches: each process computes the loss of its share."""

    def __init__(self, processes: ProcessGroup) -> None:
        self.processes = processes
        self.generator = torch.Generator().manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.constant_(self.layer.bias, 0.0)
        # Implemented here because torch.optim takes seconds to import.
        self.momentum = [torch.zeros_like(p) for p in self.layer.parameters()]

    def iterate(self) -> float:
        x = torch.randn(7, 3, generator=self.generator)
        shard = x[self.processes.local_slice(len(x))]
        losses = (self.layer(shard) - shard.sum(1, keepdim=True)) ** 2
        (losses.sum() / len(x)).backward()
        self.processes.all_reduce_gradients(self.layer.parameters())
        with torch.no_grad():
            for p, momentum in zip(self.layer.parameters(), self.momentum, strict=True):
                p -= 0.1 * momentum.mul_(0.9).add_(p.grad)
                p.grad = None
        return float(self.processes.gather(losses.detach()).mean())

    def state_dict(self) -> dict[str, Any]:
        state = {"layer": self.layer.state_dict(), "momentum": self.momentum}
        return {**state, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layer.load_state_dict(state["layer"])
        self.momentum = list(state["momentum"])
        self.generator.set_state(state["generator"])


def train(
    root: Path, name: str, processes: ProcessGroup, hook: Callable[[int], None] | None = None, updates: int = UPDATES
) -> float | None:
    """Train the toy regression in a run and return its result; `hook(update)` may inject faults."""
    toy = ToyRegression(processes)
    with open_run(processes, CONFIG, 0, lambda: Run.open(root, name, CONFIG)) as run:
        if run.finished:
            return run.result
        if run.restored_state is not None:
            toy.load_state_dict(run.restored_state)
        with run.progress(updates, "updates", "train", run.iteration) as progress:
            for update in range(run.iteration, updates):
                run.metrics.log(
                    "update", "updates", {"loss": toy.iterate(), "time/rank": processes.rank}, updates=update
                )
                progress.update(update + 1)
                if hook is not None:
                    hook(update)
                run.safe_point(update + 1, toy.state_dict)
        (run.folder / "written_by_the_loop").write_text(str(processes.rank))
        run.result = toy.iterate()
    return run.result


def run_exchanges(processes: ProcessGroup) -> dict[str, Any]:
    """Execute every collective operation and return the results as JSON-compatible objects."""
    rank = processes.rank
    report: dict[str, Any] = {"share": [[s.start, s.stop] for s in map(processes.local_slice, (0, 1, 2, 7))]}
    report["everyone"] = processes.all_gather_object({"rank": rank})
    report["main"] = processes.all_gather_object("first" if rank == 0 else "second")[0]
    rows = torch.arange(14.0).reshape(7, 2)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        converted = rows.to(dtype)
        assert torch.equal(processes.gather(converted[processes.local_slice(7)]), converted), dtype
    assert processes.gather(rows[:1] if rank else rows[:0]).tolist() == [[0.0, 1.0]]
    assert processes.gather(torch.tensor([rank])).tolist() == [0, 1]
    assert processes.gather(rows[:0]).shape == (0, 2)
    tensors = [torch.full((2, 3), 1.0 + rank), torch.tensor([rank, 5]), torch.tensor(0.1, dtype=torch.bfloat16)]
    processes.all_reduce(tensors)
    report["sum"] = [tensor.tolist() for tensor in tensors]
    none, first, shared = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    shared.grad = torch.tensor([1.0, rank])
    if rank == 1:
        first.grad = torch.tensor([3.0, 4.0])
    processes.all_reduce_gradients([none, first, shared])
    report["gradients"] = [None if p.grad is None else p.grad.tolist() for p in (none, first, shared)]
    processes.barrier()
    return report


def log_different_metrics(root: Path, processes: ProcessGroup) -> str:
    """Log different metrics in the processes and return the error message."""
    try:
        with open_run(processes, CONFIG, 0, lambda: Run.open(root, "drifted", CONFIG)) as run:
            run.metrics.log("update", "updates", {"loss": float(processes.rank)}, updates=0)
            run.safe_point(1, dict)
    except ProcessesError as error:
        return str(error)
    return ""


def open_with_different_configs(root: Path, processes: ProcessGroup) -> str:
    """Open a run with different configs in the processes and return the error message."""
    config = {**CONFIG, "rank": processes.rank}
    try:
        open_run(processes, config, 0, lambda: Run.open(root, "other", config))
    except ConfigError as error:
        return str(error)
    return ""


def make_interrupting_hook(processes: ProcessGroup) -> Callable[[int], None]:
    def hook(update: int) -> None:
        if update == 2 and processes.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    return hook


def make_stalling_hook(processes: ProcessGroup) -> Callable[[int], None]:
    """Return a hook that signals the second process and delays its safe point by 5 s, that of the first by 30 s."""

    def hook(update: int) -> None:
        if update == 2:
            if processes.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5.0 if processes.rank else 30.0)

    return hook


def main() -> None:
    root, scenario = Path(sys.argv[1]), sys.argv[2]
    processes = ProcessGroup.join()
    assert ProcessGroup.join() is processes is ProcessGroup.get_joined()
    report: dict[str, Any] = {}
    if scenario == "well":
        report["exchanges"] = run_exchanges(processes)
        report["result"] = train(root, "whole", processes)
        report["again"] = train(root, "whole", processes)
        try:
            train(root, "stopped", processes, make_interrupting_hook(processes))
        except Stopped as stopped:
            report["stopped"] = stopped.signal
        [status] = (root / "stopped").glob("*/s0/status.json")
        report["status"] = processes.all_gather_object(status.read_text())[0]
        report["resumed"] = train(root, "stopped", processes)
        report["drifted"] = log_different_metrics(root, processes)
        report["other"] = open_with_different_configs(root, processes)
    elif scenario == "far":
        signals.DISCARD_WORK_S, signals.SECOND_DISCARD_S, signals._RESPONSE_TIMEOUT_S = 0.5, 1.0, 0.1
        train(root, "given_up", processes, make_stalling_hook(processes))
    else:

        def crash(update: int) -> None:
            if update == 2 and processes.rank == 1:
                raise ZeroDivisionError("made to fail")

        train(root, "crashed", processes, crash)
    (root / f"report-{processes.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    with leave_group_at_exit():
        main()
