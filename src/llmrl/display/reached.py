"""What a design run reached, beside its reference lines: the table and the sentences that end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from llmrl.analysis.references import LINES

_LINES = {**LINES, "last_proposals": "mean of the last proposals", "best_proposal": "best proposal"}
"""What a summary's `references` tells of each context, in the order of the table, and what it is called."""


def print_reached(console: Console, found: Mapping[str, Any]) -> None:
    """Print the table of a summary's `references`, and what it comes to."""
    contexts = found["contexts"]
    several = contexts[0]["context"] is not None
    table = Table(title="What is reached")
    for column in (*(["context"] if several else []), "", "objective", "± s.e.", "mechanism"):
        table.add_column(column, justify="right" if column in ("objective", "± s.e.") else "left", overflow="fold")
    for own in contexts:
        for i, (line, words) in enumerate(_LINES.items()):
            row = own[line]
            if row is None:
                continue
            error = row["standard_error"]
            cells = [*([own["context"] if i == 0 else ""] if several else []), words, f"{row['value']:,.3f}"]
            cells += ["-" if error is None else f"{error:,.3f}"]
            shown = line in ("scan_best", "best_proposal")
            cells.append(", ".join(f"{name} {x:.3g}" for name, x in row["mechanism"].items()) if shown else "")
            table.add_row(*cells, style="bold" if line == "best_proposal" else None)
        table.add_section()
    console.print(table)
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=True)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Say in plain words what a summary's `references` come to."""
    said = [f"{_gain(own)}{_beside_scan(own)}" for own in found["contexts"] if own["gain"] is not None]
    if found["learned"] is False:
        said.append(
            "The last proposals are better neither than the first ones nor than the coarse scan's average by more than "
            "noise: nothing shows that the principal learned from what it asked."
        )
    if found["warning"]:
        said.append(f"Warning: {found['warning']}.")
    return said


def _gain(own: Mapping[str, Any]) -> str:
    """How the best proposal of a context compares with no mechanism."""
    value, error = own["gain"]["value"], own["gain"]["standard_error"]
    where = "" if own["context"] is None else f" in context {own['context']}"
    said = f"The best proposal{where} is {abs(value):.3g} {'above' if value >= 0 else 'below'} no mechanism"
    if error is None:
        return f"{said}; whether that is more than noise takes more measurements (design.references=2)."
    said += f" (standard error of the difference {error:.2g})"
    return f"{said}." if own["gain"]["beyond_noise"] else f"{said}: not beyond noise (three standard errors)."


def _beside_scan(own: Mapping[str, Any]) -> str:
    """Say so if a few blind vectors had found as much."""
    short = own["scan_best"]["value"] - own["best_proposal"]["value"]
    if short < 0:
        return ""
    return f" It is {short:.3g} below the best of the coarse scan, the highest of {len(own['scan'])} noisy means."
