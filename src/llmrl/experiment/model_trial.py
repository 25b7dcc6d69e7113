"""A trial of a language model: a small run of each family of tasks within a budget, and a page of the results."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.typed_values import format_override
from llmrl.experiment.experiment import Experiment
from llmrl.llms.cache import request_key
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
PAGE, NUMBERS, REPLAY = "trial.md", "trial.json", "replay"
HIDDEN = "http://redacted"
"""Replacement for the addresses of servers in a replay folder."""
_ADDRESSES = ("base_url", "api_base")


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


def run_families(
    overrides: Sequence[str], usd: float | None, folder: Path, families: Sequence[str] = ()
) -> dict[str, FamilyResult]:
    """Run the model that `overrides` choose in each family; write the page and the replay folder into `folder`.

    Replies that are there already are not requested again: the same call continues an interrupted trial.

    Args:
        overrides: overrides as for llmrl-train: `llm=<option>`, and its fields.
        usd: total budget, US dollars; None for models that cost nothing.
        folder: folder for all files.
        families: some of `FAMILIES`; empty: all.

    Raises:
        ConfigError: there is no such model or family, or it costs money and there is no budget.
    """
    family_names = list(families or FAMILIES)
    if unknown := [name for name in family_names if name not in FAMILIES]:
        raise ConfigError(f"families={unknown[0]} must be one of {', '.join(FAMILIES)}")
    _check_money(overrides, usd)
    results: dict[str, FamilyResult] = {}
    for i, family in enumerate(family_names):
        spending = sum(family_cost(folder / name) for name in family_names[:i])
        limit = None if usd is None else max(0.0, usd - spending) / (len(family_names) - i)
        results[family] = _run_family(family, overrides, limit, folder)
        write(folder, overrides, usd, results)
    return results


def family_cost(family: Path) -> float:
    """Return the US dollars that a family's calls have cost so far.

    Calls whose reply was lost count with their maximum cost.
    """
    return sum(
        call.get("cost") or 0.0 if "reply" in call else ((call.get("reserved") or {}).get("cost") or 0.0)
        for path in sorted(family.rglob(FILE_NAME))
        for call in read_calls(path)
        if not call.get("cached")
    )


def _check_money(overrides: Sequence[str], usd: float | None) -> None:
    """Raise ConfigError for a model that costs money, or may cost money, without a budget."""
    llm = _compose("player", overrides, Path("outputs")).config["llm"]
    free = llm.get("input_price") == 0 and llm.get("output_price") == 0
    if usd is None and "input_price" in llm and not free:
        raise ConfigError("this model may cost money; set the budget of the trial in US dollars, e.g. budget=5")


def _compose(family: str, overrides: Sequence[str], folder: Path, *extra_overrides: str) -> Experiment:
    # A replay folder has a part for each family.
    family_overrides = [
        format_override("llm.calls", f"{word.removeprefix('llm.calls=')}/{family}")
        if word.startswith("llm.calls=")
        else word
        for word in overrides
    ]
    root = format_override("output_root", str(folder / family))
    return Experiment.compose(
        f"experiment=trial/{family}", root, "llm.max_invalid=null", *family_overrides, *extra_overrides
    )


def _run_family(family: str, overrides: Sequence[str], usd: float | None, folder: Path) -> FamilyResult:
    limit = [] if usd is None else [format_override("llm.budget.usd", round(usd, 6))]
    experiment = _compose(family, overrides, folder, *limit)
    result = FamilyResult(estimate=dict(experiment.plan()).get("  cost", "").partition(":")[0])
    try:
        experiment.check()
        if isinstance(client := experiment.resources.model, ChatClient):
            result.model = client.label
        run = experiment.run()
        result.fallbacks = _fallbacks(run.folder)
    except BudgetExhausted as error:
        result.ended = f"its share of the budget is used up: {error}"
    except LLMError as error:
        result.ended = str(error)
    _count_calls(result, folder / family)
    _write_replay(folder, family)
    return result


def _fallbacks(run: Path) -> int | None:
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


def _write_replay(folder: Path, family: str) -> None:
    """Write a family's calls in a form that can be shared: the files that `llm=replay` needs, without server addresses.

    Keys are in no call log. Times and costs are left out.
    """
    target = folder / REPLAY / family
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    configs = sorted((folder / family).rglob("config.yaml"))
    if configs:
        import yaml

        llm = (yaml.safe_load(configs[0].read_text(encoding="utf-8")) or {}).get("llm") or {}
        facts = {name: llm.get(name) for name in ("context_window", "max_tokens", "thinking_budget")}
        (target / "config.yaml").write_text(yaml.safe_dump({"llm": facts}), encoding="utf-8")
    with (target / FILE_NAME).open("w", encoding="utf-8") as file:
        for path in sorted((folder / family).rglob(FILE_NAME)):
            for call in read_calls(path):
                if isinstance(call.get("reply"), str):
                    file.write(json.dumps(redact_call(call), ensure_ascii=False) + "\n")


def redact_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call without addresses of servers, and with the hash of the changed request."""
    identity = {name: HIDDEN if name in _ADDRESSES and x else x for name, x in call["identity"].items()}
    fields = {name: x for name, x in call.items() if name not in ("time", "spent", "cached", "attempts")}
    model = str(call["model"])
    for address in (str(call["identity"].get(name)) for name in _ADDRESSES if call["identity"].get(name)):
        model = model.replace(address, HIDDEN)
    request = ChatRequest(
        tuple(call["messages"]), call["schema"], repeat=call["repeat"], place=str(call.get("place", ""))
    )
    return fields | {"identity": identity, "model": model, "hash": request_key(identity, request, call["stream"])}


def write(folder: Path, overrides: Sequence[str], usd: float | None, results: dict[str, FamilyResult]) -> Path:
    """Write the page, and a file with its numbers; return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: asdict(result) for name, result in results.items()}
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1, ensure_ascii=False), encoding="utf-8")
    page = folder / PAGE
    page.write_text(format_page(overrides, usd, results), encoding="utf-8")
    return page


def format_page(overrides: Sequence[str], usd: float | None, results: dict[str, FamilyResult]) -> str:
    """Return the page as Markdown."""
    models = ", ".join(dict.fromkeys(result.model for result in results.values() if result.model)) or "no model"
    money = "" if usd is None else f" budget={usd:g}"
    costs = [result.cost for result in results.values()]
    total = None if None in costs else sum(cost or 0 for cost in costs)
    head = (
        f"# Trial of {models}\n\n`llmrl-llm trial {' '.join(overrides)}{money}`\n\n"
        f"Cost in all: {_dollars(total)}{'' if usd is None else f' of {_dollars(usd)}'}. Small runs: they show "
        "whether a model is understood and what it costs, not how good it is.\n\n"
    )
    columns, rows = result_table(results)
    lines = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])
    notes = "".join(_notes(name, result) for name, result in results.items())
    explained = (
        "\n\n*Invalid*: replies, repairs included, that were not what the task asked for.\n\n"
        f"`{REPLAY}/` holds all calls, without addresses or keys. From them this page is made again, offline, by\n\n"
        f"    llmrl-llm trial llm=replay llm.calls=<this folder>/{REPLAY}\n"
    )
    return head + lines + explained + notes


def result_table(results: dict[str, FamilyResult]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table with one column per family and one row per number."""
    cells = [_cells(family) for family in results.values()]
    return ["", *results], [[name, *(family[name] for family in cells)] for name in (cells[0] if cells else ())]


def _cells(result: FamilyResult) -> dict[str, str]:
    share = f" ({result.invalid / result.judged:.1%})" if result.judged else ""
    cached = result.cached_tokens
    part = "not told" if cached is None else f"{cached / result.prompt_tokens:.0%}" if result.prompt_tokens else "-"
    return {
        "replies": f"{result.replies:,}",
        "invalid": f"{result.invalid:,}{share}",
        "fallbacks": "not told" if result.fallbacks is None else f"{result.fallbacks:,}",
        "tokens in": _number_text(result.prompt_tokens),
        "of these from the provider's cache": part,
        "tokens out": _number_text(result.completion_tokens),
        "of these thoughts": _number_text(result.reasoning_tokens),
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


def _number_text(number: int | None) -> str:
    return "not told" if number is None else f"{number:,}"


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.4g}"
