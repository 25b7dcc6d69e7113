"""The `Story` of a task: its proposals, tables of societies and teachers, and exchanges with language models."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from itertools import islice

from llmrl.analysis.explorer.episodes import read_episodes
from llmrl.analysis.story.group_tables import build_plans_table, build_society_table, build_teacher_table
from llmrl.analysis.story.proposed import GroupProposals, build_best_table, read_group_proposals
from llmrl.core.errors import RunFolderError
from llmrl.llms.call_log import CALL_LOG_NAME, read_calls
from llmrl.results.groups import FinishedGroups, ReportTask
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import shorten_group_names
from llmrl.results.table_format import ReportTable

log = logging.getLogger(__name__)

MAX_CHARACTERS = 900
"""Maximum number of characters of a prompt or reply; longer texts are truncated."""


@dataclass(frozen=True)
class Exchange:
    """A prompt and the reply to it.

    Attributes:
        group_name: name of the group.
        source: text with the episode and step of a player's decision, or the number of a principal's call.
        prompt: prompt, truncated at its start.
        reply: reply, truncated at its end.
        action: chosen action; empty for a principal.
        reward: reward of the step; 0 for a principal.
    """

    group_name: str
    source: str
    prompt: str
    reply: str
    action: str = ""
    reward: float = 0.0


def _find_player_exchange(group_name: str, run: RunRecord) -> Exchange | None:
    """Return the exchange of the first decision with a valid reply in a run's first recorded episode."""
    try:
        for episode in islice(read_episodes(run.folder), 1):
            for step, record in ((i, record) for i, records in enumerate(episode["steps"]) for record in records):
                if record.get("calls") and record.get("valid") is not False and "reply" in record:
                    texts, messages = episode["texts"], record["calls"][-1]["messages"]
                    return Exchange(
                        group_name,
                        f"episode {int(episode['episode'])}, step {step}",
                        truncate_start("\n".join(texts[index] for role, index in messages if role != "assistant")),
                        truncate_end(texts[record["reply"]]),
                        str(record.get("action", "")),
                        float(record.get("reward", 0.0) or 0.0),
                    )
    except (RunFolderError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: its episodes cannot be read (%r)", run.folder, error)
    return None


def _find_principal_exchange(group_name: str, run: RunRecord) -> Exchange | None:
    """Return the exchange of the last call of a run's principal with a valid reply."""
    path, exchange = run.folder / CALL_LOG_NAME, None
    for number, call in enumerate(read_calls(path), start=1) if path.exists() else ():
        if call.get("purpose") == "principal" and call.get("valid") is not False and call.get("reply"):
            contents = [message["content"] for message in call.get("messages", ())]
            prompt = "\n".join(content for content in contents if isinstance(content, str))
            exchange = Exchange(group_name, f"principal, call {number}", prompt, str(call["reply"]))
    return exchange and replace(exchange, prompt=truncate_start(exchange.prompt), reply=truncate_end(exchange.reply))


def truncate_end(text: str) -> str:
    """Return a text; if it is longer than `MAX_CHARACTERS`, its first words and a note with its length."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS].rsplit(' ', 1)[0]}\n[{len(text):,} characters in total]"


def truncate_start(text: str) -> str:
    """Return a text; if it is longer than `MAX_CHARACTERS`, its last lines and a note with the omitted length."""
    text = re.sub(r"\n{3,}", "\n\n", text.strip())
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = text[-MAX_CHARACTERS:]
    tail = tail[tail.find("\n") + 1 :] if "\n" in tail else tail[tail.find(" ") + 1 :]
    return f"[{len(text) - len(tail):,} characters before]\n{tail}"


@dataclass(frozen=True)
class Story:
    """Results of a task in addition to its scores; parts that its runs do not have are empty.

    Attributes:
        proposals: proposals of each group.
        tables: tables in the order in which they are shown.
        exchanges: an example of each group whose principal, or players in recorded episodes, use a language model.
    """

    proposals: tuple[GroupProposals, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    exchanges: tuple[Exchange, ...] = ()


def build_story(task: ReportTask, finished: FinishedGroups) -> Story:
    """Return the story of a task.

    Args:
        task: task with its groups.
        finished: each group with its finished runs.

    Raises:
        RunFolderError: the metrics of a run cannot be read.
    """
    short_names = _shorten_group_names(task)
    groups = [(group.format_name(short_names[group.label]), runs) for group, runs in finished]
    proposals = read_group_proposals(groups)
    tables = [build_best_table(proposals)] if proposals else []
    tables += [
        table
        for build_table in (build_society_table, build_teacher_table, build_plans_table)
        if (table := build_table(groups)) is not None
    ]
    exchanges = (
        next(
            (x for run in runs if (x := _find_player_exchange(name, run) or _find_principal_exchange(name, run))), None
        )
        for name, runs in groups
    )
    return Story(proposals, tuple(tables), tuple(exchange for exchange in exchanges if exchange is not None))


def _shorten_group_names(task: ReportTask) -> dict[str, str]:
    """Return a short name of each group by label: the value, such as `ucb`, if groups differ in only one key."""
    keys = {part.partition("=")[0] for group in task.groups for part in group.label.split(", ")} - {"llm"}
    if len(keys) == 1 and all("=" in group.label for group in task.groups):
        return shorten_group_names(task)
    return {group.label: group.label for group in task.groups}
