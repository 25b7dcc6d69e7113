"""Mechanisms compared: how far each is above the one without, as a table and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.analysis.intervals import describe_difference
from llmrl.core.spaces import EnvSpec

Row = Mapping[str, float | None]
Entry = Mapping[str, Any]
"""What was found under a mechanism: `name`, `words`, `table`, `per_episode` and more."""

HOW: Mapping[object, str] = {"mean": ", mean over steps", "last": ", at the end"}
"""How an episode sums up a metric -> what is said of it; sums go without saying."""
MEASURED = {"welfare/spending": "paid out by the mechanism", "welfare/equality": "equality (1: all collect the same)"}
"""Measures of welfare that are shown beside the objective."""


def reference(names: Sequence[str]) -> str:
    """The mechanism that the others are compared with: `none`, else the first."""
    return "none" if "none" in names else names[0]


def differences(entries: Sequence[Entry], paired: bool, independent: bool) -> list[dict[str, Any]]:
    """How far each mechanism is above the reference, column by column.

    Args:
        entries: what was found under each.
        paired: episodes of the same number met the same circumstances.
        independent: whether episodes are; else nobody knows how far to trust a difference.

    Returns:
        For each mechanism but the reference its name, that of the reference, and `table` with a row
        (`describe_difference`) for each column that both have values of.
    """
    [against] = [each for each in entries if each["name"] == reference([e["name"] for e in entries])]
    found = []
    for each in entries:
        if each is against:
            continue
        rows = {}
        for name, values in each["per_episode"].items():
            x, y = np.array(values), np.array(against["per_episode"][name])
            if paired:
                known = ~(np.isnan(x) | np.isnan(y))
                x, y = x[known], y[known]
            else:
                x, y = x[~np.isnan(x)], y[~np.isnan(y)]
            if len(x) and len(y):
                rows[name] = describe_difference(x, y, paired, independent)
        found.append({"name": each["name"], "reference": against["name"], "table": rows})
    return found


def labels(entries: Sequence[Entry], spec: EnvSpec) -> dict[str, str]:
    """The columns that a person looks for first, and what they are called: the objective, what the environment counts,
    what the mechanism paid, the length where it differs."""
    tables = [each["table"] for each in entries]
    known = set().union(*tables)
    named = {name: name for name in known if name.startswith("objective (")}
    named |= {name: name.replace("_", " ") + HOW.get(how, "") for name, how in spec.metrics.items() if name in known}
    named |= {name: label for name, label in MEASURED.items() if name in known}
    lengths = {row[end] for table in tables for row in [table["length"]] for end in ("min", "max")}
    if len(lengths) > 1:
        named["length"] = "steps of an episode"
    if any(_alike(entries, name, "welfare/spending") for name in spec.metrics):
        named.pop("welfare/spending", None)  # the game counts it already
    return named


def _alike(entries: Sequence[Entry], one: str, other: str) -> bool:
    columns = [(each["per_episode"].get(one, []), each["per_episode"].get(other, [])) for each in entries]
    return all(len(x) == len(y) and np.allclose(x, y, rtol=1e-4) for x, y in columns)


def sentences(entries: Sequence[Entry], compared: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """What came of each mechanism but the reference in `column`, the objective: `With the best mechanism ...`."""
    by_name = {each["name"]: each for each in entries}
    return [
        _sentence(by_name[each["name"]], by_name[each["reference"]], each["table"][column], column) for each in compared
    ]


def _sentence(entry: Entry, against: Entry, row: Row, column: str) -> str:
    difference, error, low, high = (row[name] for name in ("mean", "standard_error", "low", "high"))
    x, y = entry["table"][column]["mean"], against["table"][column]["mean"]
    place = decimals([x, y, difference])
    without = "without" if against["name"] == "none" else f"with {_called(against)}"
    said = f"With {_called(entry)} the objective is {x:,.{place}f}, {without} {y:,.{place}f}: "
    assert difference is not None
    if error is None or low is None or high is None:
        return said + f"a difference of {difference:,.{place}f}; these episodes cannot tell how far to trust it."
    interval = f"95 % {low:,.{place}f} … {high:,.{place}f}"
    if low <= 0 <= high:
        return said + f"no difference beyond chance ({difference:,.{place}f} ± {error:,.{place}f}, {interval})."
    return said + f"a difference of {difference:,.{place}f} ± {error:,.{place}f} ({interval})."


def _called(entry: Entry) -> str:
    if entry["name"] in ("best", "last"):
        return f"the {entry['name']} mechanism"
    return str(entry["words"])


def decimals(numbers: Sequence[float | None]) -> int:
    """Digits after the point that numbers of one row are shown with."""
    largest = max((abs(x) for x in numbers if x is not None), default=0.0)
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2


def told(results: Mapping[str, Any]) -> list[str]:
    """How the mechanisms were compared, in sentences."""
    adapted = results["adapted"]
    if adapted is None:
        policy = results["mechanisms"][0]["players"][0]["policy"]
        same = "the agents that the run saved" if policy == "student" else f"the same players ({policy})"
        who = f"All mechanisms were played by {same}, which had not adapted to them first."
    else:
        start = "the weights that the run began with" if adapted["initial"] else "the weights that the run ended with"
        who = (
            f"A society adapted to each mechanism as in a principal's step: {counted(adapted['rounds'], 'round')} of "
            f"{counted(adapted['games'], 'game')} from {start}. Intervals tell how its episodes vary, not how other "
            "societies would."
        )
    how = ", seeded alike: differences are taken game by game."
    if not results["paired"]:
        how = "; the engine cannot repeat a game, so differences are those of the means."
    return [who, f"{counted(results['episodes'], 'episode')} under each mechanism{how}"]


def counted(n: int, what: str) -> str:
    """A number of things: `1 round`, `2 rounds`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def cells(entries: Sequence[Entry], compared: Sequence[Mapping[str, Any]], named: Mapping[str, str]) -> list[list[str]]:
    """The rows of the table: a label, the mean of each mechanism, and each difference with its interval."""
    rows = []
    for name, label in named.items():
        means = [each["table"].get(name, {}).get("mean") for each in entries]
        found = [each["table"].get(name) for each in compared]
        place = decimals([*means, *(row["mean"] for row in found if row)])
        shown = ["-" if mean is None else f"{mean:,.{place}f}" for mean in means]
        rows.append([label, *shown, *(_difference(row, place) for row in found)])
    return rows


def _difference(row: Row | None, place: int) -> str:
    if row is None:
        return "-"
    low, high = row["low"], row["high"]
    interval = "" if low is None or high is None else f"  ({low:,.{place}f} … {high:,.{place}f})"
    mean = round(row["mean"] or 0.0, place) + 0.0  # never a negative zero
    return f"{mean:+,.{place}f}{interval}"
