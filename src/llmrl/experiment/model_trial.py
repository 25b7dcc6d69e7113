"""A trial of a language model: a small run of each family of tasks within a budget, and a page of the results."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.typed_values import format_override
from llmrl.experiment.experiment import Experiment
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.llms.client import ChatClient

log = logging.getLogger(__name__)

FAMILIES = {
    "principal": "numbers of a mechanism: payments in an escape room",
    "search": "parameters of a linear policy for CartPole",
    "teacher": "plans for a room with a door and a key",
    "player": "hands of Blackjack, and lessons from them",
}
"""Families, `experiment=trial/<family>`, with their tasks."""
MAX_QUOTES, MAX_QUOTE_CHARACTERS = 2, 300
"""Maximum number of invalid replies of a family that the page quotes, and of characters of each."""
PAGE_NAME, NUMBERS_NAME = "trial.md", "trial.json"
"""Names of the page, and of the file with its numbers."""


@dataclass
class FamilyResult:
    """The result of a family.

    Attributes:
        model: label of the model.
        replies: number of replies, from the model or the cache.
        judged: number of replies that must have a given form.
        invalid: number of those that do not have it.
        fallbacks: number of requests without any valid reply; None if the run did not finish.
        failed: number of calls without a reply.
        prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, cost: totals of all replies; None if unknown
            for one of them.
        latency: median and 95 % quantile of the latency of replies from the model, seconds.
        estimate: cost of the run that a plan estimated; "" if unknown.
        quoted: (reply, reason) of some invalid replies.
        ended: reason why the run ended early; "" if it did not.
    """

    model: str = ""
    replies: int = 0
    judged: int = 0
    invalid: int = 0
    fallbacks: int | None = None
    failed: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost: float | None = 0.0
    latency: tuple[float, float] | None = None
    estimate: str = ""
    quoted: list[tuple[str, str]] = field(default_factory=list)
    ended: str = ""


def run_model_trial(
    overrides: Sequence[str], budget: float | None, folder: Path, families: Sequence[str] = ()
) -> dict[str, FamilyResult]:
    """Run the model that `overrides` choose in each family; write the page of results into `folder`.

    Replies that are there already are not requested again: the same call continues an interrupted trial.

    Args:
        overrides: overrides as for llmrl-train: `llm=<option>`, and its fields.
        budget: total budget, US dollars; None for models that cost nothing.
        folder: folder for all files.
        families: some of `FAMILIES`; empty: all.

    Raises:
        ConfigError: there is no such model or family, or it costs money and there is no budget.
    """
    family_names = list(families or FAMILIES)
    if unknown := [name for name in family_names if name not in FAMILIES]:
        raise ConfigError(f"families={unknown[0]} must be one of {', '.join(FAMILIES)}")
    llm = _compose("player", overrides, Path("outputs")).config["llm"]
    is_free = llm.get("input_price") == 0 and llm.get("output_price") == 0
    if budget is None and "input_price" in llm and not is_free:
        raise ConfigError("this model may cost money; set the budget of the trial in US dollars, e.g. budget=5")
    results: dict[str, FamilyResult] = {}
    for i, family in enumerate(family_names):
        spent_usd = sum(sum_family_cost(folder / name) for name in family_names[:i])
        family_usd = None if budget is None else max(0.0, budget - spent_usd) / (len(family_names) - i)
        results[family] = _run_family(family, overrides, family_usd, folder)
        write_results(folder, overrides, budget, results)
    return results


def sum_family_cost(family: Path) -> float:
    """Return the US dollars that a family's calls have cost so far.

    Calls whose reply was lost count with their maximum cost.
    """
    return sum(
        call.get("cost") or 0.0 if "reply" in call else ((call.get("reserved") or {}).get("cost") or 0.0)
        for path in sorted(family.rglob(FILE_NAME))
        for call in read_calls(path)
        if not call.get("cached")
    )


def _compose(family: str, overrides: Sequence[str], folder: Path, *extra_overrides: str) -> Experiment:
    root = format_override("output_root", str(folder / family))
    return Experiment.compose(f"experiment=trial/{family}", root, "llm.max_invalid=null", *overrides, *extra_overrides)


def _run_family(family: str, overrides: Sequence[str], budget: float | None, folder: Path) -> FamilyResult:
    budget_overrides = [] if budget is None else [format_override("llm.budget.usd", round(budget, 6))]
    experiment = _compose(family, overrides, folder, *budget_overrides)
    result = FamilyResult(estimate=dict(experiment.plan()).get("  cost", "").partition(":")[0])
    try:
        experiment.check()
        if isinstance(client := experiment.resources.model, ChatClient):
            result.model = client.label
        run = experiment.run()
        result.fallbacks = _count_fallbacks(run.folder)
    except BudgetExhausted as error:
        result.ended = f"its share of the budget is used up: {error}"
    except LLMError as error:
        result.ended = str(error)
    _count_calls(result, folder / family)
    return result


def _count_fallbacks(run: Path) -> int | None:
    """Return the number of requests of a finished run that ended in the fallback, by its last metrics."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if line]
    values = [row["llm/fallbacks"] for row in rows if "llm/fallbacks" in row]
    return int(values[-1]) if values else None


def _count_calls(result: FamilyResult, family: Path) -> None:
    """Add up the call logs of a family."""
    latencies: list[float] = []
    for path in sorted(family.rglob(FILE_NAME)):
        for call in read_calls(path):
            if "error" in call or call.get("unsettled"):
                result.failed += 1
                continue
            result.model = str(call["model"])
            result.replies += 1
            result.judged += call.get("valid") is not None
            if call.get("valid") is False:
                result.invalid += 1
                if len(result.quoted) < MAX_QUOTES:
                    result.quoted.append((call["reply"], call["fault"]))
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost"):
                total, increment = getattr(result, name), call.get(name)
                setattr(result, name, None if total is None or increment is None else total + increment)
            if not call["cached"]:
                latencies.append(call["latency"])
    if latencies:
        result.latency = (float(np.median(latencies)), float(np.quantile(latencies, 0.95)))


def write_results(
    folder: Path, overrides: Sequence[str], budget: float | None, results: dict[str, FamilyResult]
) -> None:
    """Write the page, and a file with its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    results_by_family = {name: asdict(result) for name, result in results.items()}
    (folder / NUMBERS_NAME).write_text(json.dumps(results_by_family, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / PAGE_NAME).write_text(format_page(overrides, budget, results), encoding="utf-8")


def format_page(overrides: Sequence[str], budget: float | None, results: dict[str, FamilyResult]) -> str:
    """Return the page as Markdown."""
    models = ", ".join(dict.fromkeys(result.model for result in results.values() if result.model)) or "no model"
    budget_option = "" if budget is None else f" budget={budget:g}"
    costs = [result.cost for result in results.values()]
    total = None if None in costs else sum(cost or 0 for cost in costs)
    heading = (
        f"# Trial of {models}\n\n`llmrl-llm trial {' '.join(overrides)}{budget_option}`\n\n"
        f"Cost in all: {_dollars(total)}{'' if budget is None else f' of {_dollars(budget)}'}. Small runs: they show "
        "whether a model is understood and what it costs, not how good it is.\n\n"
    )
    columns, rows = format_result_table(results)
    lines = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])
    family_notes = "".join(_notes(name, result) for name, result in results.items())
    explanation = "\n\n*Invalid*: replies, repairs included, that were not what the task asked for.\n"
    return heading + lines + explanation + family_notes


def format_result_table(results: dict[str, FamilyResult]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table with one column per family and one row per number."""
    cells = [_result_cells(family) for family in results.values()]
    return ["", *results], [[name, *(family[name] for family in cells)] for name in (cells[0] if cells else ())]


def _result_cells(result: FamilyResult) -> dict[str, str]:
    invalid_percentage = f" ({result.invalid / result.judged:.1%})" if result.judged else ""
    cached_tokens, n_tokens = result.cached_tokens, result.prompt_tokens
    cached = "not told" if cached_tokens is None else f"{cached_tokens / n_tokens:.0%}" if n_tokens else "-"
    return {
        "replies": f"{result.replies:,}",
        "invalid": f"{result.invalid:,}{invalid_percentage}",
        "fallbacks": "not told" if result.fallbacks is None else f"{result.fallbacks:,}",
        "tokens in": _format_count(result.prompt_tokens),
        "of these from the provider's cache": cached,
        "tokens out": _format_count(result.completion_tokens),
        "of these thoughts": _format_count(result.reasoning_tokens),
        "cost": _dollars(result.cost),
        "estimated": result.estimate or "not known ahead",
        "seconds, median": "-" if result.latency is None else f"{result.latency[0]:.2f}",
        "seconds, 95 %": "-" if result.latency is None else f"{result.latency[1]:.2f}",
    }


def _notes(name: str, result: FamilyResult) -> str:
    quotes = "".join(
        f"\n* {reason[:MAX_QUOTE_CHARACTERS]}\n\n  ```\n  {reply[:MAX_QUOTE_CHARACTERS]!r}\n  ```\n"
        for reply, reason in result.quoted
    )
    end_note = f"\n**Ended early**: {result.ended}\n" if result.ended else ""
    failure_note = f"\n{result.failed} calls brought no reply.\n" if result.failed else ""
    return f"\n## {name}: {FAMILIES[name]}\n{end_note}{failure_note}{quotes or chr(10) + 'Nothing to quote.' + chr(10)}"


def _format_count(number: int | None) -> str:
    return "not told" if number is None else f"{number:,}"


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.4g}"
