"""Run folders for tests, written without an experiment."""

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
    """Write the folder of a run and return it.

    Args:
        root: output folder.
        name: name of the experiment.
        overrides: overrides of the run without the seed.
        seed: seed of the run.
        values: values of principal/objective, logged every `steps` environment steps; the last one is the result.
        error: exception that ends the run; None for a finished run.
        llm: label of the language model in the status.
        steps: environment steps between logged values.
        shared: shared files in the status.
        inside: values of the result's episodes by society, whose mean is the result.
        references: references in the summary.
        report: section `report` of the config.
        history: proposals in the summary.
        cost: cost of language models.
        recommendations: values of recommendations by number of measurements; the last one is the result.
        online: online performance in the summary.
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
    """Write the call log of a run with one reply for each of `costs`."""
    call = {"model": model, "cached": False, "prompt_tokens": 10, "completion_tokens": 3, "valid": True}
    text = "".join(json.dumps({**call, "cost": cost}) + "\n" for cost in costs)
    (run / "llm_calls.jsonl").write_text(text)
