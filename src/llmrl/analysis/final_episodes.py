"""Comparison of the final episodes of runs: players that do not learn, and players that were trained."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrl.analysis.groups import ALONE, Group, ReportTask
from llmrl.analysis.resampling_levels import clusters_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import standard_error
from llmrl.analysis.table_format import NOTHING, ReportTable
from llmrl.core.plain_data import fitting, parse_record, read_object
from llmrl.run.artifacts import RESULTS_NAME

log = logging.getLogger(__name__)

SHOWN = {
    "success": "success",
    "progress": "progress",
    "return": "return",
    "length": "steps",
    "tokens": "tokens",
    "cost": "cost, $",
    "invalid_rate": "invalid replies",
}
"""Measures of which means over episodes are shown, with standard errors, and their display names."""


@dataclass(frozen=True)
class _Results:
    """The content of a `results.json` as far as it is read; of `per_episode`, only the keys of `SHOWN`."""

    per_episode: dict[str, Any]
    learned: bool
    carried: list[str]
    episodes: int


@dataclass(frozen=True)
class FinalEpisodes:
    """The final episodes of one group.

    Attributes:
        task, group: title of the task, and the group.
        runs, episodes: number of runs and of their episodes.
        learned: whether the episodes of a run share an agent that was trained in it.
        carried: what is carried from one episode of a run to the next, such as lessons; episodes are then dependent.
        means, errors: mean and standard error of each of `SHOWN` that all runs have. Errors are over runs if these
            learned or carried something, else over episodes; NaN if unknown.
        alone: name for the only group of a task, whose label says nothing.
    """

    task: str
    group: Group
    runs: int
    episodes: int
    learned: bool
    carried: tuple[str, ...] = ()
    means: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    alone: str = ""

    @property
    def name(self) -> str:
        """The group's label; for the only group of a task `alone`, if that is set."""
        return self.alone if self.group.label == ALONE and self.alone else self.group.label


def played_by(task: ReportTask, group: Group, runs: Sequence[RunRecord]) -> FinalEpisodes | None:
    """Return the final episodes of the finished `runs` of a group; None if no run has recorded any."""
    found = [(run, result) for run in runs if (result := _read(run)) is not None]
    if not found:
        return None
    written, results = [run for run, _ in found], [result for _, result in found]
    learned = any(result["learned"] for result in results)
    carried = tuple(sorted({each for result in results for each in result["carried"]}))
    means, errors = {}, {}
    for name in SHOWN:
        parts = [np.asarray(result["per_episode"].get(name, []), dtype=np.float64) for result in results]
        if not all(len(part) for part in parts):
            continue
        over_runs = learned or carried
        scores = np.array([part.mean() for part in parts]) if over_runs else np.concatenate(parts)
        error = standard_error(scores, clusters_of(written) if over_runs else None)
        means[name], errors[name] = float(np.concatenate(parts).mean()), float(error)
    typed = [f"{key}={task.common[key]}" for key in ("agent", "principal", "teacher") if key in task.common]
    about = results[0].get("agent")
    alone = ", ".join(typed) or (str(about.get("policy", "")) if isinstance(about, dict) else "")
    episodes = sum(int(r["episodes"]) for r in results)
    return FinalEpisodes(task.title, group, len(results), episodes, learned, carried, means, errors, alone)


def players_table(players: Sequence[FinalEpisodes]) -> ReportTable:
    """Return a table with a row for each group of each task: the player, and the means of its final episodes."""
    known = [name for name in SHOWN if any(name in each.means for each in players)]
    # Columns on language models only appear if a player asks one.
    columns = ["task", "player", "language model", "runs", "episodes", *(SHOWN[name] for name in known)]
    rows, data = [], []
    names = _names(players)
    for each, name in zip(players, names, strict=True):
        group = each.group
        rows.append(
            [each.task, name, group.llm or NOTHING, str(each.runs), f"{each.episodes:,}"]
            + [_cell(name, each) for name in known]
        )
        line: list[object] = [each.task, each.name, group.llm, each.runs, each.episodes, each.learned]
        line.append(" ".join(each.carried))
        for name in known:
            line += [each.means.get(name), each.errors.get(name)]
        data.append(line)
    header: list[object] = ["task", "player", "llm", "runs", "episodes", "learned", "carried"]
    header += [column for name in known for column in (name, f"{name}_standard_error")]
    notes = [
        "Means over the final episodes of finished runs, with standard errors: over runs where the player was trained "
        "in them, or one episode is told of others, else over episodes. Tokens are those of prompts and replies."
    ]
    for each, name in zip(players, names, strict=True):
        if each.carried:
            notes.append(
                f"{each.task}, {name}: episodes carry {' and '.join(each.carried)} over to the next ones of the same "
                "game, so they depend on one another and on env.n_envs."
            )
    return ReportTable(
        "players",
        "Who played how well: final episodes",
        [header, *data],
        columns,
        rows,
        3,
        notes=notes,
    )


_GROUPS = ("env", "agent", "principal", "teacher", "llm")
"""Config groups whose options are parts of a player."""


def _names(players: Sequence[FinalEpisodes]) -> list[str]:
    """Return a name for each player: its parts without their fields, or its full label if that is ambiguous."""
    short = []
    for each in players:
        named = [part.partition("=") for part in each.name.split(", ")]
        parts = [f"{key}{sign}{value}" for key, sign, value in named if not sign or key in _GROUPS]
        short.append(each.group.display_name(", ".join(parts)) if parts else each.group.shown)
    seen = Counter((each.task, name) for each, name in zip(players, short, strict=True))
    return [name if seen[each.task, name] == 1 else each.group.shown for each, name in zip(players, short, strict=True)]


def _cell(name: str, each: FinalEpisodes) -> str:
    if name not in each.means:
        return NOTHING
    mean, error = each.means[name], each.errors[name]
    if name in ("success", "invalid_rate"):
        known = "" if math.isnan(error) else f" ± {100 * error:.1f}"
        return f"{100 * mean:.1f}{known} %"
    form = ",.0f" if name == "tokens" else ".4f" if name == "cost" else ".2f" if abs(mean) < 100 else ".1f"
    return f"{mean:{form}}" + ("" if math.isnan(error) else f" ± {error:{form}}")


def _read(run: RunRecord) -> dict[str, Any] | None:
    try:
        content = read_object(run.folder / RESULTS_NAME)
        if "per_episode" not in content or "learned" not in content:
            return None
        parse_record(_Results, content)
        for name in SHOWN.keys() & content["per_episode"].keys():
            fitting(content["per_episode"][name], list[float | None], name)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", run.folder / RESULTS_NAME, error)
        return None
    return content
