"""The story of a task, in the order in which a reader asks: proposals, society, teachers, players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrl.analysis.groups import Group, ReportTask
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.story.proposed import GroupProposals, best_table, proposals_of
from llmrl.analysis.story.society import society_table
from llmrl.analysis.story.talks import Exchange, StoryVideo, exchanges_of, videos_of
from llmrl.analysis.story.taught import plans_table, teacher_table
from llmrl.analysis.study_settings import names_of
from llmrl.analysis.table_format import ReportTable


@dataclass(frozen=True)
class Story:
    """What the runs of a task tell beside their scores; what they do not tell is empty.

    Attributes:
        proposals: what each group proposed over time.
        tables: in the order in which they are shown.
        exchanges: of players with their language models.
        videos: of agents.
    """

    proposals: tuple[GroupProposals, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    videos: tuple[StoryVideo, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.proposals or self.tables or self.exchanges or self.videos)


def story_of(task: ReportTask, finished: Sequence[tuple[Group, Sequence[RunRecord]]]) -> Story:
    """Return the story of a task.

    Args:
        task: its groups.
        finished: each with its finished runs.

    Raises:
        RunFolderError: the metrics of a run cannot be read.
    """
    names = short_names(task)
    groups = [(group.display_name(names[group.label]), group, runs) for group, runs in finished]
    proposals = proposals_of(groups)
    tables = [best_table(proposals)] if proposals else []
    tables += [
        table for table in (society_table(groups), teacher_table(groups), plans_table(groups)) if table is not None
    ]
    return Story(proposals, tuple(tables), exchanges_of(groups), videos_of(groups))


def short_names(task: ReportTask) -> dict[str, str]:
    """Return a short name of each group by its label: the value alone where one key is compared, such as `ucb`."""
    keys = {part.partition("=")[0] for group in task.groups for part in group.label.split(", ")} - {"llm"}
    if len(keys) == 1 and all("=" in group.label for group in task.groups):
        return names_of(task)
    return {group.label: group.label for group in task.groups}
