"""A language model tried in every family, small and within a sum of money, and a page of what came of it."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.typed_values import typed
from llmrl.experiment.dictated_reply_checks import PURPOSE, controls_of, outcomes
from llmrl.experiment.experiment import Experiment
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.request_key import request_key

log = logging.getLogger(__name__)

FAMILIES = {
    "principal": "numbers of a mechanism: payments in an escape room",
    "search": "parameters of a linear policy for CartPole",
    "teacher": "plans for a room with a door and a key",
    "player": "hands of Blackjack, and lessons from them",
}
"""Families, `experiment=trial/<family>`, and what is asked there."""
CONTROLS = 12
"""Questions with a dictated answer, of each family: half as JSON, half in sentences."""
KEPT_BACK = 0.2
"""Share of a family's money that is kept for them."""
QUOTED, QUOTED_CHARACTERS = 2, 300
"""Replies that could not be read, or were read wrongly, that the page quotes of a family, and characters of each."""
PAGE, NUMBERS, REPLAY = "trial.md", "trial.json", "replay"
HIDDEN = "http://redacted"
"""Stands in a replay folder where the address of a server was."""
_ADDRESSES = ("base_url", "api_base")


@dataclass
class FamilyResult:
    """What came of a family.

    Attributes:
        replies: paid or out of the cache, dictated ones left out; `judged` had to have a form, `invalid` had not.
        fallbacks: questions without any valid reply; None where the run did not end.
        controls: number of dictated answers by form (`json`, `prose`) and outcome (`right`, `noncompliance`,
            `parsing_error`).
        prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, cost: of all replies, dictated ones included;
            None where one did not tell.
        latency: seconds, median and 95 % of the replies that were asked for.
        estimate: what a plan said that the run would cost; "" where it could not say.
        quoted: replies that were invalid or wrong, with what was found.
        ended: why it ended early; "" if it did not.
    """

    model: str = ""
    replies: int = 0
    judged: int = 0
    invalid: int = 0
    fallbacks: int | None = None
    failed: int = 0
    controls: dict[str, dict[str, int]] = field(default_factory=dict)
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost: float | None = 0.0
    latency: tuple[float, float] | None = None
    estimate: str = ""
    quoted: list[tuple[str, str]] = field(default_factory=list)
    ended: str = ""


def trial(
    overrides: Sequence[str], usd: float | None, folder: Path, families: Sequence[str] = ()
) -> dict[str, FamilyResult]:
    """Try the model that `overrides` choose in each family; the page and the replay folder are in `folder`.

    What is there already is not asked again: the same call goes on with an interrupted trial.

    Args:
        overrides: as for llmrl-train: `llm=<option>`, and its fields.
        usd: most US dollars that it may cost, in all; None for models that cost nothing.
        folder: where everything goes.
        families: some of `FAMILIES`; empty: all.

    Raises:
        ConfigError: there is no such model or family, or it costs money and nobody said how much it may.
    """
    chosen = list(families or FAMILIES)
    if unknown := [name for name in chosen if name not in FAMILIES]:
        raise ConfigError(f"families={unknown[0]}: there are {', '.join(FAMILIES)}")
    _check_money(overrides, usd)
    tried: dict[str, FamilyResult] = {}
    for i, family in enumerate(chosen):
        before = sum(spent(folder / name) for name in chosen[:i])
        left = None if usd is None else max(0.0, usd - before) / (len(chosen) - i)
        tried[family] = _try(family, overrides, left, folder)
        write(folder, overrides, usd, tried)
    return tried


def spent(family: Path) -> float:
    """US dollars that a family's calls have come to so far, those whose reply was lost at their most."""
    return sum(
        call.get("cost") or 0.0 if "reply" in call else ((call.get("reserved") or {}).get("cost") or 0.0)
        for path in sorted(family.rglob(FILE_NAME))
        for call in read_calls(path)
        if not call.get("cached")
    )


def _check_money(overrides: Sequence[str], usd: float | None) -> None:
    """Raise ConfigError for a model that costs money, or may, where no sum is given."""
    llm = _compose("player", overrides, Path("outputs")).config["llm"]
    free = llm.get("input_price") == 0 and llm.get("output_price") == 0
    if usd is None and "input_price" in llm and not free:
        raise ConfigError("say what the trial may cost, in US dollars: budget=5")


def _compose(family: str, overrides: Sequence[str], folder: Path, *more: str) -> Experiment:
    own = [_of_family(word, family) for word in overrides]
    root = typed("output_root", str(folder / family))
    return Experiment.compose(f"experiment=trial/{family}", root, "llm.max_invalid=null", *own, *more)


def _of_family(word: str, family: str) -> str:
    """Of a replay folder the family's part."""
    key, _, value = word.partition("=")
    return typed(key, f"{value}/{family}") if key == "llm.calls" else word


def _try(family: str, overrides: Sequence[str], usd: float | None, folder: Path) -> FamilyResult:
    def limit(share: float) -> list[str]:
        return [] if usd is None else [typed("llm.budget.usd", round(usd * share, 6))]

    experiment = _compose(family, overrides, folder, *limit(1 - KEPT_BACK))
    tried = FamilyResult(estimate=dict(experiment.plan()).get("  cost", "").partition(":")[0])
    dictated = folder / family / "controls.json"
    heard: list[ChatRequest] = []
    try:
        experiment.check()
        if isinstance(client := experiment.resources.model, ChatClient):
            tried.model, client.overhear = client.label, heard.append
        run = experiment.run()
        tried.fallbacks = _fallbacks(run.folder)
    except BudgetExhausted as error:
        tried.ended = f"its share of the money was used up: {error}"
    except LLMError as error:
        tried.ended = str(error)
    if heard and not dictated.is_file() and (not tried.ended or "used up" in tried.ended):
        try:
            _dictate(_compose(family, overrides, folder, *limit(KEPT_BACK)), heard, dictated)
        except LLMError as error:
            tried.ended = tried.ended or f"the dictated answers: {error}"
    _count(tried, folder / family)
    if dictated.is_file():
        found = json.loads(dictated.read_text(encoding="utf-8"))
        tried.controls = {
            form: dict(Counter(each["outcome"] for each in found if each["form"] == form)) for form in ("json", "prose")
        }
        bad = [each for each in found if each["outcome"] != "right"][:QUOTED]
        tried.quoted += [
            (each["reply"], f"dictated {json.dumps(each['expected'])}, read {json.dumps(each['read'])}") for each in bad
        ]
    _write_replay(folder, family)
    return tried


def _dictate(experiment: Experiment, heard: Sequence[ChatRequest], file: Path) -> None:
    """Ask some of the questions again with the answer in them; what came of it is kept in `file`."""
    client = experiment.resources.model
    assert isinstance(client, ChatClient)
    try:
        client.join_run(file.with_name("dictated"), lambda: False)
        controls = controls_of(heard, CONTROLS)
        found = outcomes(client, controls)
    finally:
        experiment.resources.close()
    rows = [
        {"outcome": outcome, "form": control.form, "expected": control.expected, "read": read, "reply": reply}
        for control, (outcome, reply, read) in zip(controls, found, strict=True)
    ]
    file.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


def _fallbacks(run: Path) -> int | None:
    """Questions of a finished run that ended in the fallback, by its last metrics."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if line]
    values = [row["llm/fallbacks"] for row in rows if "llm/fallbacks" in row]
    return int(values[-1]) if values else None


def _count(tried: FamilyResult, family: Path) -> None:
    """Add up the call logs of a family."""
    latencies: list[float] = []
    for path in sorted(family.rglob(FILE_NAME)):
        for call in read_calls(path):
            if "error" in call or call.get("unsettled"):
                tried.failed += 1
                continue
            tried.model = str(call["model"])
            dictated = call["purpose"] == PURPOSE
            tried.replies += not dictated
            tried.judged += not dictated and call.get("valid") is not None
            if not dictated and call.get("valid") is False:
                tried.invalid += 1
                if len(tried.quoted) < QUOTED:
                    tried.quoted.append((call["reply"], call["fault"]))
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost"):
                had, more = getattr(tried, name), call.get(name)
                setattr(tried, name, None if had is None or more is None else had + more)
            if not call["cached"]:
                latencies.append(call["latency"])
    if latencies:
        tried.latency = (float(np.median(latencies)), float(np.quantile(latencies, 0.95)))


def _write_replay(folder: Path, family: str) -> None:
    """The family's calls as others may have them: what `llm=replay` needs, without addresses of servers.

    Keys are in no call log. Times, and what was spent, are left out.
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
                    file.write(json.dumps(redacted(call), ensure_ascii=False) + "\n")


def redacted(call: dict[str, Any]) -> dict[str, Any]:
    """A call with no address in it, and the hash it then has."""
    identity = {name: HIDDEN if name in _ADDRESSES and x else x for name, x in call["identity"].items()}
    kept = {name: x for name, x in call.items() if name not in ("time", "spent", "cached", "attempts")}
    model = str(call["model"])
    for address in (str(call["identity"].get(name)) for name in _ADDRESSES if call["identity"].get(name)):
        model = model.replace(address, HIDDEN)
    request = ChatRequest(
        tuple(call["messages"]), call["schema"], repeat=call["repeat"], place=str(call.get("place", ""))
    )
    return kept | {"identity": identity, "model": model, "hash": request_key(identity, request, call["stream"])}


def write(folder: Path, overrides: Sequence[str], usd: float | None, tried: dict[str, FamilyResult]) -> Path:
    """Write the page, and its numbers beside it; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: asdict(replace(each, quoted=list(each.quoted))) for name, each in tried.items()}
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1, ensure_ascii=False), encoding="utf-8")
    page = folder / PAGE
    page.write_text(page_of(overrides, usd, tried), encoding="utf-8")
    return page


def page_of(overrides: Sequence[str], usd: float | None, tried: dict[str, FamilyResult]) -> str:
    """The page, in Markdown."""
    models = ", ".join(dict.fromkeys(each.model for each in tried.values() if each.model)) or "no model"
    money = "" if usd is None else f" budget={usd:g}"
    total = (
        None if any(each.cost is None for each in tried.values()) else sum(each.cost or 0 for each in tried.values())
    )
    head = (
        f"# Trial of {models}\n\n`llmrl-llm trial {' '.join(overrides)}{money}`\n\n"
        f"Cost in all: {_dollars(total)}{'' if usd is None else f' of {_dollars(usd)}'}. Small runs: they show "
        "whether a model is understood and what it costs, not how good it is.\n\n"
    )
    columns, rows = table(tried)
    lines = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])
    notes = "".join(_notes(name, each) for name, each in tried.items())
    explained = (
        "\n\n*Invalid*: replies, repairs included, that were not what the task asked for. *Dictated*: some of the "
        "questions were asked once more with the answer in them, to be given as JSON or in sentences. *Not followed*: "
        "the reply lacks a dictated value. *Parsing errors*: it has all of them and was refused or read as "
        "something else.\n\n"
        f"`{REPLAY}/` holds all calls, without addresses or keys. From them this page is made again, offline, by\n\n"
        f"    llmrl-llm trial llm=replay llm.calls=<this folder>/{REPLAY}\n"
    )
    return head + lines + explained + notes


def table(tried: dict[str, FamilyResult]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one column a family, one row a number."""
    cells = [_cells(each) for each in tried.values()]
    return ["", *tried], [[name, *(each[name] for each in cells)] for name in (cells[0] if cells else ())]


def _cells(each: FamilyResult) -> dict[str, str]:
    share = f" ({each.invalid / each.judged:.1%})" if each.judged else ""
    cached = each.cached_tokens
    part = "not told" if cached is None else f"{cached / each.prompt_tokens:.0%}" if each.prompt_tokens else "-"
    return {
        "replies": f"{each.replies:,}",
        "invalid": f"{each.invalid:,}{share}",
        "fallbacks": "not told" if each.fallbacks is None else f"{each.fallbacks:,}",
        **{
            f"dictated in {form}, {label}": str(each.controls[key].get(outcome, 0)) if each.controls else "none sent"
            for key, form in (("json", "JSON"), ("prose", "sentences"))
            for outcome, label in (
                ("right", "right"),
                ("noncompliance", "not followed"),
                ("parsing_error", "parsing errors"),
            )
        },
        "tokens in": _known(each.prompt_tokens),
        "of these from the provider's cache": part,
        "tokens out": _known(each.completion_tokens),
        "of these thoughts": _known(each.reasoning_tokens),
        "cost": _dollars(each.cost),
        "estimated, without the dictated ones": each.estimate or "not known ahead",
        "seconds, median": "-" if each.latency is None else f"{each.latency[0]:.2f}",
        "seconds, 95 %": "-" if each.latency is None else f"{each.latency[1]:.2f}",
    }


def _notes(name: str, each: FamilyResult) -> str:
    quoted = "".join(
        f"\n* {fault[:QUOTED_CHARACTERS]}\n\n  ```\n  {reply[:QUOTED_CHARACTERS]!r}\n  ```\n"
        for reply, fault in each.quoted
    )
    ended = f"\n**Ended early**: {each.ended}\n" if each.ended else ""
    lost = f"\n{each.failed} calls brought no reply.\n" if each.failed else ""
    return f"\n## {name}: {FAMILIES[name]}\n{ended}{lost}{quoted or chr(10) + 'Nothing to quote.' + chr(10)}"


def _known(number: int | None) -> str:
    return "not told" if number is None else f"{number:,}"


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.4g}"
