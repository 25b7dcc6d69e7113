"""What a study shows of its runs, and what it says of them: the settings that its file has under `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt, Le, MaxLen, MinLen

from llmrl.analysis.groups import Task
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.table import Table
from llmrl.core.errors import RunFolderError
from llmrl.core.ranges import PositiveInt
from llmrl.run.content import read_config

KEY = "report"
"""Of a config."""
_MODEL = "llm"


@dataclass(frozen=True)
class StudySettings:
    """How the runs of a study are shown and compared.

    Attributes:
        question: what the study asks; None: these runs are no study.
        metric: what is drawn and compared; None: the main objective of the loop.
        unit: what it is, in words; None: its name.
        over: what curves are drawn over, one of `scores.AXES`.
        smooth: values of a run that each point of its curve is the mean of.
        last_fraction: share of a run's values, from the end, whose mean is its score; None: the run's result.
        against: values of the swept key that the others are compared with.
        lines: values of the swept key that are drawn as a level.
        map: names of the numbers on the axes of heat maps, x and y, and of the one with a map for each value.
        published: results of the published study, by value of the swept key.
        source: where these are from.
    """

    question: str | None = None
    metric: str | None = None
    unit: str | None = None
    over: Literal["env_steps", "proposals", "updates", "samples", "seconds"] = "env_steps"
    smooth: PositiveInt = 1
    last_fraction: Annotated[float, Gt(0), Le(1)] | None = 0.2
    against: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    map: Annotated[list[str], MinLen(2), MaxLen(3)] | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True)
class StudyResult:
    """What came of a study.

    Attributes:
        settings: how it is shown.
        sentences: what was found, in words.
        tables: the same in numbers; their names begin with `study`.
        caption: of its figure.
    """

    settings: StudySettings
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    caption: str


def settings_of(runs: Sequence[RunRecord]) -> StudySettings | None:
    """Return how the newest of some runs says that their study is shown; None where they are no study.

    Raises:
        RunFolderError: what it says makes no sense.
    """
    for run in sorted(runs, key=lambda run: -run.started):
        try:
            node = read_config(run.folder, ()).get(KEY)
        except RunFolderError:
            continue  # one that never began
        return settings_from(node, str(run.folder))
    return None


def settings_from(node: object, where: str) -> StudySettings | None:
    """Return the settings that a config has under `report`; None where it asks nothing.

    Args:
        node: plain data.
        where: they stand, for errors.

    Raises:
        RunFolderError: they make no sense.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(node, Mapping) or not node.get("question"):
        return None
    known = {name: value for name, value in node.items() if name != "_target_"}
    try:
        return TypeAdapter(StudySettings).validate_python(known)
    except ValidationError as error:
        raise RunFolderError(f"{where}: {KEY} of its config cannot be read ({error.errors()[0]['msg']})") from error


def names_of(task: Task) -> dict[str, str]:
    """Return the short name of each group of a study by its label: the value of the key that was swept, without the
    language model where that tells nothing.

    >>> names_of(Task("t", {}, (Group("principal=ucb", ()), Group("principal=llm, llm=scripted", ()))))
    {'principal=ucb': 'ucb', 'principal=llm, llm=scripted': 'llm'}
    """
    parts = {group.label: dict(_pair(part) for part in group.label.split(", ")) for group in task.groups}
    short = {label: [value for key, value in own.items() if key != _MODEL] for label, own in parts.items()}
    values = [tuple(each) for each in short.values()]
    found = {}
    for label, own in parts.items():
        kept = short[label]
        alone = bool(kept) and values.count(tuple(kept)) == 1
        found[label] = ", ".join(kept if alone else own.values())
    return found


def _pair(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    return (key, value) if equals else (part, part)
