"""Printed summary of a fine-tuning run, and the command that uses its adapter."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from llmrl.core.typed_values import quoted
from llmrl.display.console import print_rows, print_table, terminal
from llmrl.display.run_summary import print_validity_warning
from llmrl.finetuning.proposer_evaluation import read_results

if TYPE_CHECKING:
    from llmrl.run.run import Run


def print_finished(run: Run) -> None:
    """Print the results of a fine-tuning run, and the command that uses its adapter."""
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
    print_validity_warning(terminal(), run.summary)
    terminal().print(
        f"Use it: {adapter_command(run.config, run.summary['adapter'], run.status.overrides)}", soft_wrap=True
    )


def adapter_command(config: dict[str, Any], adapter: str, overrides: list[str]) -> str:
    """Return the command of a policy search with prompts like those that the adapter was trained on."""
    model = [
        f"llm.{key}={_quote_if_needed(value)}"
        for key, value in (("model", config["llm"]["model"]), ("adapter", adapter))
    ]
    shared_overrides = [override for override in overrides if _SHARED_KEYS.match(override)]
    dataset_options = [f"search.{name}={config['dataset'][name]}" for name in ("iterations", "episodes")]
    return shlex.join(["llmrl-train", "principal=llm", "llm=local_chat", *model, *shared_overrides, *dataset_options])


def _quote_if_needed(value: str) -> str:
    """Return a text as the value of an override, quoted if it needs quotes (run folders contain equals signs)."""
    return value if _PLAIN.fullmatch(value) else quoted(value)


_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_SHARED_KEYS = re.compile(
    r"\+{0,2}((env|agent|prompts)[.=]|principal\.|llm\.(max_tokens|chat_template|context_window|dtype))"
)
_COLUMNS = ("before", "after", "difference", "random", "incumbent")


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:.3g}"
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
