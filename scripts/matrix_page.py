"""Format and parse the page docs/matrix.md, which contains the outcome of every pair of parts as tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from matrix_pairs import (
    BUILDS,
    NO_MODEL,
    OMITTED,
    RUNS,
    SEARCHES,
    TABLES,
    Outcome,
    group_models,
    iterate_pairs,
    list_options,
)

from llmrl.core.errors import IncompatibilityReason

PAGE = Path(__file__).parents[1] / "docs" / "matrix.md"

Cells = Mapping[tuple[str, str, str], Outcome]
"""Outcomes by table, row and column."""

MARKS = {
    RUNS: ("✓", "runs"),
    SEARCHES: ("s", "runs without a mechanism: the principal searches a policy, `agent=projection`"),
    BUILDS: ("✓°", "is built and planned; calls of the model require a key or a server"),
    NO_MODEL: ("·", "runs without a language model, so that all options of `llm` are valid"),
    **{reason.value: (letter, reason.sentence) for letter, reason in zip("abcde", IncompatibilityReason, strict=True)},
    OMITTED: ("?", "is rejected unnecessarily"),
}
"""Mark of a cell and its meaning, by `Outcome.status`."""

TITLES = {
    "env-agent": "Environments and agents",
    "env-principal": "Environments and principals",
    "agent-teacher": "Agents and teachers",
    "agent-llm": "Agents and language models",
    "principal-citizen": "Principals and citizens that learn",
}
_DESCRIPTIONS = {
    "env-agent": "`agent=teacher` uses `teacher=oracle`; agents with searched parameters use `principal=random`.",
    "env-principal": "In environments with a mechanism, the agent is `agent=ppo`.",
    "agent-teacher": "In `env=simple_doorkey`; `teacher=none` in the first environment that supports the agent.",
    "agent-llm": "In the first environment that supports the agent.",
    "principal-citizen": "Two societies of a fishery, or one if the principal proposes single vectors. Chat models "
    "have `llm/learn=grpo`.",
}
_HEAD = """# Every part with every other

Which parts are compatible? Each cell is a minimal experiment with two parts: three steps of each game and one update,
a few episodes, or two proposals. `make matrix` generates this page. This command tests a pair and prints its message:

```bash
python scripts/matrix.py --pairs cleanup:ppo
```

Two parts are incompatible by nature if no option makes them compatible. There are five such reasons
(`llmrl.core.errors.IncompatibilityReason`), and the error is an `Incompatible` with its reason. Any other rejection is
an omission.

Some parts need further options, which are set: `agent.text_channel`, `agent.bins`, `agent.data`, members of
`agent=mixed`, vectors of `principal=listed`, `env.observe` for a rule that reads a grid, `env.welfare=utilitarian` for
`principal=metagrad`, `env.tax=true` in worlds of PettingZoo, and `agent.core=mlp` for a separate critic that would
observe grids. Societies are not pre-trained.
"""


def format_page(cells: Cells) -> str:
    """Return the text of the page."""
    text = [_HEAD, "| pairs | run | incompatible by nature | omissions |", "|---|---|---|---|"]
    for table, title in TITLES.items():
        counts = Counter(_classify(cells[table, *pair]) for pair in iterate_pairs(table))
        text.append(f"| {title} | {counts['run']} | {counts['nature']} | {counts['omission']} |")
    text += [
        "",
        "| mark | the pair |",
        "|---|---|",
        *(f"| {mark} | {meaning} |" for mark, meaning in MARKS.values()),
        "",
    ]
    for table, title in TITLES.items():
        text += [f"## {title}", "", _DESCRIPTIONS[table], ""]
        if "llm" in TABLES[table]:
            text += ["One option of each class is tested:", ""]
            groups = group_models().items()
            text += [f"* `{tested}`: {', '.join(options)}" for tested, options in groups if len(options) > 1] + [""]
        text += [*_format_table(cells, table), ""]
    omissions = [(key, outcome) for key, outcome in cells.items() if outcome.status == OMITTED]
    if omissions:
        text += ["## Omissions", ""]
        text += [f"* {_format_pair(key)}: {' '.join(outcome.message.split())}" for key, outcome in omissions] + [""]
    return "\n".join(text)


def _classify(outcome: Outcome) -> str:
    return "run" if outcome.works else "omission" if outcome.status == OMITTED else "nature"


def _format_table(cells: Cells, table: str) -> list[str]:
    rows, columns = (list_options(group) for group in TABLES[table])
    lines = ["| | " + " | ".join(f"`{column}`" for column in columns) + " |", "|---|" + ":-:|" * len(columns)]
    for row in rows:
        marks = (MARKS[cells[table, row, column].status][0] for column in columns)
        lines.append(f"| `{row}` | " + " | ".join(marks) + " |")
    return lines


def _format_pair(key: tuple[str, str, str]) -> str:
    table, row, column = key
    groups = TABLES[table]
    return f"`{groups[0]}={row}`, `{groups[1]}={column}`"


_OMISSION = re.compile(r"^\* `(\w+)=(\w+)`, `(\w+)=(\w+)`: (.*)$", re.MULTILINE)


def parse_page(text: str) -> dict[tuple[str, str, str], Outcome]:
    """Parse the outcomes in a page, including messages of omissions."""
    statuses = {mark: status for status, (mark, _) in MARKS.items()}
    messages = {
        (f"{row_group}-{column_group}", row, column): message
        for row_group, row, column_group, column, message in _OMISSION.findall(text)
    }
    outcomes = {}
    for table, title in TITLES.items():
        _, _, section = text.partition(f"## {title}\n")
        lines = [_split_cells(line) for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
        if not lines:
            continue
        (_, *columns), _, *rows = lines
        for row, *marks in rows:
            for column, mark in zip(columns, marks, strict=True):
                key = table, row.strip("`"), column.strip("`")
                outcomes[key] = Outcome(statuses[mark], messages.get(key, ""))
    return outcomes


def _split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
