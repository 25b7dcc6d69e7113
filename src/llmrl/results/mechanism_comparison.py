"""Comparison of mechanisms with a reference: differences, table rows and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.statistics.intervals import describe_difference

Statistics = Mapping[str, float | None]
"""Statistics of a column: `mean`, `standard_error`, `low`, `high` and others; None if unknown."""
MechanismResult = Mapping[str, Any]
"""Results under a mechanism: `name`, `words` (description), `table` (`Statistics` by column), `per_episode` (list of
values by column) and others."""

AGGREGATION_SUFFIXES: Mapping[object, str] = {"mean": ", mean over steps", "last": ", at the end"}
"""Suffixes of the labels of metrics, by aggregation over an episode; sums have none."""
WELFARE_LABELS = {
    "welfare/spending": "paid out by the mechanism",
    "welfare/equality": "equality (1: all collect the same)",
}
"""Labels of the welfare measures in the table, in addition to the objective."""


def choose_reference(names: Sequence[str]) -> str:
    """Return the name of the reference, with which other mechanisms are compared: `none`, or else the first name."""
    return "none" if "none" in names else names[0]


def compare_with_reference(
    mechanisms: Sequence[MechanismResult], is_paired: bool, independent: bool
) -> list[dict[str, Any]]:
    """Return the difference between each mechanism and the reference, for each column.

    Args:
        mechanisms: results under each mechanism.
        is_paired: whether episodes with the same index had the same random numbers.
        independent: whether episodes are independent; if not, differences have no standard errors.

    Returns:
        For each mechanism except the reference: `name`, `reference` (name of the reference), and `table` with a row
        (`describe_difference`) for each column with values of both.
    """
    reference_name = choose_reference([mechanism["name"] for mechanism in mechanisms])
    [reference] = [mechanism for mechanism in mechanisms if mechanism["name"] == reference_name]
    comparisons = []
    for mechanism in mechanisms:
        if mechanism is reference:
            continue
        rows = {}
        for name, column in mechanism["per_episode"].items():
            values, reference_values = np.array(column), np.array(reference["per_episode"][name])
            if is_paired:
                is_defined = ~(np.isnan(values) | np.isnan(reference_values))
                values, reference_values = values[is_defined], reference_values[is_defined]
            else:
                values, reference_values = (x[~np.isnan(x)] for x in (values, reference_values))
            if len(values) and len(reference_values):
                rows[name] = describe_difference(values, reference_values, is_paired, independent)
        comparisons.append({"name": mechanism["name"], "reference": reference["name"], "table": rows})
    return comparisons


def select_table_columns(mechanisms: Sequence[MechanismResult], spec: EnvSpec) -> dict[str, str]:
    """Return display names of the columns in the table, by column.

    They are the objective, the metrics of the environment, welfare measures, and the length of episodes if it varies.
    """
    tables = [mechanism["table"] for mechanism in mechanisms]
    names = set().union(*tables)
    columns = {name: name for name in names if name.startswith("objective (")}
    columns |= {
        name: name.replace("_", " ") + AGGREGATION_SUFFIXES.get(aggregation, "")
        for name, aggregation in spec.metrics.items()
        if name in names
    }
    columns |= {name: label for name, label in WELFARE_LABELS.items() if name in names}
    if len({table["length"][bound] for table in tables for bound in ("min", "max")}) > 1:
        columns["length"] = "steps of an episode"
    if any(_are_columns_equal(mechanisms, name, "welfare/spending") for name in spec.metrics):
        columns.pop("welfare/spending", None)  # a metric of the environment has the same values
    return columns


def _are_columns_equal(mechanisms: Sequence[MechanismResult], metric: str, other_metric: str) -> bool:
    tables = [mechanism["per_episode"] for mechanism in mechanisms]
    pairs = [(table.get(metric, []), table.get(other_metric, [])) for table in tables]
    return all(len(x) == len(y) and np.allclose(x, y, rtol=1e-4) for x, y in pairs)


def describe_differences(
    mechanisms: Sequence[MechanismResult], comparisons: Sequence[Mapping[str, Any]], column: str
) -> list[str]:
    """Return a sentence about `column`, the objective, for each mechanism except the reference."""
    mechanism_by_name = {mechanism["name"]: mechanism for mechanism in mechanisms}
    return [
        _describe_difference(
            mechanism_by_name[comparison["name"]],
            mechanism_by_name[comparison["reference"]],
            comparison["table"][column],
            column,
        )
        for comparison in comparisons
    ]


def _describe_difference(mechanism: MechanismResult, reference: MechanismResult, row: Statistics, column: str) -> str:
    difference, error, low, high = (row[name] for name in ("mean", "standard_error", "low", "high"))
    mean, reference_mean = mechanism["table"][column]["mean"], reference["table"][column]["mean"]
    digits = choose_decimals([mean, reference_mean, difference])
    reference_text = "without" if reference["name"] == "none" else f"with {_describe_mechanism(reference)}"
    means_text = f"{mean:,.{digits}f}, {reference_text} {reference_mean:,.{digits}f}"
    sentence = f"With {_describe_mechanism(mechanism)} the objective is {means_text}: "
    assert difference is not None
    if error is None or low is None or high is None:
        return sentence + f"a difference of {difference:,.{digits}f}; its standard error is unknown."
    interval = f"95 % {low:,.{digits}f} … {high:,.{digits}f}"
    if low <= 0 <= high:
        return sentence + f"no significant difference ({difference:,.{digits}f} ± {error:,.{digits}f}, {interval})."
    return sentence + f"a difference of {difference:,.{digits}f} ± {error:,.{digits}f} ({interval})."


def _describe_mechanism(mechanism: MechanismResult) -> str:
    name = mechanism["name"]
    return f"the {name} mechanism" if name in ("best", "last") else str(mechanism["words"])


def choose_decimals(numbers: Sequence[float | None]) -> int:
    """Return the number of decimals with which the numbers of one row are shown, 0 to 2."""
    max_magnitude = max((abs(x) for x in numbers if x is not None), default=0.0)
    return 0 if max_magnitude >= 1000 else 1 if max_magnitude >= 10 else 2


def describe_method(results: Mapping[str, Any]) -> list[str]:
    """Return sentences on the method of a comparison, given the content of its `results.json`."""
    adaptation = results["adapted"]
    if adaptation is None:
        policy = results["mechanisms"][0]["players"][0]["policy"]
        players = "the agents that the run saved" if policy == "student" else f"the same players ({policy})"
        players_text = f"All mechanisms were played by {players}, which had not adapted to them first."
    else:
        start_text = "the initial weights of the run" if adaptation["initial"] else "the final weights of the run"
        rounds_text = format_count(adaptation["rounds"], "round")
        games_text = format_count(adaptation["games"], "game")
        players_text = (
            f"A society adapted to each mechanism as in a principal's step: {rounds_text} of {games_text} from "
            f"{start_text}. Intervals cover the variation of its episodes, not that of other societies."
        )
    unpaired_text = "; the engine cannot repeat a game, so differences are not paired."
    seeding_text = ", with equal seeds: differences are paired by game." if results["paired"] else unpaired_text
    return [players_text, f"{format_count(results['episodes'], 'episode')} under each mechanism{seeding_text}"]


def format_count(n: int, unit: str) -> str:
    """Return a number with its unit: `1 round`, `2 rounds`."""
    return f"{n:,} {unit}{'' if n == 1 else 's'}"


def build_table_rows(
    mechanisms: Sequence[MechanismResult], comparisons: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> list[list[str]]:
    """Return the rows of the table: label, mean under each mechanism, and difference of each comparison."""
    rows = []
    for name, label in columns.items():
        means = [mechanism["table"].get(name, {}).get("mean") for mechanism in mechanisms]
        differences = [comparison["table"].get(name) for comparison in comparisons]
        digits = choose_decimals([*means, *(row["mean"] for row in differences if row)])
        means_text = ["-" if mean is None else f"{mean:,.{digits}f}" for mean in means]
        rows.append([label, *means_text, *(_format_difference(row, digits) for row in differences)])
    return rows


def _format_difference(row: Statistics | None, digits: int) -> str:
    if row is None:
        return "-"
    low, high = row["low"], row["high"]
    interval = "" if low is None or high is None else f"  ({low:,.{digits}f} … {high:,.{digits}f})"
    mean = round(row["mean"] or 0.0, digits) + 0.0  # + 0.0 turns -0.0 into 0.0
    return f"{mean:+,.{digits}f}{interval}"
