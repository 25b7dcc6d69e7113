"""Results of several runs in a suite: the seeds of an experiment are combined, experiments are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.results.replication import units_of
from llmrl.results.run_records import read_run
from llmrl.run.config_hash import config_hash
from llmrl.run.folder_names import title
from llmrl.statistics.intervals import MINIMUM_UNITS, describe

Results = Mapping[str, Any]
STUDENT = "student"
"""Player of a single experiment; with several experiments, the player of each run that its experiment averages."""
_LABEL_ORDER = ("agent", "treatment", "experiment", "env")
"""Overrides that name experiments first, in this order."""


def experiments(runs: Sequence[Path], configs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the indices of each experiment's runs by label, in the order of `runs`.

    Configs of an experiment differ only in the seed and in options that cannot change results.

    Raises:
        ConfigError: two runs are of the same experiment and seed.
    """
    indices_by_hash: dict[str, list[int]] = {}
    seeds: dict[tuple[str, Any], Path] = {}
    for i, (run, config) in enumerate(zip(runs, configs, strict=True)):
        group = config_hash(config)
        if (first_run := seeds.setdefault((group, config["seed"]), run)) is not run:
            raise ConfigError(f"{first_run} and {run} are the same experiment with the same seed; give one of them")
        indices_by_hash.setdefault(group, []).append(i)
    members = list(indices_by_hash.values())
    if len(members) == 1:
        return {STUDENT: members[0]}
    return dict(zip(_labels([runs[indices[0]] for indices in members]), members, strict=True))


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return a name for each experiment: the fewest overrides that distinguish them, or else the folder's name."""
    records = [read_run(run) for run in runs]
    overrides = [record.overrides for record in records]
    keys = sorted(
        dict.fromkeys(key for options in overrides for key in options),
        key=lambda key: _LABEL_ORDER.index(key) if key in _LABEL_ORDER else len(_LABEL_ORDER),
    )
    selected: list[str] = []
    n_distinct = 1
    for key in keys:
        kinds = len({tuple(options.get(k) for k in (*selected, key)) for options in overrides})
        if kinds > n_distinct:
            selected, n_distinct = [*selected, key], kinds
    labels = []
    for options in overrides:
        label_keys = [key for key in selected if key in options] or [key for key in options if "." not in key]
        labels.append(", ".join(_label_part(key, options[key]) for key in label_keys))
    counts = Counter(labels)
    return [
        label if label and counts[label] == 1 else f"{record.name}/{record.group}"
        for label, record in zip(labels, records, strict=True)
    ]


def _label_part(key: str, value: str) -> str:
    # Studies and treatments are shown by their name without the key.
    return value.rpartition("/")[2] if key == "experiment" else title({key: value})


def merge_suite_results(results: Sequence[Results], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return the results of several runs as one, with each experiment as a player.

    Experiments have the means over their runs and 95% t intervals; an experiment with a single run has that run's
    results.

    Args:
        results: results of each run, with the same tests. Players other than the student are those of the first run.
        groups: indices of each experiment's runs (`experiments`). A test that one run could not play has no results for
            its experiment.
    """
    first = results[0]
    other_players = [name for name in first["players"] if name != STUDENT]
    records = {label: [read_run(Path(results[i]["runs"][0])) for i in members] for label, members in groups.items()}
    units = {label: units_of(runs) for label, runs in records.items()}
    tests = []
    for k, test in enumerate(first["tests"]):
        run_tests = [run["tests"][k] for run in results]
        refused = {name: test["refused"][name] for name in other_players if name in test["refused"]}
        players: dict[str, Any] = {}
        for label, members in groups.items():
            refusals = [run_tests[i]["refused"][STUDENT] for i in members if STUDENT in run_tests[i]["refused"]]
            if refusals:
                refused[label] = refusals[0]
            players[label] = (
                None if refusals else _average_runs([run_tests[i]["players"][STUDENT] for i in members], units[label])
            )
        players |= {name: test["players"][name] for name in other_players}
        refused = {name: refused[name] for name in players if name in refused}
        is_same_env = all(result["env"] == test["env"] for result in run_tests)
        tests.append({**test, "env": test["env"] if is_same_env else None, "players": players, "refused": refused})
    return {
        **{key: value for key, value in first.items() if key not in ("checkpoint", "llm", "out")},
        "runs": [run for result in results for run in result["runs"]],
        "experiments": {label: [_run_reference(results[i]) for i in members] for label, members in groups.items()},
        "intervals": _intervals(groups, other_players),
        "players": [*groups, *other_players],
        "tests": tests,
    }


def _run_reference(run: Results) -> dict[str, Any]:
    return {"run": run["runs"][0], "checkpoint": run["checkpoint"], "llm": run["llm"]}


def _intervals(groups: Mapping[str, Sequence[int]], others: Sequence[str]) -> str:
    """Return a description of the intervals and the players that they belong to."""
    group_sizes = {label: len(members) for label, members in groups.items() if len(members) > 1}
    single_players = [label for label in groups if label not in group_sizes] + list(others)
    ways = []
    if group_sizes:
        numbers = set(group_sizes.values())
        is_equal_size = len(numbers) == 1
        unit_text = f"Student t over {numbers.pop()} runs" if is_equal_size else "Student t over the runs"
        scope = (
            ""
            if is_equal_size and not single_players
            else " of " + ", ".join(group_sizes if is_equal_size else map(_group_size_text, group_sizes.items()))
        )
        ways.append(f"{unit_text}{scope}, or over their pre-training runs; none below {MINIMUM_UNITS}")
    if single_players:
        scope = f" ({', '.join(single_players)})" if group_sizes else ""
        ways.append(f"of one agent's episodes{scope} Wilson, and of the mean over kinds Zou and Donner")
    return "95%, " + "; ".join(ways)


def _group_size_text(group: tuple[str, int]) -> str:
    return f"{group[0]} ({group[1]})"


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
