"""Which study a task's runs are, and what they show."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.analysis.group_comparison import groups_compared
from llmrl.analysis.groups import Group, ReportTask
from llmrl.analysis.landscape import landscape
from llmrl.analysis.reference_lines import ReferenceLine
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.study_settings import StudyResult, StudySettings, names_of, settings_of


def study_of(
    task: ReportTask,
    finished: Sequence[tuple[Group, Sequence[RunRecord]]],
    references: Sequence[ReferenceLine],
    width: int | None = None,
    settings: StudySettings | None = None,
) -> StudyResult | None:
    """Return what a task's runs show; None if they are no study, or none is finished.

    Args:
        task: the groups.
        finished: each with its finished runs.
        references: levels that were measured before the runs.
        width: frames of a bin, of metrics of training episodes.
        settings: how it is shown; None: as the newest run says.

    Raises:
        RunFolderError: the settings, or a run, cannot be read.
    """
    runs = [run for _, each in finished for run in each]
    settings = settings or settings_of(runs)
    if settings is None or not runs:
        return None
    if settings.map is not None:
        return landscape(settings, runs)
    return groups_compared(settings, names_of(task), finished, references, width)
