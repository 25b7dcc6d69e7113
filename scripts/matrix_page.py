"""The page docs/matrix.md: what became of every pair of parts, as tables that can be read back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from matrix_pairs import BUILDS, OMITTED, RUNS, SEARCHES, TABLES, UNASKED, Outcome, kinds, pairs, parts

from llmrl.core.errors import IncompatibilityReason

PAGE = Path(__file__).parents[1] / "docs" / "matrix.md"

Cells = Mapping[tuple[str, str, str], Outcome]
"""Outcomes by table, row and column."""

MARKS = {
    RUNS: ("✓", "runs"),
    SEARCHES: ("s", "runs: there is no mechanism, so the principal searches a policy, `agent=projection`"),
    BUILDS: ("✓°", "is built and planned; the model cannot be asked without a key or a server"),
    UNASKED: ("·", "runs, and asks no model, so any option of `llm` will do"),
    **{reason.value: (letter, reason.sentence) for letter, reason in zip("abcde", IncompatibilityReason, strict=True)},
    OMITTED: ("?", "is refused, and need not be"),
}
"""What stands in a cell, and what that means, by `Outcome.what`."""

TITLES = {
    "env-agent": "Environments and agents",
    "env-principal": "Environments and principals",
    "agent-teacher": "Agents and teachers",
    "agent-llm": "Agents and language models",
    "principal-citizen": "Principals and citizens that learn",
}
_ABOUT = {
    "env-agent": "`agent=teacher` plays `teacher=oracle`; those whose parameters are searched have `principal=random`.",
    "env-principal": "Where there is a mechanism, `agent=ppo` is governed.",
    "agent-teacher": "In `env=simple_doorkey`; with `teacher=none` in the first environment that the agent plays in.",
    "agent-llm": "In the first environment that the agent plays in.",
    "principal-citizen": "Two societies of a fishery, or one if the principal proposes single vectors. Chat models "
    "have `llm/learn=grpo`.",
}
_HEAD = """# Every part with every other

Do two parts work together? Each cell is the smallest experiment that has both: three steps of each game and one update,
a few episodes, or two proposals. `make matrix` makes this page. One pair, and what is said of it:

```bash
python scripts/matrix.py --pairs cleanup:ppo
```

A refusal is by nature if no option would change it. There are five such reasons
(`llmrl.core.errors.IncompatibilityReason`), and the error is an `Incompatible` with its reason. Any other refusal is an
omission.

Some parts are given what they need: `agent.text_channel`, `agent.bins`, `agent.data`, members of `agent=mixed`, vectors
of `principal=listed`, `env.observe` for a rule that reads a map, `env.welfare=utilitarian` for `principal=metagrad`,
`env.tax=true` in worlds of PettingZoo, and `agent.core=mlp` for a critic apart that would see maps. Societies begin
untrained.
"""


def page(cells: Cells) -> str:
    """Return the page's text."""
    text = [_HEAD, "| pairs | run | refused by nature | refused by omission |", "|---|---|---|---|"]
    for table, title in TITLES.items():
        counted = Counter(_count(cells[table, *pair]) for pair in pairs(table))
        text.append(f"| {title} | {counted['run']} | {counted['nature']} | {counted['omission']} |")
    text += ["", "| mark | the pair |", "|---|---|", *(f"| {mark} | {told} |" for mark, told in MARKS.values()), ""]
    for table, title in TITLES.items():
        text += [f"## {title}", "", _ABOUT[table], ""]
        if "llm" in TABLES[table]:
            text += ["One option stands for its kind:", ""]
            text += [f"* `{first}`: {', '.join(alike)}" for first, alike in kinds().items() if len(alike) > 1] + [""]
        text += [*_table(cells, table), ""]
    omitted = [(key, outcome) for key, outcome in cells.items() if outcome.what == OMITTED]
    if omitted:
        text += ["## Omissions", ""]
        text += [f"* {_said(key)}: {' '.join(outcome.said.split())}" for key, outcome in omitted] + [""]
    return "\n".join(text)


def _count(outcome: Outcome) -> str:
    return "run" if outcome.works else "omission" if outcome.what == OMITTED else "nature"


def _table(cells: Cells, table: str) -> list[str]:
    rows, columns = (parts(group) for group in TABLES[table])
    lines = ["| | " + " | ".join(f"`{column}`" for column in columns) + " |", "|---|" + ":-:|" * len(columns)]
    for row in rows:
        marks = (MARKS[cells[table, row, column].what][0] for column in columns)
        lines.append(f"| `{row}` | " + " | ".join(marks) + " |")
    return lines


def _said(key: tuple[str, str, str]) -> str:
    table, row, column = key
    groups = TABLES[table]
    return f"`{groups[0]}={row}`, `{groups[1]}={column}`"


_OMITTED = re.compile(r"^\* `(\w+)=(\w+)`, `(\w+)=(\w+)`: (.*)$", re.MULTILINE)


def read(text: str) -> dict[tuple[str, str, str], Outcome]:
    """Return the outcomes that a page holds, messages of omissions included."""
    whats = {mark: what for what, (mark, _) in MARKS.items()}
    messages = {(f"{a}-{b}", row, column): said for a, row, b, column, said in _OMITTED.findall(text)}
    found = {}
    for table, title in TITLES.items():
        _, _, after = text.partition(f"## {title}\n")
        lines = [_entries(line) for line in after.partition("\n## ")[0].splitlines() if line.startswith("|")]
        if not lines:
            continue
        (_, *columns), _, *rows = lines
        for row, *marks in rows:
            for column, mark in zip(columns, marks, strict=True):
                key = table, row.strip("`"), column.strip("`")
                found[key] = Outcome(whats[mark], messages.get(key, ""))
    return found


def _entries(line: str) -> list[str]:
    return [entry.strip() for entry in line.strip().strip("|").split("|")]
