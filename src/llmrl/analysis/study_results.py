"""Results of the study that the runs of a task belong to."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.analysis.group_comparison import compare_groups
from llmrl.analysis.landscape import landscape
from llmrl.results.groups import Group, ReportTask
from llmrl.results.reference_lines import ReferenceLine
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudyResult, StudySettings, read_settings, short_group_names


def analyze_study(
    task: ReportTask,
    finished: Sequence[tuple[Group, Sequence[RunRecord]]],
    references: Sequence[ReferenceLine],
    width: int | None = None,
    settings: StudySettings | None = None,
) -> StudyResult | None:
    """Return the result of the study of a task; None if its runs are no study, or none is finished.

    Args:
        task: task with its groups.
        finished: each group with its finished runs.
        references: levels that were measured before the runs.
        width: bin width of metrics of training episodes, frames.
        settings: settings of the study; None: those of the newest run.

    Raises:
        RunFolderError: the settings, or a run, cannot be read.
    """
    runs = [run for _, group_runs in finished for run in group_runs]
    settings = settings or read_settings(runs)
    if settings is None or not runs:
        return None
    if settings.map is not None:
        return landscape(settings, runs)
    return compare_groups(settings, short_group_names(task), finished, references, width)
