"""Settings of a study (section `report` of a config), its result, and short names of its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt, Le, MaxLen, MinLen

from llmrl.core.errors import RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.results.groups import ReportTask
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import ReportTable
from llmrl.run.artifacts import read_config

SECTION = "report"
"""Key of these settings in a config."""
_LLM_KEY = "llm"


@dataclass(frozen=True)
class StudySettings:
    """Settings of the presentation and the comparisons of a study.

    Attributes:
        question: research question of the study; None: the runs are not a study.
        metric: metric that is plotted and compared; None: the main objective of the loop.
        unit: display name of the metric; None: its key.
        x_axis: x axis of curves, a key of `analysis.scores.X_AXES`.
        smooth: number of consecutive values of a run that are averaged for each point of its curve.
        tail_fraction: the score of a run is the mean of this last fraction of its values; None: the run's result.
        baselines: values of the swept key with which all other values are compared.
        pairs: pairs of values of the swept key that are also compared, unless the second one is a baseline.
        levels: values of the swept key that are plotted as horizontal lines.
        map: names of the parameters on the x and y axes of heat maps; a third parameter has one map for each value.
        recommendations: number n of recommendations in a map: its first n vectors, of which vector i is the
            recommendation for the society of seed i.
        best_known: highest known objective, for the time to solution; None: no time to solution.
        published: results of the published study, by value of the swept key.
        source: reference for the published results.
    """

    question: str | None = None
    metric: str | None = None
    unit: str | None = None
    x_axis: Literal["env_steps", "proposals", "updates", "samples", "seconds"] = "env_steps"
    smooth: PositiveInt = 1
    tail_fraction: Annotated[float, Gt(0), Le(1)] | None = 0.2
    baselines: list[str] = field(default_factory=list)
    pairs: list[Annotated[list[str], MinLen(2), MaxLen(2)]] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    map: Annotated[list[str], MinLen(2), MaxLen(3)] | None = None
    recommendations: NonNegativeInt = 0
    best_known: float | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None

    @property
    def score_name(self) -> str:
        """Display name of the score."""
        return self.unit or self.metric or "result"


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        settings: settings of the study.
        sentences: findings as sentences.
        tables: numbers of the findings; names of tables begin with `study`.
        caption: caption of the figure.
    """

    settings: StudySettings
    sentences: tuple[str, ...]
    tables: tuple[ReportTable, ...]
    caption: str


def read_study_settings(runs: Sequence[RunRecord]) -> StudySettings | None:
    """Return the study settings of the newest run in `runs`; None if the runs are not a study.

    Raises:
        RunFolderError: the settings are invalid.
    """
    for run in sorted(runs, key=lambda run: -run.started):
        try:
            node = read_config(run.folder, ()).get(SECTION)
        except RunFolderError:
            continue  # the run has not started
        return parse_study_settings(node, str(run.folder))
    return None


def parse_study_settings(node: object, source: str) -> StudySettings | None:
    """Return the settings that a config has under `report`; None if it has no `question`.

    Args:
        node: value of `report` as plain data.
        source: name of the config, for error messages.

    Raises:
        RunFolderError: the settings are invalid.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(node, Mapping) or not node.get("question"):
        return None
    options = {name: value for name, value in node.items() if name != "_target_"}
    try:
        return TypeAdapter(StudySettings).validate_python(options)
    except ValidationError as error:
        raise RunFolderError(
            f"{source}: section {SECTION} of its config is invalid ({error.errors()[0]['msg']})"
        ) from error


def shorten_group_names(task: ReportTask) -> dict[str, str]:
    """Return the short name of each group of a study, the value of the swept key, by the group's label.

    The short name contains the language model only if names would otherwise be equal.

    >>> shorten_group_names(ReportTask("t", {}, (Group("principal=ucb", ()), Group("principal=llm, llm=scripted", ()))))
    {'principal=ucb': 'ucb', 'principal=llm, llm=scripted': 'llm'}
    """
    names_by_label = {}
    for group in task.groups:
        pairs = [part.partition("=") for part in group.label.split(", ")]
        values = {key: value if sep else key for key, sep, value in pairs}
        short_name = ", ".join(value for key, value in values.items() if key != _LLM_KEY)
        names_by_label[group.label] = short_name, ", ".join(values.values())
    counts = Counter(short_name for short_name, _ in names_by_label.values())
    return {label: short if short and counts[short] == 1 else full for label, (short, full) in names_by_label.items()}
