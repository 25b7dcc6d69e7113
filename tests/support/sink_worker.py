"""Program that executes a run with a metric sink: `sink_worker.py <root> <config of the sink> <mode>`.

In the mode `killed` the process exits without closing the sink, after rows that no checkpoint covers. In the mode
`finishes` it resumes the run and finishes it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from llmrl.core.privacy import create_files_privately
from llmrl.experiment.resources import RunResources
from llmrl.run.metrics import MetricLog
from llmrl.run.run import Run

KEY = "sk-abcdefghij0123456789ABCDEFGHIJ"
CONFIG = {"env": {"_target_": "toy", "n_envs": 4}, "agent": {"lr": 0.1, "sizes": [8, 8]}, "none": None}
OVERRIDES = ["agent.lr=0.1", "env=toy"]
ROWS_AT_CHECKPOINT, ROWS_AT_KILL, ALL = 6, 9, 12


def log_rows(metrics: MetricLog, numbers: range) -> None:
    for number in numbers:
        if number % 3 == 2:
            metrics.log("evaluation", "updates", {"evaluation/return": 2.0 * number}, updates=number)
        else:
            scalars = {"loss/value": 0.5 * number, "odd (tag)": float("nan")}
            metrics.log("update", "env_steps", scalars, env_steps=10 * number, updates=number)


def write_video(folder: Path) -> Path:
    path = folder / "episodes" / "7" / "episode.gif"
    path.parent.mkdir(parents=True, exist_ok=True)
    iio.imwrite(path, np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8), loop=0)
    return path


def main() -> None:
    root, node, mode = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    name = node["_target_"].rpartition(".")[2].lower()
    sinks = RunResources({"trusted_modules": [], "loggers": {name: node}}).sinks
    with (
        create_files_privately(True),
        Run.open(root, "game", {**CONFIG, "rerun": mode == "anew"}, OVERRIDES, 3, make_sinks=lambda: sinks) as run,
    ):
        video = write_video(run.folder)
        run.metrics.attach_text("llm/exchange", lambda line: f"*key* {KEY}" if line["updates"] % 6 == 0 else None)
        run.metrics.attach_pictures("episode/video", lambda line: [video] if line["updates"] == 3 else [])
        if mode == "killed":
            log_rows(run.metrics, range(ROWS_AT_CHECKPOINT))
            run.checkpoint(ROWS_AT_CHECKPOINT, {})
            log_rows(run.metrics, range(ROWS_AT_CHECKPOINT, ROWS_AT_KILL))
            guards = run.metrics._sinks._guarded_sinks
            while any(guard.n_delivered_rows < ROWS_AT_KILL and not guard.error for guard in guards):
                time.sleep(0.01)
            time.sleep(0.3)  # text and pictures of the last rows
            os._exit(9)
        log_rows(run.metrics, range(run.iteration, ALL))
        run.checkpoint(ALL, {})
        run.result, run.summary = 2.5, {"worst": 0.25, "note": f"found {KEY}", "best": {"a": 1.0}}


if __name__ == "__main__":
    main()
