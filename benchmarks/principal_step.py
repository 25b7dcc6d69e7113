"""CPU-seconds of one principal step on Harvest as published: five training episodes and one validation episode of 1000
steps, one game of seven agents, a frozen core (`experiment=legislative/harvest_published`).

The step is played by the design loop itself, in a run folder, and its cost is split by what it went into. The engine's
processes are counted when they end; a whole `llmrl-train` process, imports included, is measured beside it. The
published code needs about 180 CPU-seconds on a comparable core (measured apart; it is not installed here). Target: at
most a third of that.

    python benchmarks/principal_step.py [overrides ...]      e.g. experiment=legislative/cleanup_published
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from llmrl.cli.compose import build_loop, build_parts
from llmrl.run.run import Run

PUBLISHED = 180.0  # CPU-seconds
ROUNDS = 3
DEFAULTS = ("experiment=legislative/harvest_published", "principal=fixed")


class Clock:
    """CPU-seconds of this process, by the part they went into; a part inside another is not counted twice."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = 0.0

    def wrap(self, owner: object, method: str, part: str) -> None:
        """From now on, calls of `owner.method` count for `part`."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.process_time() - start
                self.spent[part] = self.spent.get(part, 0.0) + took - self._inner
                self._inner = outer + took

        setattr(owner, method, timed)


def children() -> float:
    """CPU-seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def resolved(overrides: Sequence[str]) -> dict[str, Any]:
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        config = compose("train", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def principal_step(overrides: Sequence[str]) -> dict[str, float]:
    """CPU-seconds of one principal step by part, and its wall-clock seconds (`wall`)."""
    config = resolved((*overrides, "design.steps=1"))
    clock, before, wall = Clock(), children(), time.perf_counter()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        parts = build_parts(config, None)
        clock.wrap(parts.env, "step", "games, seen from the learner")
        clock.wrap(parts.env, "reset", "games, seen from the learner")
        clock.wrap(parts.agents[0].policy, "act", "policy")
        clock.wrap(parts.agents[0].policy, "values", "policy")
        clock.wrap(parts.agents[0], "update", "update")
        with Run.open(Path(folder), "step", config) as run:
            run.result = build_loop(config, parts).run(run)
        parts.close()
    own = time.process_time() - start
    return {
        "game processes": children() - before,
        **clock.spent,
        "rest (records, run folder)": own - sum(clock.spent.values()),
        "wall": time.perf_counter() - wall,
    }


def command(overrides: Sequence[str]) -> float:
    """CPU-seconds of the whole command, from the start of Python to its end."""
    before = children()
    with tempfile.TemporaryDirectory() as folder:
        words = [*overrides, "design.steps=1", f"output_root={folder}"]
        subprocess.run([Path(sys.executable).with_name("llmrl-train"), *words], check=True, stdout=subprocess.DEVNULL)
    return children() - before


def main() -> None:
    overrides = (*DEFAULTS, *sys.argv[1:])
    rows = [principal_step(overrides) for _ in range(ROUNDS)]
    medians = {part: statistics.median(row[part] for row in rows) for part in rows[0]}
    wall = medians.pop("wall")
    for part, cpu in medians.items():
        print(f"{part:30} {cpu:6.2f} CPU-s")
    total = statistics.median(sum(row.values()) - row["wall"] for row in rows)
    whole = command(overrides)
    print(
        f"{'one principal step':30} {total:6.2f} CPU-s   {wall:.2f} s wall   {total / PUBLISHED:.2f} of {PUBLISHED:.0f}"
    )
    print(f"{'llmrl-train, the whole command':30} {whole:6.2f} CPU-s   {whole / PUBLISHED:.2f} (target <= 0.33)")


if __name__ == "__main__":
    main()
