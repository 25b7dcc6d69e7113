"""Composition of configs and execution of experiments in the test process, as in `llmrl-train`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path


def compose(*overrides: str, primary: str = "train") -> dict:
    """Return the resolved config of `llmrl-<primary> <overrides>`.

    Reference measurements, which take longer than a small run, are disabled by default.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from llmrl.config.permissions import with_permissions

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        short = ["design.references=0"] if primary == "train" else []
        config = hydra_compose(primary, overrides=[*short, *overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        return with_permissions(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def list_search_overrides(env: str, treatment: str = "none") -> tuple[str, ...]:
    """Return the overrides of a shipped policy search experiment in an environment."""
    if env == "cliff_walking":
        return ("experiment=search/cliff_walking", f"treatment={treatment}")
    study = "table" if env in ("frozen_lake", "maze", "nim") else "linear"
    return (f"experiment=search/{study}", f"env={env}", f"treatment={treatment}")


def run(*overrides: str) -> float | None:
    """Run an experiment in this process and return its result."""
    return run_experiment(compose(*overrides), list(overrides))


def run_experiment(config: dict, overrides: Sequence[str]) -> float | None:
    """Run the experiment of a resolved config in this process and return its result."""
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.run_job import run_and_print

    return run_and_print(Experiment(config, overrides))


def find_run_folder(root: Path) -> Path:
    (folder,) = {path.parent for path in root.rglob("config.yaml") if "backup" not in str(path)}
    return folder


def load_comparable_metrics(folder: Path, kind: str | None = None) -> list[dict]:
    """Return all metrics of a run, or those of one kind, without wall-clock times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if kind in (None, row["kind"])]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def compute_log_position(path: Path) -> dict:
    """Return the position that a checkpoint stores for the end of `metrics.jsonl` (`MetricLog.position`)."""
    from llmrl.run.metrics import drop_nondeterministic_metrics

    data = path.read_bytes()
    return {"lines": data.count(b"\n"), "sha256": hashlib.sha256(drop_nondeterministic_metrics(data)).hexdigest()}


def are_rows_close(first: list[dict], second: list[dict], rel: float, abs: float = 1e-6) -> bool:
    """Return whether rows are equal: numbers within a tolerance, strings exactly."""
    import math

    def close(a, b) -> bool:
        return a == b if isinstance(a, str) else math.isclose(a, b, rel_tol=rel, abs_tol=abs)

    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(close(a[name], b[name]) for name in a) for a, b in zip(first, second, strict=True)
    )


def silence_process() -> None:
    """Discard the output of this process and limit torch to one thread."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    import torch

    torch.set_num_threads(1)


def run_silently(*overrides: str) -> None:
    """Run an experiment in a child process whose output is discarded."""
    silence_process()
    run(*overrides)
