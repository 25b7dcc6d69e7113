"""Training statistics of the chat models of studies/learning_chat: episodes, replies and duration of each run.

    python benchmarks/learning_chat_training.py outputs/learning_chat*/*/s[0-9] --data FILE

Columns that end in `before` describe the first update, whose replies are sampled from the untrained model. Columns that
end in `after` are means over the last `LAST` updates. `evaluation` is the mean return of the last evaluation, in which
replies are sampled as in training. Entropy is in nats per reply. `seconds` is wall-clock time, which is comparable only
between runs on equally loaded machines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from run_tables import tabulate_runs

from llmrl.run.artifacts import read_config
from llmrl.run.metrics import read_metrics

LAST = 5


def read_run(folder: Path) -> dict[str, Any]:
    """Return the row of a run: its settings and training statistics, by column."""
    config, metrics_path = read_config(folder, ()), folder / "metrics.jsonl"
    updates = [update for update in read_metrics(metrics_path, "update") if "learn/entropy" in update]
    evaluation = read_metrics(metrics_path, "evaluation")[-1]

    def get_first_and_last(metric: str) -> tuple[float, float]:
        series = [update[metric] for update in updates]
        return round(series[0], 4), round(float(np.mean(series[-LAST:])), 4)

    entropy, invalid = get_first_and_last("learn/entropy"), get_first_and_last("learn/invalid")
    return {
        "env": config["env"]["id"],
        "group": config["llm"]["learn"]["advantage"],
        "seed": config["seed"],
        "updates": evaluation["updates"],
        "env_steps": evaluation["env_steps"],
        "seconds": round(evaluation["time/elapsed_s"]),
        "return_before": round(updates[0]["episode/base_return"], 4),
        "evaluation": round(evaluation["evaluation/base_return"], 4),
        "entropy_before": entropy[0],
        "entropy_after": entropy[1],
        "invalid_before": invalid[0],
        "invalid_after": invalid[1],
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
