"""Adaptation of learning citizens to a tax that is introduced at half time, from runs of studies/citizens_adaptation.

    python benchmarks/citizens_adaptation.py outputs/citizens_adaptation/*/s[0-9] --data FILE

Over-usage is the share of harvests above the sustainable one, which the tax concerns. Levels are means of `LAST`
updates: the last before the first one in which a tax is collected, and the last of the run. The time is the number of
updates after the introduction until the mean of `LAST` updates has covered 90 % of the distance; it is empty if the
levels differ by less than `MIN_CHANGE`.
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
    """Return the values of a run by column."""
    llm = read_config(folder, ()).get("llm")
    chat_group = "chat models, own adapters" if llm and llm["learn"]["adapters"] == "per_player" else "chat models"
    updates = read_metrics(folder / "metrics.jsonl", "update")
    half = next(i for i, row in enumerate(updates) if row["episode/tax_collected"] > 0)
    usage = np.array([row["episode/over_usage"] for row in updates])
    returns = np.array([row["episode/base_return"] for row in updates])
    before, after = usage[half - LAST : half].mean(), usage[-LAST:].mean()
    means = np.convolve(usage[half:], np.ones(LAST) / LAST, mode="valid")
    adapted = np.flatnonzero((means - before) * np.sign(after - before) >= 0.9 * abs(after - before))
    has_changed = abs(after - before) >= MIN_CHANGE and len(adapted) > 0
    diversity = [row["learn/diversity"] for row in updates[-LAST:] if "learn/diversity" in row]
    return {
        "group": chat_group if llm else "PPO",
        "seed": int(folder.name.removeprefix("s")),
        "before": round(float(before), 3),
        "after": round(float(after), 3),
        "updates": int(adapted[0]) + LAST if has_changed else "",
        "return_before": round(float(returns[half - LAST : half].mean()), 2),
        "return_after": round(float(returns[-LAST:].mean()), 2),
        "diversity": round(float(np.mean(diversity)), 3) if diversity else "",
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
