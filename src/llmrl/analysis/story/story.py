"""The story of a task: proposals, society, teachers and players, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.analysis.story.proposed import GroupProposals, best_table, read_group_proposals
from llmrl.analysis.story.society import society_table
from llmrl.analysis.story.talks import Exchange, StoryVideo, find_exchanges, find_videos
from llmrl.analysis.story.taught import plans_table, teacher_table
from llmrl.results.groups import FinishedGroups, ReportTask
from llmrl.results.study_settings import short_group_names
from llmrl.results.table_format import ReportTable


@dataclass(frozen=True)
class Story:
    """Results of a task in addition to its scores; parts that its runs do not have are empty.

    Attributes:
        proposals: proposals of each group.
        tables: tables in the order in which they are shown.
        exchanges: prompts to language models with their replies.
        videos: videos of agents.
    """

    proposals: tuple[GroupProposals, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    videos: tuple[StoryVideo, ...] = ()


def build_story(task: ReportTask, finished: FinishedGroups) -> Story:
    """Return the story of a task.

    Args:
        task: task with its groups.
        finished: each group with its finished runs.

    Raises:
        RunFolderError: the metrics of a run cannot be read.
    """
    names = short_names(task)
    groups = [(group.display_name(names[group.label]), group, runs) for group, runs in finished]
    proposals = read_group_proposals(groups)
    tables = [best_table(proposals)] if proposals else []
    tables += [
        table for table in (society_table(groups), teacher_table(groups), plans_table(groups)) if table is not None
    ]
    return Story(proposals, tuple(tables), find_exchanges(groups), find_videos(groups))


def short_names(task: ReportTask) -> dict[str, str]:
    """Return a short name of each group by its label: only the value if one key is compared, such as `ucb`."""
    keys = {part.partition("=")[0] for group in task.groups for part in group.label.split(", ")} - {"llm"}
    if len(keys) == 1 and all("=" in group.label for group in task.groups):
        return short_group_names(task)
    return {group.label: group.label for group in task.groups}
