"""Performance of learning proposers of policies, from runs of studies/learning_proposer and of llmrl-finetune.

    python benchmarks/learning_proposers.py outputs/learning_proposer*/*/s[0-9] --data FILE

Returns are means over valid proposals: for searches, of the first iteration and of the last `LAST` iterations; for
fine-tuning, of the proposals for held-out prompts before and after training. `best` is the mean return of the selected
policy in new episodes; fine-tuning does not select a policy. `proposals` is the number of proposals that were evaluated
for training, without the trials in the prompts of fine-tuning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from run_tables import tabulate_runs

from llmrl.run.artifacts import read_config
from llmrl.run.metrics import read_metrics
from llmrl.run.proposals import read_proposal_lines

LAST = 10


def read_run(folder: Path) -> dict[str, Any]:
    """Return the row of a run: its settings and performance, by column."""
    config = read_config(folder, ())
    return _read_finetuning(folder, config) if "method" in config else _read_search(folder, config)


def _read_search(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    proposals = read_proposal_lines(folder)
    updates = read_metrics(folder / "metrics.jsonl", "proposal")
    n = config["search"]["candidates"]

    def compute_mean_return(rows: list[dict[str, Any]]) -> float:
        return round(float(np.mean([row["return"] for row in rows if not row.get("fallback")])), 2)

    def compute_invalid_share(rows: list[dict[str, Any]]) -> float:
        return round(float(np.mean([row.get("learn/invalid", 0.0) for row in rows])), 4)

    learner = (config.get("llm") or {}).get("learn") or {}
    return {
        "group": {"full": "llm/learn", "lora": "llm/learn, adapter"}.get(learner.get("tune"), "random search"),
        "seed": config["seed"],
        "proposals": len(proposals),
        "return_before": compute_mean_return(proposals[:n]),
        "return_after": compute_mean_return(proposals[-n * LAST :]),
        "invalid_before": compute_invalid_share(updates[:1]),
        "invalid_after": compute_invalid_share(updates[-LAST:]),
        "best": read_metrics(folder / "metrics.jsonl", "evaluation")[-1]["search/incumbent_return"],
    }


def _read_finetuning(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    results = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["held_out"]
    method = config["method"]
    return {
        "group": "llmrl-finetune",
        "seed": config["seed"],
        "proposals": method["optimizer"]["steps"] * method["prompts"] * method["samples"] // method["updates"],
        "return_before": round(results["before"]["return"]["mean"], 2),
        "return_after": round(results["after"]["return"]["mean"], 2),
        "invalid_before": round(1 - results["before"]["valid_rate"]["mean"], 4),
        "invalid_after": round(1 - results["after"]["valid_rate"]["mean"], 4),
        "best": "",
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
