"""Groups and tasks: runs that differ only in their seeds form a group; groups of one environment form a task."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmrl.results.run_records import RunRecord
from llmrl.run.folder import TREATMENT_GROUP, format_overrides
from llmrl.run.shared_factors import PRETRAINING, REPLIES, SOCIETY
from llmrl.statistics.intervals import MINIMUM_UNITS

SCRIPTED_LABEL = "scripted"
"""Word in the label of `llm=scripted`, fixed rules in place of a language model."""
SCRIPTED_RULE = "scripted rule"
"""Display name of `llm=scripted` in the names of groups."""
SCRIPTED_NOTE = (
    "The scripted rule is llm=scripted: fixed rules that read the same prompts as a language model. It is not a "
    "language model."
)
_LLM_KEY = "llm"

_DEFAULT_LABEL = "default"
SINGLE_GROUP_LABEL = "all runs"
"""Label of the only group of a task."""


@dataclass(frozen=True)
class Group:
    """The runs of one experiment, one for each seed.

    Attributes:
        label: overrides that differ between the groups of a task, such as `principal=ucb`; `default` if there are none,
            `all runs` for the only group of a task.
        runs: runs in any state, sorted by seed.
        llm: labels of the language models of the runs, separated by commas; empty without one.
        missing_seeds: seeds of other groups of the task for which this group has no run folder.
    """

    label: str
    runs: tuple[RunRecord, ...]
    llm: str = ""
    missing_seeds: tuple[int, ...] = ()

    @property
    def display_name(self) -> str:
        """Display name: the label, with `SCRIPTED_RULE` for `llm=scripted` (`format_name`)."""
        return self.format_name(self.label)

    @property
    def is_scripted(self) -> bool:
        """True if fixed rules replied in place of a language model."""
        return SCRIPTED_LABEL in self.llm

    def format_name(self, name: str) -> str:
        """Return a name of the group with `SCRIPTED_RULE` for `llm=scripted`.

        Args:
            name: label or short name: parts `key=value` or `value`, separated by `, `.

        >>> Group("", (), "scripted rule (not a language model)").format_name("principal=llm, llm=scripted")
        'principal=scripted rule'
        >>> Group("", (), "gpt-4o (litellm)").format_name("principal=llm, llm=gpt4o")
        'principal=llm, llm=gpt4o'
        """
        if not self.is_scripted:
            return name
        parts = [part.rpartition("=") for part in name.split(", ")]
        if any(_is_llm_option(value) for key, _, value in parts if key != _LLM_KEY):
            new_parts = [
                (key, sep, SCRIPTED_RULE if _is_llm_option(value) else value)
                for key, sep, value in parts
                if key != _LLM_KEY and value != SCRIPTED_LABEL
            ]
        elif any(value == SCRIPTED_LABEL for *_, value in parts):
            new_parts = [(key, sep, SCRIPTED_RULE if value == SCRIPTED_LABEL else value) for key, sep, value in parts]
        else:
            return f"{name} ({SCRIPTED_RULE})"
        return ", ".join(f"{key}{sep}{value}" for key, sep, value in new_parts)

    @property
    def n_expected_runs(self) -> int:
        """Expected number of runs: one for every seed that any group of the task has."""
        return len(self.runs) + len(self.missing_seeds)


FinishedGroups = Sequence[tuple[Group, Sequence[RunRecord]]]
"""Groups and their finished runs."""


@dataclass(frozen=True)
class ReportTask:
    """Groups whose scores can be compared: runs of one environment and one `name`.

    Attributes:
        title: `name` of the runs, with the path or the environment if this distinguishes tasks of one name.
        common_overrides: overrides that all groups share.
        groups: the groups, sorted by label.
    """

    title: str
    common_overrides: dict[str, str]
    groups: tuple[Group, ...]


def group_into_tasks(records: Iterable[RunRecord], root: Path, by_name: bool = True) -> list[ReportTask]:
    """Divide runs into groups, and groups into tasks; return the tasks sorted by title.

    The runs in one parent folder are a group. Parent folders that differ only in the seed of the pre-training run
    (`agent.init_from=.../s<n>`, `agent.init_from_seed=<n>`) are merged into one group. The groups of one `name` are a
    task; with several environments, one task for each, because scores of different games cannot be compared.

    Args:
        records: records of runs in and under `root`.
        root: folder; equal names in different folders are distinguished by their path relative to it.
        by_name: whether runs of different names are different tasks; False: all runs of one environment are a task,
            and labels start with the name if names differ.
    """
    runs_by_folder: defaultdict[Path, list[RunRecord]] = defaultdict(list)
    for record in records:
        runs_by_folder[record.folder.parent].append(record)
    if not by_name:
        return _build_tasks_by_environment(list(runs_by_folder.values()))
    env_by_folder = {folder: _find_environment(runs) for folder, runs in runs_by_folder.items()}
    environments: defaultdict[Path, set[str]] = defaultdict(set)
    for folder, env in env_by_folder.items():
        environments[folder.parent] |= {env} - {""}
    groups_by_task: defaultdict[tuple[Path, str], list[list[RunRecord]]] = defaultdict(list)
    for folder, env in env_by_folder.items():
        # An environment that is not recorded is taken from other runs of the same name.
        if not env and len(environments[folder.parent]) == 1:
            [env] = environments[folder.parent]
        groups_by_task[folder.parent, env].append(runs_by_folder[folder])
    name_counts = Counter(folder.name for folder in environments)
    tasks = []
    for (parent, env), groups in groups_by_task.items():
        title = parent.name
        if name_counts[title] > 1:
            root_path = root.absolute()
            title = parent.relative_to(root_path).as_posix() if parent.is_relative_to(root_path) else str(parent)
        if len(environments[parent]) > 1:
            title += f", env={env or 'unknown'}"
        tasks.append(_build_task(title, _merge_groups_by_pretraining(groups)))
    return sorted(tasks, key=lambda task: task.title)


def _build_tasks_by_environment(groups: Sequence[list[RunRecord]]) -> list[ReportTask]:
    have_different_names = len({run.name for runs in groups for run in runs}) > 1
    environments: defaultdict[str, list[list[RunRecord]]] = defaultdict(list)
    for runs in groups:
        if have_different_names:
            runs = [replace(run, overrides={"name": run.name, **run.overrides}) for run in runs]
        environments[_find_environment(runs) or "unknown"].append(runs)
    return [_build_task(env, _merge_groups_by_pretraining(members)) for env, members in sorted(environments.items())]


def _find_environment(runs: Sequence[RunRecord]) -> str:
    """Return the environment of a group, from its runs or its overrides; empty if it is unknown."""
    return next((run.env for run in runs if run.env), "") or _find_common_overrides(runs).get("env", "")


def _is_llm_option(value: str) -> bool:
    """Return whether a value of a label is a part with a language model: `llm`, or a treatment such as `tax_llm`."""
    return value == _LLM_KEY or value.endswith(f"_{_LLM_KEY}")


def explain_scripted_groups(groups: Iterable[Group]) -> list[str]:
    """Return `SCRIPTED_NOTE` in a list; an empty list if no group has scripted replies."""
    return [SCRIPTED_NOTE] if any(group.is_scripted for group in groups) else []


_SEED_FOLDER_PATTERN = re.compile(r"/s[0-9]+/?$")


def _merge_groups_by_pretraining(groups: Sequence[list[RunRecord]]) -> list[list[RunRecord]]:
    """Merge groups that start from different seeds of one pre-training experiment and differ in nothing else."""
    groups_by_overrides: defaultdict[tuple[tuple[str, str], ...], list[list[RunRecord]]] = defaultdict(list)
    for runs in groups:
        groups_by_overrides[tuple(_find_common_overrides(runs).items())].append(runs)
    merged_groups = []
    for equal_groups in groups_by_overrides.values():
        pretrainings = [
            frozenset(name for run in runs for name in run.shared_factors.get(PRETRAINING, ())) for runs in equal_groups
        ]
        # Two groups that share a pre-training run must differ in a setting that is not an override.
        n_distinct_pretrainings = len(frozenset().union(*pretrainings))
        are_mergeable = all(pretrainings) and sum(map(len, pretrainings)) == n_distinct_pretrainings
        merged_groups += [[run for runs in equal_groups for run in runs]] if are_mergeable else equal_groups
    return merged_groups


def _build_task(title: str, groups: Sequence[list[RunRecord]]) -> ReportTask:
    group_overrides = [_find_common_overrides(runs) for runs in groups]
    # The language model comes last in labels, because other overrides often determine it.
    keys = dict.fromkeys(key for overrides in group_overrides for key in overrides)
    sorted_keys = sorted(keys, key=lambda key: key == _LLM_KEY)
    differing_keys = [key for key in sorted_keys if len({overrides.get(key) for overrides in group_overrides}) > 1]
    default_label = SINGLE_GROUP_LABEL if len(groups) == 1 else _DEFAULT_LABEL
    label_keys = _select_label_keys(differing_keys, group_overrides)
    label_overrides = [{key: overrides[key] for key in label_keys if key in overrides} for overrides in group_overrides]
    labels = [format_overrides(overrides, label_keys) or default_label for overrides in label_overrides]
    # Groups with equal group_overrides differ in another setting, such as a changed default, so labels get the hash.
    label_counts = Counter(labels)
    labels = [
        f"{label} ({runs[0].config_hash})" if label_counts[label] > 1 else label
        for label, runs in zip(labels, groups, strict=True)
    ]
    seeds = {run.seed for runs in groups for run in runs}
    report_groups = [
        Group(
            label,
            tuple(sorted(runs, key=lambda run: (run.seed, run.folder))),
            ", ".join(dict.fromkeys(run.llm for run in runs if run.llm)),
            tuple(sorted(seeds - {run.seed for run in runs})),
        )
        for label, runs in zip(labels, groups, strict=True)
    ]
    common_overrides = {key: value for key, value in group_overrides[0].items() if key not in differing_keys}
    return ReportTask(title, common_overrides, tuple(sorted(report_groups, key=lambda group: group.label)))


def _select_label_keys(differing_keys: Sequence[str], group_overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys for labels: the differing keys, without a language model that the treatment determines.

    >>> _select_label_keys(["llm", "treatment"], [{"treatment": "ucb"}, {"treatment": "llm", "llm": "gpt4o_mini"}])
    ['treatment']
    """
    if TREATMENT_GROUP not in differing_keys:
        return list(differing_keys)
    models_by_treatment: defaultdict[str | None, set[str | None]] = defaultdict(set)
    for overrides in group_overrides:
        models_by_treatment[overrides.get(TREATMENT_GROUP)].add(overrides.get("llm"))
    is_determined_by_treatment = all(len(models) == 1 for models in models_by_treatment.values())
    return [key for key in differing_keys if key != "llm" or not is_determined_by_treatment]


def _find_common_overrides(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the overrides of a group, or the most common ones if its runs have different overrides.

    The seed of the pre-training run is left out, because groups may have runs with several.
    """
    override_counts = Counter(tuple(run.overrides.items()) for run in runs if run.overrides)
    overrides = dict(override_counts.most_common(1)[0][0]) if override_counts else {}
    overrides.pop("agent.init_from_seed", None)
    if "agent.init_from" in overrides:
        overrides["agent.init_from"] = _SEED_FOLDER_PATTERN.sub("", overrides["agent.init_from"])
    return overrides


def find_replication_units(runs: Sequence[RunRecord]) -> list[object]:
    """Return the independent unit of each run, [n_runs]: its pre-training runs, or else its own folder."""
    return [tuple(run.shared_factors.get(PRETRAINING, ())) or run.folder for run in runs]


def count_pretrainings(runs: Sequence[RunRecord]) -> int:
    """Return the number of distinct pre-training runs of `runs`."""
    return len({tuple(run.shared_factors[PRETRAINING]) for run in runs if PRETRAINING in run.shared_factors})


def find_interval_caveats(runs: Sequence[RunRecord]) -> list[str]:
    """Return reasons why the score of a group has no interval, or an interval that does not cover all variation.

    Args:
        runs: finished runs of the group.
    """
    n_units, caveats = len(set(find_replication_units(runs))), []
    if n_units < MINIMUM_UNITS:
        unit = "run" if n_units == len(runs) or not count_pretrainings(runs) else "pre-training run"
        caveats.append(f"{n_units} {unit}{'' if n_units == 1 else 's'}: no interval below {MINIMUM_UNITS}")
    replies = [name for run in runs for name in run.shared_factors.get(REPLIES, ())]
    if len(replies) > len(set(replies)):
        caveats.append("seeds share a model's replies: the interval does not cover their variation")
    societies = [name for run in runs for name in set(run.shared_factors.get(SOCIETY, ()))]
    if len(societies) > len(set(societies)):
        caveats.append("seeds share societies: interval too narrow")
    return caveats
