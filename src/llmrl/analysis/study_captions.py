"""Captions of the figures of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrl.analysis.scores import AXES
from llmrl.results.study_settings import StudySettings

if TYPE_CHECKING:
    from llmrl.analysis.group_traces import GroupTrace


def _runs_in_words(traces: Sequence[GroupTrace]) -> str:
    counts = sorted({len(trace.scores) for trace in traces})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else "no"
    pretrained = max((trace.pretrainings for trace in traces), default=0)
    return f"mean over {runs} runs a group" + (f" on {pretrained} pre-training runs" if pretrained else "")


def figure_caption(settings: StudySettings, traces: Sequence[GroupTrace], has_references: bool, unit: str) -> str:
    """Return the caption of the main figure of a study.

    Args:
        settings: settings of the study.
        traces: its groups.
        has_references: whether the figure shows levels that were measured before the runs.
        unit: name of the score.
    """
    anytime = any(trace.anytime is not None for trace in traces)
    parts = [f"{unit}, {_runs_in_words(traces)}"]
    if any(trace.online_score is not None for trace in traces):
        score_text = "recommendation"
    else:
        score_text = "result" if settings.tail_fraction is None else f"mean of the last {settings.tail_fraction:.0%}"
    dots = f"each run's {score_text}, as a dot, and their mean with its 95% interval"
    curves = [trace.anytime if anytime else trace.curve for trace in traces]
    max_x = max((float(curve.places[-1]) for curve in curves if curve is not None), default=None)
    if anytime:
        errors = [trace.evaluation_error for trace in traces if math.isfinite(trace.evaluation_error)]
        error = f" (standard error of one at most {max(errors):.2g})" if errors else ""
        parts.append(
            f"Left, value of the recommendation from the first n measurements of a run alone{error}, with 95% bands; "
            f"right, {dots}"
        )
    elif max_x is not None:
        parts.append(f"Left, {_online_words(settings, traces, max_x)}; right, {dots}")
    else:
        parts.append(dots[:1].upper() + dots[1:])
    if has_references:
        parts.append("Level lines were measured before the runs")
    return ". ".join(parts) + "."


def _online_words(settings: StudySettings, traces: Sequence[GroupTrace], max_x: float) -> str:
    pretrained = any(trace.pretrainings for trace in traces)
    smooth = f", each point the mean of {settings.smooth} values of a run" if settings.smooth > 1 else ""
    unit_text = "pre-training runs" if pretrained else "runs"
    prefix = "the objective of proposals, " if any(trace.online_score is not None for trace in traces) else ""
    return f"{prefix}over {max_x:,.0f} {AXES[settings.x_axis][1]}{smooth}, with 95% bands over {unit_text}"


def online_figure_caption(settings: StudySettings, traces: Sequence[GroupTrace], unit: str) -> str:
    """Return the caption of the figure of online performance."""
    max_x = max((float(trace.curve.places[-1]) for trace in traces if trace.curve is not None), default=0.0)
    return (
        f"Online performance: {unit}, {_runs_in_words(traces)}. Left, {_online_words(settings, traces, max_x)}; "
        "right, mean of the last fifth of each run's proposals, as a dot, and their mean with its 95% interval."
    )
