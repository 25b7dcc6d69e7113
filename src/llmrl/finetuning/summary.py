"""Printed summary of a fine-tuning run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from llmrl.core.typed_values import format_override
from llmrl.display.console import print_line, print_rows, print_table
from llmrl.display.results import print_validity_warning
from llmrl.finetuning.proposer_evaluation import read_results

if TYPE_CHECKING:
    from llmrl.run.run import Run


def print_finished(run: Run) -> None:
    """Print the results of a fine-tuning run, and the options that use its adapter."""
    for name, result in (read_results(run.folder) or {}).items():
        rows = [
            [measure.replace("_", " "), *(_cell(result[player][measure]) for player in _COLUMNS)]
            for measure in result["after"]
        ]
        title = f"{result['task']} ({name.replace('_', ' ')}), {result['prompts']} prompts, 95 % intervals"
        print_table(title, ["", *(column.replace("_", " ") for column in _COLUMNS)], rows, sides="l")
    scalars = {k: v for k, v in run.summary.items() if isinstance(v, int | float | str)}
    print_rows(
        str(run.folder),
        [(k.replace("_", " "), f"{v:,.4g}" if isinstance(v, float) else f"{v}") for k, v in scalars.items()],
    )
    print_validity_warning(run.summary)
    options = adapter_options(run.config["llm"]["model"], run.summary["adapter"])
    print_line(f"Use it in llmrl-train, with the same env=, agent= and principal.*: {options}")


def adapter_options(model: str, adapter: str) -> str:
    """Return the options of a policy search with an adapter, quoted for a shell."""
    values = {"llm.model": model, "llm.adapter": adapter}
    return shlex.join(
        ["principal=llm", "llm=local_chat", *(format_override(key, value) for key, value in values.items())]
    )


_COLUMNS = ("before", "after", "difference", "random", "incumbent")


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:.3g}"
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
