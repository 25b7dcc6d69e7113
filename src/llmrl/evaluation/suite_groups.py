"""Results of several runs in a suite: the seeds of an experiment are combined, experiments are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.results.groups import tasks_of
from llmrl.results.replication import units_of
from llmrl.results.run_records import RunRecord, read_run
from llmrl.statistics.intervals import MINIMUM_UNITS, describe

Results = Mapping[str, Any]
STUDENT = "student"
"""Player of a single experiment; with several experiments, the player of each run that its experiment averages."""
_INTERVALS = (
    f"95%; of several runs Student t over the runs, or over their pre-training runs, none below {MINIMUM_UNITS}; of "
    "one agent's episodes Wilson, and of the mean over kinds Zou and Donner"
)


def experiments(runs: Sequence[Path]) -> dict[str, list[RunRecord]]:
    """Return the records of each experiment's runs by its label in reports; a single one has the label `STUDENT`.

    Raises:
        ConfigError: a run is given twice, or two experiments have one label.
    """
    tasks = tasks_of([read_run(run) for run in runs], Path(), by_name=False)
    groups = [
        (group.label if len(tasks) == 1 else f"{task.title}, {group.label}", list(group.runs))
        for task in tasks
        for group in task.groups
    ]
    for label, members in groups:
        if len({run.folder for run in members}) < len(members) or [name for name, _ in groups].count(label) > 1:
            raise ConfigError(f"{members[0].folder} is the same experiment with the same seed as another run; give one")
    return {STUDENT: groups[0][1]} if len(groups) == 1 else dict(groups)


def merge_suite_results(results: Sequence[Results], groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, Any]:
    """Return the results of several runs as one, with each experiment as a player.

    Experiments have the means over their runs and 95% t intervals; an experiment with a single run has that run's
    results.

    Args:
        results: results of each run, with the same tests. Players other than the student are those of the first run.
        groups: records of each experiment's runs (`experiments`). A test that one run could not play has no results for
            its experiment.
    """
    first = results[0]
    results_of = {Path(result["runs"][0]).absolute(): result for result in results}
    members = {label: [results_of[run.folder] for run in runs] for label, runs in groups.items()}
    other_players = [name for name in first["players"] if name != STUDENT]
    tests = []
    for k, test in enumerate(first["tests"]):
        refused: dict[str, str] = {}
        players: dict[str, Any] = {}
        for label, group_results in members.items():
            run_tests = [result["tests"][k] for result in group_results]
            refusals = [run_test["refused"][STUDENT] for run_test in run_tests if STUDENT in run_test["refused"]]
            players[label] = None
            if refusals:
                refused[label] = refusals[0]
            else:
                players[label] = _average_runs([x["players"][STUDENT] for x in run_tests], units_of(groups[label]))
        for name in other_players:
            players[name] = test["players"][name]
            if name in test["refused"]:
                refused[name] = test["refused"][name]
        is_same_env = all(result["tests"][k]["env"] == test["env"] for result in results)
        tests.append({**test, "env": test["env"] if is_same_env else None, "players": players, "refused": refused})
    return {
        **{key: value for key, value in first.items() if key not in ("checkpoint", "llm", "out")},
        "runs": [run for result in results for run in result["runs"]],
        "experiments": {
            label: [{"run": x["runs"][0], "checkpoint": x["checkpoint"], "llm": x["llm"]} for x in group_results]
            for label, group_results in members.items()
        },
        "intervals": _INTERVALS,
        "players": [*groups, *other_players],
        "tests": tests,
    }


def _average_runs(players: Sequence[Results], units: Sequence[object]) -> dict[str, Any]:
    def row(results: Sequence[Results]) -> dict[str, Any]:
        estimate = describe(np.array([result["success"] for result in results]), units=units)
        return {
            "success": estimate["mean"],
            "low": estimate["low"],
            "high": estimate["high"],
            "episodes": sum(result["episodes"] for result in results),
            "per_run": [result["success"] for result in results],
        }

    if len(players) == 1:
        return dict(players[0])
    kinds = {kind: row([player["kinds"][kind] for player in players]) for kind in players[0]["kinds"]}
    return {**row(players), "kinds": kinds, "lacking": players[0]["lacking"]}
