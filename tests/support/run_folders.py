"""Run folders as runs leave them, without an experiment in them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.llms.scripted import ScriptedChat
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.run import Run

SCRIPTED = ScriptedChat.label


def write_run(
    root: Path,
    name: str,
    overrides: Sequence[str],
    seed: int,
    values: Sequence[float] = (1.0,),
    error: Exception | None = None,
    llm: str = "",
    steps: int = 100,
    shared: dict[str, list[str]] | None = None,
    inside: Sequence[Sequence[float]] | None = None,
    references: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
    history: Sequence[dict[str, Any]] | None = None,
    cost: float | None = None,
    recommendations: Mapping[int, float] | None = None,
    online: float | None = None,
) -> Path:
    """Write the folder of a run that logs `values` as principal/objective every `steps` environment steps.

    Its result is the last one, or the mean of the values `inside` it, society by society; `references` are those of its
    summary, and so are the proposals of its `history`. `report` is that section of its config, and `cost` is the cost
    of its language models. `recommendations` are values of recommendations by number of measurements, of which the last
    is the result, and `online` is the online performance.
    """
    config = {"of": [name, *overrides], **({} if report is None else {"report": report})}
    run = Run.open(root, name, config, [*overrides, f"seed={seed}"], seed)
    with contextlib.suppress(type(error) if error is not None else ()), run:
        run.status.llm = llm
        run.status.shared = shared or {}
        for i, value in enumerate(values, start=1):
            metrics = {"principal/objective": value, "other": 2 * value}
            metrics |= {} if cost is None else {"usage/llm_cost": cost}
            run.metrics.log("proposal", "proposals", metrics, proposals=4 * i, principal_steps=i, env_steps=i * steps)
        if error is not None:
            raise error
        run.result = values[-1]
        if recommendations is not None:
            for n, value in recommendations.items():
                metrics = {"recommendation/objective": value, "recommendation/standard_error": 0.5}
                run.metrics.log("recommendation", "measurements", metrics, measurements=n)
            run.result = list(recommendations.values())[-1]
            run.summary = {"recommendation": run.result, "online_performance": online}
        if inside is not None:
            run.result = float(np.mean([np.mean(society) for society in inside]))
            run.summary = {**run.summary, RESULT_EPISODES: [list(society) for society in inside]}
        if references is not None:
            run.summary = {**run.summary, "references": references}
        if history is not None:
            run.summary = {**run.summary, "history": list(history)}
    return run.folder


def write_calls(run: Path, model: str, costs: Sequence[float | None]) -> None:
    """Return the call log of a run, each reply paid for with the given price."""
    call = {"model": model, "cached": False, "prompt_tokens": 10, "completion_tokens": 3, "valid": True}
    text = "".join(json.dumps({**call, "cost": cost}) + "\n" for cost in costs)
    (run / "llm_calls.jsonl").write_text(text)
