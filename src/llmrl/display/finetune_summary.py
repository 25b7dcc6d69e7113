"""What is printed of a fine-tuning run: what was reached, and how the adapter is used."""

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
    """Print what was reached, and how the adapter is used."""
    for name, result in (read_results(run.folder) or {}).items():
        rows = [
            [measure.replace("_", " "), *(_cell(result[who][measure]) for who in _COLUMNS)]
            for measure in result["after"]
        ]
        title = f"{result['task']} ({name.replace('_', ' ')}), {result['prompts']} prompts, 95 % intervals"
        print_table(title, ["", *(column.replace("_", " ") for column in _COLUMNS)], rows, sides="l")
    shown = {k: v for k, v in run.summary.items() if isinstance(v, int | float | str)}
    print_rows(
        str(run.folder),
        [(k.replace("_", " "), f"{v:,.4g}" if isinstance(v, float) else f"{v}") for k, v in shown.items()],
    )
    print_validity_warning(terminal(), run.summary)
    terminal().print(f"Use it: {use_of(run.config, run.summary['adapter'], run.status.overrides)}", soft_wrap=True)


def use_of(config: dict[str, Any], adapter: str, overrides: list[str]) -> str:
    """The command of a search whose prompts are like those that an adapter was trained on."""
    model = [
        f"llm.{key}={_for_hydra(value)}" for key, value in (("model", config["llm"]["model"]), ("adapter", adapter))
    ]
    same = [typed for typed in overrides if _SAME.match(typed)]
    told = [f"search.{name}={config['dataset'][name]}" for name in ("iterations", "episodes")]
    return shlex.join(["llmrl-train", "principal=llm", "llm=local_chat", *model, *same, *told])


def _for_hydra(value: str) -> str:
    """A text as the value of an override: names of run folders have equals signs."""
    return value if _PLAIN.fullmatch(value) else quoted(value)


_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_SAME = re.compile(r"\+{0,2}((env|agent|prompts)[.=]|principal\.|llm\.(max_tokens|chat_template|context_window|dtype))")
_COLUMNS = ("before", "after", "difference", "random", "incumbent")


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:.3g}"
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
