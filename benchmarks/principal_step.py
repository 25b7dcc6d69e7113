"""CPU-seconds of one principal step on Harvest, on Melting Pot and on the native engine.

A step has five training episodes, each with an update, and one validation episode of 1,000 steps with seven agents
(`experiment=legislative/harvest`).

    python benchmarks/principal_step.py [--rounds 3] [--societies 16] [overrides ...]       e.g. env.horizon=100

`melting pot` is the step as published: one game, pictures, a frozen core. `native, pixels` is the same on the native
engine. `native, grid` reads maps with a small core, learned or frozen, and the last setting gives one proposal many
societies that are computed in a batch. Overrides are for all settings.

A step is played by the design loop itself, with one thread and in a run folder, and its cost is split by what it went
into; settings take turns, and medians over rounds are printed. The engine's processes are counted when they end; a
whole `llmrl-train` process, imports included, is measured beside it. The published code needs about 190 CPU-seconds on
a comparable core, 34 for each training episode and 16 to 20 for the validation (measured apart; it is not installed
here). Targets: at most a third of that, and 16 societies for at most 4 times one.
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

PUBLISHED = 190.0  # CPU-seconds
DEFAULTS = ("experiment=legislative/harvest", "principal=fixed", "design.steps=1", "design.references=0")
NATIVE = ("env.engine=native",)
GRID = (*NATIVE, "env.observe=[grid]", "agent.features=64", "agent.map_channels=[8,16]")
REFERENCE, ONE = "melting pot, pixels, frozen core", "native, grid, small frozen core"
GAMES, START = "game processes", "rest (start, records, run folder)"
PARTS = (GAMES, "environment", "policy", "update", START)


def settings(societies: int) -> dict[str, Sequence[str]]:
    """Return the compared overrides by title."""
    frozen = (*GRID, "agent.freeze=core")
    return {
        REFERENCE: (),
        "native, pixels, frozen core": NATIVE,
        "native, grid, small learned core": (*GRID, "agent.freeze=none"),
        ONE: frozen,
        f"{ONE}, {societies} societies": (*frozen, f"design.replicates={societies}", f"env.n_envs={societies}"),
    }


class Clock:
    """CPU-seconds of this process, by the part they went into; a part inside another is not counted twice."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = 0.0

    def wrap(self, owner: object, method: str, part: str) -> None:
        """Count calls of `owner.method` for `part` from now on."""
        setattr(owner, method, self.count(getattr(owner, method), part))

    def count(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return a function that does the same as `call` and counts its time for `part`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                elapsed = time.process_time() - start
                self.spent[part] = self.spent.get(part, 0.0) + elapsed - self._inner
                self._inner = outer + elapsed

        return timed


def children() -> float:
    """Return CPU-seconds of children that have ended."""
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
    """Return CPU-seconds of one principal step by part, and its wall-clock seconds (`wall`)."""
    config = compose_config(overrides)
    clock, before, wall = Clock(), children(), time.perf_counter()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        parts = build_parts(config, None)
        for method in ("step", "reset"):
            clock.wrap(parts.env, method, "environment")
        loop = build_loop(config, parts)
        assert isinstance(loop, DesignLoop)
        for method in ("act", "values"):
            clock.wrap(loop.societies.policy, method, "policy")
        updates = patch.object(Executor, "_update", clock.count(Executor._update, "update"))
        with updates, Run.open(Path(folder), "step", config) as run:
            run.result = serve(loop.requests(run), run)
        parts.close()
    process_seconds = time.process_time() - start
    return {
        GAMES: children() - before,
        **clock.spent,
        START: process_seconds - sum(clock.spent.values()),
        "wall": time.perf_counter() - wall,
    }


def measure_command(overrides: Sequence[str]) -> float:
    """Return CPU-seconds of the whole command, from the start of Python to its end."""
    before = children()
    with tempfile.TemporaryDirectory() as folder:
        words = [Path(sys.executable).with_name("llmrl-train"), *overrides, f"output_root={folder}"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return children() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--societies", type=int, default=16)
    parser.add_argument("overrides", nargs="*", help="of all settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compared = {title: (*DEFAULTS, *words, *options.overrides) for title, words in settings(options.societies).items()}
    if reason := install.find_incompatibility() or install.list_missing_packages():
        print(f"left out: {REFERENCE} ({reason})")
        del compared[REFERENCE]
    rows: dict[str, list[dict[str, float]]] = {title: [] for title in compared}
    command_times: dict[str, list[float]] = {title: [] for title in compared}
    for _ in range(options.rounds):
        for title, words in compared.items():
            rows[title].append(measure_step(words))
            command_times[title].append(measure_command(words))
    totals = {}
    for title in compared:
        totals[title] = statistics.median(sum(row[part] for part in PARTS) for row in rows[title])
        command_seconds, wall = (
            statistics.median(command_times[title]),
            statistics.median(row["wall"] for row in rows[title]),
        )
        print(
            f"{title}: {totals[title]:.2f} CPU-s, {wall:.2f} s wall; "
            f"the whole llmrl-train {command_seconds:.2f} CPU-s, "
            f"{command_seconds / PUBLISHED:.3f} of the published code's {PUBLISHED:.0f} (native: a tenth at most)"
        )
        for part in PARTS:
            print(f"    {part:34} {statistics.median(row[part] for row in rows[title]):7.2f}")
    many = f"{ONE}, {options.societies} societies"
    ratios = [
        totals[many] / totals[ONE],
        statistics.median(command_times[many]) / statistics.median(command_times[ONE]),
    ]
    print(
        f"{options.societies} societies against one: {ratios[0]:.2f} times the step, {ratios[1]:.2f} times the whole "
        "command (target <= 4 for 16)"
    )


if __name__ == "__main__":
    main()
