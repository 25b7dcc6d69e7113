"""Extraction and payoff of learning citizens, from runs of studies/learning_citizens in the fishery.

    python benchmarks/learning_citizens.py outputs/learning_citizens/*/s[0-9] --data FILE

The payoff is the result of the run: the total harvest of all players in an episode with the recommended taxes, on new
seeds. Over-usage is the share of harvests above the sustainable harvest, and survival is the share of episodes in which
fish remain; both are means over the validation episodes of the proposals with the recommended taxes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from run_tables import tabulate_runs

from llmrl.run.metrics import read_metrics

TAXES = ("harvest_tax", "excess_tax")


def read_run(folder: Path) -> dict[str, Any]:
    """Return the row of a run: payoff, over-usage, survival and taxes, by column."""
    recommendation = read_metrics(folder / "metrics.jsonl", "recommendation")[-1]
    taxes = {name: recommendation[f"recommendation/{name}"] for name in TAXES}
    rows = [
        row
        for row in read_metrics(folder / "metrics.jsonl", "proposal")
        if all(abs(row[f"principal/{name}"] - tax) < 1e-6 for name, tax in taxes.items())
    ]
    means = {name: np.mean([row[f"validation/{name}"] for row in rows]) for name in ("over_usage", "survived")}
    return {
        "group": folder.parent.name.partition("-")[0],
        "seed": int(folder.name.removeprefix("s")),
        "payoff": round(recommendation["recommendation/objective"], 2),
        **{name: round(float(mean), 3) for name, mean in means.items()},
        **{name: round(tax, 2) for name, tax in taxes.items()},
    }


if __name__ == "__main__":
    tabulate_runs(__doc__, read_run)
