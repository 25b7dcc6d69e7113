"""Several runs in a suite: the seeds of an experiment are one player, and experiments stand side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.intervals import MINIMUM_UNITS, describe
from llmrl.analysis.replication import units_of
from llmrl.analysis.runs import read_run
from llmrl.core.errors import ConfigError
from llmrl.run.config_hash import config_hash
from llmrl.run.folder_names import title

Results = Mapping[str, Any]
STUDENT = "student"
"""The player of a single experiment, and the one of each run that stands for its experiment."""
_FIRST = ("agent", "treatment", "experiment", "env")
"""Overrides that tell experiments apart best, in this order."""


def experiments(runs: Sequence[Path], configs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Label -> the places of an experiment's runs: those whose configs differ in nothing but the seed, and in what
    cannot change their numbers. In the order of `runs`.

    Raises:
        ConfigError: a run is given twice, or another one of the same experiment and seed, which would count as two.
    """
    found: dict[str, list[int]] = {}
    seeds: dict[tuple[str, Any], Path] = {}
    for i, (run, config) in enumerate(zip(runs, configs, strict=True)):
        group = config_hash(config)
        if (before := seeds.setdefault((group, config["seed"]), run)) is not run:
            raise ConfigError(f"{before} and {run} are the same experiment with the same seed; give one of them")
        found.setdefault(group, []).append(i)
    members = list(found.values())
    if len(members) == 1:
        return {STUDENT: members[0]}
    return dict(zip(_labels([runs[each[0]] for each in members]), members, strict=True))


def _labels(runs: Sequence[Path]) -> list[str]:
    """A name for each experiment, of which one run is given: as few of the overrides that were typed for it as tell it
    from the others; the name of its folder where these do not."""
    records = [read_run(run) for run in runs]
    typed = [record.overrides for record in records]
    keys = sorted(
        dict.fromkeys(key for each in typed for key in each),
        key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST),
    )
    chosen: list[str] = []
    apart = 1
    for key in keys:
        kinds = len({tuple(each.get(k) for k in (*chosen, key)) for each in typed})
        if kinds > apart:
            chosen, apart = [*chosen, key], kinds
    labels = []
    for each in typed:
        told = [key for key in chosen if key in each] or [key for key in each if "." not in key]
        labels.append(", ".join(_said(key, each[key]) for key in told))
    often = Counter(labels)
    return [
        label if label and often[label] == 1 else f"{record.name}/{record.group}"
        for label, record in zip(labels, records, strict=True)
    ]


def _said(key: str, value: str) -> str:
    # A study is known by its name alone, as a treatment is.
    return value.rpartition("/")[2] if key == "experiment" else title({key: value})


def together(found: Sequence[Results], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """One result of several runs: each experiment is a player, with the means over its runs and 95% t intervals
    over them; of a single run, that run's own numbers.

    Args:
        found: of each run, the same tests. Players beside the student are those of the first run: they have no runs.
        groups: from `experiments`. What one run of an experiment could not play has no number for the experiment.
    """
    first = found[0]
    others = [name for name in first["players"] if name != STUDENT]
    records = {label: [read_run(Path(found[i]["runs"][0])) for i in members] for label, members in groups.items()}
    units = {label: units_of(runs) for label, runs in records.items()}
    tests = []
    for k, test in enumerate(first["tests"]):
        every = [run["tests"][k] for run in found]
        refused = {name: test["refused"][name] for name in others if name in test["refused"]}
        players: dict[str, Any] = {}
        for label, members in groups.items():
            why = [every[i]["refused"][STUDENT] for i in members if STUDENT in every[i]["refused"]]
            if why:
                refused[label] = why[0]
            players[label] = None if why else _over_runs([every[i]["players"][STUDENT] for i in members], units[label])
        players |= {name: test["players"][name] for name in others}
        refused = {name: refused[name] for name in players if name in refused}
        same = all(each["env"] == test["env"] for each in every)
        tests.append({**test, "env": test["env"] if same else None, "players": players, "refused": refused})
    return {
        **{key: value for key, value in first.items() if key not in ("checkpoint", "llm", "out")},
        "runs": [run for each in found for run in each["runs"]],
        "experiments": {label: [_about(found[i]) for i in members] for label, members in groups.items()},
        "intervals": _intervals(groups, others),
        "players": [*groups, *others],
        "tests": tests,
    }


def _about(run: Results) -> dict[str, Any]:
    return {"run": run["runs"][0], "checkpoint": run["checkpoint"], "llm": run["llm"]}


def _intervals(groups: Mapping[str, Sequence[int]], others: Sequence[str]) -> str:
    """What the intervals say, of whom."""
    several = {label: len(members) for label, members in groups.items() if len(members) > 1}
    single = [label for label in groups if label not in several] + list(others)
    ways = []
    if several:
        numbers = set(several.values())
        alike = len(numbers) == 1
        over = f"Student t over {numbers.pop()} runs" if alike else "Student t over the runs"
        whose = "" if alike and not single else " of " + ", ".join(several if alike else map(_counted, several.items()))
        ways.append(f"{over}{whose}, or over their pre-training runs; none below {MINIMUM_UNITS}")
    if single:
        whose = f" ({', '.join(single)})" if several else ""
        ways.append(f"of one agent's episodes{whose} Wilson, and of the mean over kinds Zou and Donner")
    return "95%, " + "; ".join(ways)


def _counted(group: tuple[str, int]) -> str:
    return f"{group[0]} ({group[1]})"


def _over_runs(players: Sequence[Results], units: Sequence[object]) -> dict[str, Any]:
    def row(found: Sequence[Results]) -> dict[str, Any]:
        told = describe(np.array([each["success"] for each in found]), units=units)
        return {
            "success": told["mean"],
            "low": told["low"],
            "high": told["high"],
            "episodes": sum(each["episodes"] for each in found),
            "per_run": [each["success"] for each in found],
        }

    if len(players) == 1:
        return dict(players[0])
    kinds = {kind: row([player["kinds"][kind] for player in players]) for kind in players[0]["kinds"]}
    return {**row(players), "kinds": kinds, "lacking": players[0]["lacking"]}
