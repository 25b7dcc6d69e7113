"""Comparison of the final episodes of runs, in which agents play that do not learn or have finished learning."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrl.core.plain_data import parse_record, parse_value, read_json_object
from llmrl.results.groups import SINGLE_GROUP_LABEL, Group, ReportTask, find_replication_units
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import EMPTY_CELL, ReportTable
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.statistics.estimators import standard_error

log = logging.getLogger(__name__)

MEASURE_TITLES = {
    "success": "success",
    "progress": "progress",
    "return": "return",
    "length": "steps",
    "tokens": "tokens",
    "cost": "cost, $",
    "invalid_rate": "invalid replies",
}
"""Key of a measure of an episode in `results.json` -> title of its column."""


@dataclass(frozen=True)
class _ResultsFile:
    """Keys of `results.json` that are read, with types; of `per_episode` only the keys of `MEASURE_TITLES` are read."""

    per_episode: dict[str, Any]
    learned: bool
    carried: list[str]
    episodes: int


@dataclass(frozen=True)
class FinalEpisodes:
    """The final episodes of one group.

    Attributes:
        task: title of the task.
        group: group of runs.
        n_runs: number of runs with final episodes.
        n_episodes: number of final episodes of all runs.
        is_trained: whether the agent of a final episode was trained in its run.
        carried_states: names of states that agents keep from one episode of a run to the next, such as lessons.
        means, errors: mean over episodes, and its standard error, of each of `MEASURE_TITLES` that all runs have. The
            error is over runs if `is_trained` or `carried_states`, because episodes of a run are then dependent, else
            over episodes; NaN if it is unknown.
        default_name: name to use if the group is the only one of its task, because its label is then not informative.
    """

    task: str
    group: Group
    n_runs: int
    n_episodes: int
    is_trained: bool
    carried_states: tuple[str, ...] = ()
    means: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    default_name: str = ""

    @property
    def name(self) -> str:
        """Label of the group, or `default_name` if it is set and the group is the only one of its task."""
        return self.default_name if self.group.label == SINGLE_GROUP_LABEL and self.default_name else self.group.label


def summarize_final_episodes(task: ReportTask, group: Group, runs: Sequence[RunRecord]) -> FinalEpisodes | None:
    """Return the final episodes of the finished `runs` of a group; None if no run has recorded any."""
    results_by_run = {run.folder: result for run in runs if (result := _read_results(run)) is not None}
    if not results_by_run:
        return None
    runs_with_episodes = [run for run in runs if run.folder in results_by_run]
    results = list(results_by_run.values())
    is_trained = any(result["learned"] for result in results)
    carried_states = tuple(sorted({name for result in results for name in result["carried"]}))
    means, errors = {}, {}
    for name in MEASURE_TITLES:
        values_by_run = [np.asarray(result["per_episode"].get(name, []), dtype=np.float64) for result in results]
        if not all(len(values) for values in values_by_run):
            continue
        is_per_run = is_trained or carried_states
        scores = np.array([values.mean() for values in values_by_run]) if is_per_run else np.concatenate(values_by_run)
        error = standard_error(scores, find_replication_units(runs_with_episodes) if is_per_run else None)
        means[name], errors[name] = float(np.concatenate(values_by_run).mean()), float(error)
    common = task.common_overrides
    player_options = [f"{key}={common[key]}" for key in ("agent", "principal", "teacher") if key in common]
    agent = results[0].get("agent")
    default_name = ", ".join(player_options) or (str(agent.get("policy", "")) if isinstance(agent, dict) else "")
    n_episodes = sum(int(result["episodes"]) for result in results)
    return FinalEpisodes(
        task.title, group, len(results), n_episodes, is_trained, carried_states, means, errors, default_name
    )


def build_players_table(players: Sequence[FinalEpisodes]) -> ReportTable:
    """Return a table with a row for each group of each task: the player, and the means over its final episodes."""
    measures = [name for name in MEASURE_TITLES if any(name in player.means for player in players)]
    has_models = any(player.group.llm for player in players)
    columns = ["task", "player", *(["language model"] if has_models else []), "runs", "episodes"]
    columns += [MEASURE_TITLES[name] for name in measures]
    rows, csv_rows = [], []
    names = _shorten_player_names(players)
    for player, name in zip(players, names, strict=True):
        group = player.group
        cells = [player.task, name, *([group.llm or EMPTY_CELL] if has_models else []), str(player.n_runs)]
        rows.append([*cells, f"{player.n_episodes:,}", *(_format_measure(name, player) for name in measures)])
        csv_row: list[object] = [player.task, player.name, group.llm, player.n_runs, player.n_episodes]
        csv_row += [player.is_trained, " ".join(player.carried_states)]
        for measure in measures:
            csv_row += [player.means.get(measure), player.errors.get(measure)]
        csv_rows.append(csv_row)
    header: list[object] = ["task", "player", "llm", "runs", "episodes", "learned", "carried"]
    header += [column for name in measures for column in (name, f"{name}_standard_error")]
    notes = [
        "Means over the final episodes of finished runs, with standard errors: over runs if the player was trained in "
        "them or carries a state between episodes, else over episodes. Tokens are those of prompts and replies."
    ]
    notes += [
        f"{player.task}, {name}: the player carries {' and '.join(player.carried_states)} to the next episode of the "
        "same game, so episodes depend on each other and on env.n_envs."
        for player, name in zip(players, names, strict=True)
        if player.carried_states
    ]
    return ReportTable(
        "players",
        "Final episodes of each player",
        [header, *csv_rows],
        columns,
        rows,
        n_text_columns=3 if has_models else 2,
        notes=notes,
    )


_PLAYER_KEYS = ("env", "agent", "principal", "teacher", "llm")
"""Config groups whose options are parts of a player."""


def _shorten_player_names(players: Sequence[FinalEpisodes]) -> list[str]:
    """Return a name for each player: only the options of `_PLAYER_KEYS`, or the full label if these are ambiguous."""
    short_names = []
    for player in players:
        options = [part.partition("=") for part in player.name.split(", ")]
        parts = [f"{key}{sign}{value}" for key, sign, value in options if not sign or key in _PLAYER_KEYS]
        short_names.append(player.group.format_name(", ".join(parts)) if parts else player.group.display_name)
    counts = Counter((player.task, name) for player, name in zip(players, short_names, strict=True))
    return [
        name if counts[player.task, name] == 1 else player.group.display_name
        for player, name in zip(players, short_names, strict=True)
    ]


def _format_measure(name: str, player: FinalEpisodes) -> str:
    if name not in player.means:
        return EMPTY_CELL
    mean, error = player.means[name], player.errors[name]
    if name in ("success", "invalid_rate"):
        error_text = "" if math.isnan(error) else f" ± {100 * error:.1f}"
        return f"{100 * mean:.1f}{error_text} %"
    format_spec = ",.0f" if name == "tokens" else ".4f" if name == "cost" else ".2f" if abs(mean) < 100 else ".1f"
    return f"{mean:{format_spec}}" + ("" if math.isnan(error) else f" ± {error:{format_spec}}")


def _read_results(run: RunRecord) -> dict[str, Any] | None:
    try:
        content = read_json_object(run.folder / RESULTS_NAME)
        if "per_episode" not in content or "learned" not in content:
            return None
        parse_record(_ResultsFile, content)
        for name in MEASURE_TITLES.keys() & content["per_episode"].keys():
            parse_value(content["per_episode"][name], list[float | None], name)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", run.folder / RESULTS_NAME, error)
        return None
    return content
