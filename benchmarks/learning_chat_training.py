"""Training of the chat models of studies/learning_chat: episodes, replies and time of each run.

    python benchmarks/learning_chat_training.py outputs/learning_chat*/*/s[0-9] --data FILE

Columns that end in `before` describe the first update, whose replies come from the untrained model. Those that end in
`after` are means of the last `LAST` updates. `evaluation` is the mean return of the last evaluation; replies are
sampled there as in training. Entropy is in nats per reply. Seconds are elapsed ones, and comparable only between runs
on equally loaded machines.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

LAST = 5
COLUMNS = (
    "env",
    "group",
    "seed",
    "updates",
    "env_steps",
    "seconds",
    "return_before",
    "evaluation",
    "entropy_before",
    "entropy_after",
    "invalid_before",
    "invalid_after",
)


def training_summary(folder: Path) -> dict[str, Any]:
    """Return the values of a run by `COLUMNS`.

    Args:
        folder: run folder of a finished run.
    """
    from llmrl.run.artifacts import read_config

    config = read_config(folder, ())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    updates = [record for record in records if record["kind"] == "update" and "learn/entropy" in record]
    evaluation = next(record for record in reversed(records) if record["kind"] == "evaluation")

    def first_and_last(metric: str) -> tuple[float, float]:
        series = [update[metric] for update in updates]
        return round(series[0], 4), round(float(np.mean(series[-LAST:])), 4)

    entropy, invalid = first_and_last("learn/entropy"), first_and_last("learn/invalid")
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


def main() -> None:
    """Print the values of runs, and write them to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--data", type=Path, help="CSV file for the values")
    options = parser.parse_args()
    summaries = sorted(map(training_summary, options.runs), key=lambda row: (row["env"], row["group"], row["seed"]))
    for summary in summaries:
        print("  ".join(f"{name} {summary[name]}" for name in COLUMNS))
    if options.data is not None:
        with options.data.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(summaries)


if __name__ == "__main__":
    main()
