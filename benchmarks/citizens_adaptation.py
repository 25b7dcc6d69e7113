"""Adaptation of learning citizens to a tax introduced during learning, from runs of studies/citizens_adaptation.

    python benchmarks/citizens_adaptation.py outputs/citizens_adaptation/*/s[0-9] --data FILE

Over-usage is the share of harvests above the sustainable harvest, to which the tax applies. Levels are means over
`LAST` updates: those before a tax is first collected, and the last updates of the run. `updates` is the number of
updates after the introduction until the moving mean over `LAST` updates has covered 90 % of the difference; it is empty
if the levels differ by less than `MIN_CHANGE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from run_tables import tabulate_runs

from llmrl.run.artifacts import read_config
from llmrl.run.metrics import read_metrics

LAST = 5
MIN_CHANGE = 0.05


def read_run(folder: Path) -> dict[str, Any]:
    """Return the row of a run: levels of over-usage and returns, and the adaptation time, by column."""
    llm = read_config(folder, ()).get("llm")
    per_player = llm is not None and llm["learn"]["adapters"] == "per_player"
    chat_group = "chat models, adapters per player" if per_player else "chat models"
    updates = read_metrics(folder / "metrics.jsonl", "update")
    tax_start = next(i for i, row in enumerate(updates) if row["episode/tax_collected"] > 0)
    usage = np.array([row["episode/over_usage"] for row in updates])
    returns = np.array([row["episode/base_return"] for row in updates])
    level_before, level_after = usage[tax_start - LAST : tax_start].mean(), usage[-LAST:].mean()
    means = np.convolve(usage[tax_start:], np.ones(LAST) / LAST, mode="valid")
    change = level_after - level_before
    adapted_indices = np.flatnonzero((means - level_before) * np.sign(change) >= 0.9 * abs(change))
    has_changed = abs(change) >= MIN_CHANGE and len(adapted_indices) > 0
    diversity = [row["learn/diversity"] for row in updates[-LAST:] if "learn/diversity" in row]
    return {
        "group": chat_group if llm else "PPO",
        "seed": int(folder.name.removeprefix("s")),
        "before": round(float(level_before), 3),
        "after": round(float(level_after), 3),
        "updates": int(adapted_indices[0]) + LAST if has_changed else "",
        "return_before": round(float(returns[tax_start - LAST : tax_start].mean()), 2),
        "return_after": round(float(returns[-LAST:].mean()), 2),
        "diversity": round(float(np.mean(diversity)), 3) if diversity else "",
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
