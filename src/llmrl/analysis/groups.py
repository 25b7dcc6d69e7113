"""What a sweep varied: runs that differ in seeds alone are a group, groups of one environment are a task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.analysis.runs import RunRecord
from llmrl.run.folder import TREATMENT
from llmrl.run.names import title as title_of
from llmrl.run.shared import PRETRAINING

SCRIPTED = "scripted"
"""Word in the label of a stand-in for a language model."""

DAGGER = "†"

_DEFAULT = "default"
ALONE = "all runs"
"""Label of the only group of a task."""


@dataclass(frozen=True)
class Group:
    """The runs of one experiment: its seeds.

    Attributes:
        label: what was typed for it and not for all groups of its task, `principal=ucb`; `default` if nothing was,
            `all runs` for an only group.
        runs: every run that has a folder, whatever its state, by seed.
        llm: labels of the language models behind the results; empty without one.
        missing: seeds that another group of the task has and this one has no folder for.
    """

    label: str
    runs: tuple[RunRecord, ...]
    llm: str = ""
    missing: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        """The label, with a dagger if a stand-in took the place of a language model; see `footnotes`."""
        return f"{self.label} {DAGGER}" if SCRIPTED in self.llm else self.label

    @property
    def expected(self) -> int:
        """Runs there should be: one for every seed that any group of the task has."""
        return len(self.runs) + len(self.missing)


@dataclass(frozen=True)
class Task:
    """Groups whose scores can be compared: one environment, one `name`.

    Attributes:
        title: the `name` of its runs, with what tells it from other tasks of that name.
        common: overrides that all groups share.
        groups: in order of their labels.
    """

    title: str
    common: dict[str, str]
    groups: tuple[Group, ...]


def tasks_of(records: Iterable[RunRecord], root: Path) -> list[Task]:
    """Sort runs into tasks and groups.

    Runs in one folder of seeds are a group, and so are those that differ beside their seed only in which seed of one
    pre-training experiment they begin with (`agent.init_from=.../s<n>`, `agent.init_from_seed=<n>`). Groups of one
    `name` are a task; where a name holds several environments, each is a task of its own, because scores of different
    games cannot be compared.

    Args:
        records: of runs in and under `root`.
        root: names of the same spelling in different folders are told apart by their path from here.
    """
    seeds: dict[Path, list[RunRecord]] = {}
    for record in records:
        seeds.setdefault(record.folder.parent, []).append(record)
    named: dict[tuple[Path, str], list[Path]] = {}
    environments: dict[Path, set[str]] = {}
    played = {folder: _environment(runs) for folder, runs in seeds.items()}
    for folder, env in played.items():
        environments.setdefault(folder.parent, set()).add(env)
    for folder, env in played.items():
        known = environments[folder.parent] - {""}
        if not env and len(known) == 1:  # it never got as far as its environment, which must be the others'
            (env,) = known
        environments[folder.parent] -= {""} if known else set()
        named.setdefault((folder.parent, env), []).append(folder)
    spelt = Counter(folder.name for folder in environments)
    tasks = []
    for (parent, env), folders in named.items():
        title = parent.name if spelt[parent.name] == 1 else _relative(parent, root)
        if len(environments[parent]) > 1:
            title += f", env={env or 'unknown'}"
        tasks.append(_task(title, _over_pretrainings([seeds[folder] for folder in folders])))
    return sorted(tasks, key=lambda task: task.title)


def _environment(runs: Sequence[RunRecord]) -> str:
    """The environment of a group: as its runs found it, else as it was typed; empty if neither is known."""
    return next((run.env for run in runs if run.env), "") or _overrides(runs).get("env", "")


def footnotes(groups: Iterable[Group]) -> list[str]:
    """What the dagger of `Group.shown` means, where one of the groups has it."""
    return list(dict.fromkeys(f"{DAGGER} {group.llm}" for group in groups if group.shown != group.label))


_SEED_FOLDER = re.compile(r"/s[0-9]+/?$")


def _over_pretrainings(groups: Sequence[list[RunRecord]]) -> list[list[RunRecord]]:
    """Groups that begin with different seeds of one pre-training experiment, and differ in nothing else, as one."""
    alike: dict[tuple[tuple[str, str], ...], list[list[RunRecord]]] = {}
    for runs in groups:
        alike.setdefault(tuple(_overrides(runs).items()), []).append(runs)
    made = []
    for same in alike.values():
        begun = [frozenset(name for run in runs for name in run.shared.get(PRETRAINING, ())) for runs in same]
        # Two groups with the same weights to begin with differ in something that was not typed.
        apart = all(begun) and sum(map(len, begun)) == len(frozenset().union(*begun))
        made += [[run for runs in same for run in runs]] if apart else same
    return made


def _task(title: str, groups: Sequence[list[RunRecord]]) -> Task:
    overrides = [_overrides(runs) for runs in groups]
    keys = list(dict.fromkeys(key for each in overrides for key in each))
    differing = [key for key in keys if len({each.get(key) for each in overrides}) > 1]
    alone = ALONE if len(groups) == 1 else _DEFAULT
    told = _told(differing, overrides)
    own = [{key: each[key] for key in told if key in each} for each in overrides]
    labels = [title_of(each, told) or alone for each in own]
    # Equal overrides in different folders: something else, such as a default, changed between them.
    repeated = Counter(labels)
    labels = [
        f"{label} ({runs[0].group.rpartition('-')[2]})" if repeated[label] > 1 else label
        for label, runs in zip(labels, groups, strict=True)
    ]
    seeds = {run.seed for runs in groups for run in runs}
    made = [
        Group(
            label,
            tuple(sorted(runs, key=lambda run: (run.seed, run.folder))),
            ", ".join(dict.fromkeys(run.llm for run in runs if run.llm)),
            tuple(sorted(seeds - {run.seed for run in runs})),
        )
        for label, runs in zip(labels, groups, strict=True)
    ]
    common = {key: value for key, value in overrides[0].items() if key not in differing}
    return Task(title, common, tuple(sorted(made, key=lambda group: group.label)))


def _told(differing: Sequence[str], overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that labels tell, of those that differ: no model that a treatment has chosen.

    >>> _told(["llm", "treatment"], [{"treatment": "ucb"}, {"treatment": "llm", "llm": "gpt4o_mini"}])
    ['treatment']
    """
    if TREATMENT not in differing:
        return list(differing)
    models: dict[str | None, set[str | None]] = {}
    for each in overrides:
        models.setdefault(each.get(TREATMENT), set()).add(each.get("llm"))
    follows = {"llm"} if all(len(same) == 1 for same in models.values()) else set()
    return [key for key in differing if key not in follows]


def _overrides(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What was typed for a group; the same experiment may be spelt in several ways, the commonest is taken.

    Which seed of a pre-training experiment it begins with is left out, as the run's own seed is.
    """
    spellings = Counter(tuple(run.overrides.items()) for run in runs if run.overrides)
    typed = dict(spellings.most_common(1)[0][0]) if spellings else {}
    typed.pop("agent.init_from_seed", None)
    if "agent.init_from" in typed:
        typed["agent.init_from"] = _SEED_FOLDER.sub("", typed["agent.init_from"])
    return typed


def _relative(folder: Path, root: Path) -> str:
    return folder.relative_to(root.absolute()).as_posix() if folder.is_relative_to(root.absolute()) else str(folder)
