"""CPU seconds of a principal step on Harvest, with Melting Pot and with the native engine.

A step consists of five training episodes with an update each, and a validation episode, of 1,000 steps with seven
agents (`experiment=legislative/harvest`).

    python benchmarks/principal_step.py [--rounds 3] [--societies 16] [overrides ...]       e.g. env.horizon=100

`melting pot` is the published setting: one game, image observations, a frozen core. `native, pixels` is the same
setting in the native engine. `native, grid` observes grids with a small core, trained or frozen. The last setting
evaluates one proposal with many societies in a batch. Overrides apply to all settings.

The design loop runs a step with one thread in a run folder. Its cost is reported by component. Settings alternate;
prints medians over rounds. CPU time of the processes of the engine is included when they exit. The cost of a complete
`llmrl-train` process, including imports, is measured separately. The published code needs about 190 CPU seconds on a
comparable core: 34 for each training episode and 16 to 20 for the validation (measured separately; it is not run here).
Targets: at most a third of this time; 16 societies take at most 4 times as long as one.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from llmrl.envs.substrate import install
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.design import DesignLoop
from llmrl.loops.executor import Executor, serve
from llmrl.run.run import Run

PUBLISHED_SECONDS = 190.0
"""CPU seconds of a principal step of the published code."""
DEFAULTS = ("experiment=legislative/harvest", "principal=fixed", "design.steps=1", "design.references=0")
NATIVE = ("env.engine=native",)
GRID = (*NATIVE, "env.observe=[grid]", "agent.features=64", "agent.map_channels=[8,16]")
REFERENCE, SINGLE = "melting pot, pixels, frozen core", "native, grid, small frozen core"
GAMES, REST = "game processes", "rest (start, records, run folder)"
COMPONENTS = (GAMES, "environment", "policy", "update", REST)


def list_settings(societies: int) -> dict[str, Sequence[str]]:
    """Return the overrides of each setting by title."""
    grid_frozen = (*GRID, "agent.freeze=core")
    return {
        REFERENCE: (),
        "native, pixels, frozen core": NATIVE,
        "native, grid, small learned core": (*GRID, "agent.freeze=none"),
        SINGLE: grid_frozen,
        f"{SINGLE}, {societies} societies": (*grid_frozen, f"design.replicates={societies}", f"env.n_envs={societies}"),
    }


class Profiler:
    """CPU profiler by component, which excludes the time of nested components.

    Attributes:
        seconds: CPU seconds of this process by component.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._nested_seconds = 0.0

    def wrap_method(self, owner: object, method: str, component: str) -> None:
        """Replace `owner.method` with a function that adds its time to `component`."""
        setattr(owner, method, self.wrap(getattr(owner, method), component))

    def wrap(self, function: Callable[..., Any], component: str) -> Callable[..., Any]:
        """Return a function that calls `function` and adds its time to `component`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            outer_seconds, self._nested_seconds = self._nested_seconds, 0.0
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.process_time() - start
                self.seconds[component] = self.seconds.get(component, 0.0) + elapsed - self._nested_seconds
                self._nested_seconds = outer_seconds + elapsed

        return wrapper


def read_child_cpu() -> float:
    """Return CPU seconds of exited child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compose_config(overrides: Sequence[str]) -> dict[str, Any]:
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        config = compose("train", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def measure_step(overrides: Sequence[str]) -> dict[str, float]:
    """Run a principal step, and return CPU seconds by component, and wall-clock seconds (`wall`)."""
    config = compose_config(overrides)
    profiler, child_start, wall = Profiler(), read_child_cpu(), time.perf_counter()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        parts = build_parts(config, None)
        for method in ("step", "reset"):
            profiler.wrap_method(parts.env, method, "environment")
        loop = build_loop(config, parts)
        assert isinstance(loop, DesignLoop)
        for method in ("act", "values"):
            profiler.wrap_method(loop.societies.policy, method, "policy")
        update_patch = patch.object(Executor, "_update", profiler.wrap(Executor._update, "update"))
        with update_patch, Run.open(Path(folder), "step", config) as run:
            run.result = serve(loop.requests(run), run)
        parts.close()
    process_seconds = time.process_time() - start
    return {
        GAMES: read_child_cpu() - child_start,
        **profiler.seconds,
        REST: process_seconds - sum(profiler.seconds.values()),
        "wall": time.perf_counter() - wall,
    }


def measure_command(overrides: Sequence[str]) -> float:
    """Run `llmrl-train`, and return the CPU seconds of the process."""
    start = read_child_cpu()
    with tempfile.TemporaryDirectory() as folder:
        command = [Path(sys.executable).with_name("llmrl-train"), *overrides, f"output_root={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_child_cpu() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--societies", type=int, default=16)
    parser.add_argument("overrides", nargs="*", help="overrides for all settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {
        title: (*DEFAULTS, *overrides, *options.overrides)
        for title, overrides in list_settings(options.societies).items()
    }
    if reason := install.find_incompatibility() or install.list_missing_requirements():
        print(f"skipped: {REFERENCE} ({reason})")
        del settings[REFERENCE]
    rows: dict[str, list[dict[str, float]]] = {title: [] for title in settings}
    command_times: dict[str, list[float]] = {title: [] for title in settings}
    for _ in range(options.rounds):
        for title, overrides in settings.items():
            rows[title].append(measure_step(overrides))
            command_times[title].append(measure_command(overrides))
    totals = {}
    for title in settings:
        totals[title] = statistics.median(sum(row[component] for component in COMPONENTS) for row in rows[title])
        command_seconds, wall = (
            statistics.median(command_times[title]),
            statistics.median(row["wall"] for row in rows[title]),
        )
        print(
            f"{title}: {totals[title]:.2f} CPU s, {wall:.2f} s wall; "
            f"complete llmrl-train {command_seconds:.2f} CPU s, {command_seconds / PUBLISHED_SECONDS:.3f} of the "
            f"{PUBLISHED_SECONDS:.0f} CPU s of the published code (target for native <= 0.1)"
        )
        for component in COMPONENTS:
            print(f"    {component:34} {statistics.median(row[component] for row in rows[title]):7.2f}")
    batch_title = f"{SINGLE}, {options.societies} societies"
    ratios = [
        totals[batch_title] / totals[SINGLE],
        statistics.median(command_times[batch_title]) / statistics.median(command_times[SINGLE]),
    ]
    print(
        f"{options.societies} societies compared with one: {ratios[0]:.2f} times the CPU time of the step, "
        f"{ratios[1]:.2f} times that of the command (target <= 4 for 16)"
    )


if __name__ == "__main__":
    main()
