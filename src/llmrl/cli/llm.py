"""`llmrl-llm`: check or try out a language model, total the calls of runs, or make a small model to be trained."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from llmrl.cli.small_model import add_arguments
from llmrl.run.command_exit import interruptible

if TYPE_CHECKING:
    from pydantic import BaseModel

    from llmrl.core.model_protocols import Scorer
    from llmrl.core.records import ChatReply
    from llmrl.llms.client import ChatClient

PROBE = "check"
"""Purpose of the test request, as logged."""
NUMBER = 7
"""The number that the prompt of `check` asks for."""
VALID_FORM = "a reply of the form asked for"
"""What `check` says of a usable reply; any other reply makes the command exit with 1."""
IGNORED = (
    "ignored: the reply lacks a field that only the schema names, so replies have their form only as far as the model "
    "follows the prompt; llm.structured=false sends no schemas"
)
"""What is printed of a server that takes a schema and does not keep to it."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.experiment.run_lookup import add_root

    p = argparse.ArgumentParser(prog="llmrl-llm", description=__doc__)
    commands = p.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="send one tiny request (well under a cent) and print what came back; exits with 1 if it is unusable",
        description="Send one tiny request: llmrl-llm check llm=gpt4o",
    )
    check.add_argument("overrides", nargs="+", help="as for llmrl-train: llm=<option>, and its fields llm.<field>=...")
    check.add_argument("--config-dir", type=Path, default=None, help="folder with options of your own")
    trial = commands.add_parser(
        "trial",
        help="try a model in all families, small and within some dollars, and write a page of what came of it",
        description="Try a model in all families, within some dollars: llmrl-llm trial llm=gpt4o_mini budget=1",
    )
    trial.add_argument(
        "overrides",
        nargs="+",
        help="llm=<option>, its fields, budget=<US dollars>, families=principal,search,teacher,player (all)",
    )
    trial.add_argument("--out", type=Path, default=None, help="folder of the page (outputs/trials/<what was typed>)")
    totals = commands.add_parser("totals", help="calls, tokens and money of all runs in a folder")
    totals.add_argument("folder", type=Path, help="outputs, a sweep, or one run; or run:<hash>, latest:<name>")
    add_root(totals)
    add_arguments(commands)
    return p


def check(overrides: Sequence[str], config_dir: Path | None = None) -> list[tuple[str, str]]:
    """Send one test request to the model that `overrides` choose; return rows (what, value) about its answer.

    Raises:
        LlmrlError: no model is chosen, or it did not answer.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.models import build_model
    from llmrl.experiment.resources import RunResources
    from llmrl.llms.client import ChatClient

    config = composed(overrides, config_dir, ("llm", "hardware", "seed", "trusted_modules", "dry_run"))
    means = RunResources(config, build_model)
    if config["llm"] is not None and config["llm"].get("batch"):
        means.checked_model  # noqa: B018  (this also checks that the provider has batches)
        # A batch may take a day; one request is sent without it.
        means = RunResources({**config, "llm": {**config["llm"], "batch": False}}, build_model)
    if (model := means.checked_model) is None:
        raise ConfigError("llm=none is no model; choose one with llm=<option>")
    return _check_chat(model) if isinstance(model, ChatClient) else _check_scorer(model)


def _check_chat(client: ChatClient) -> list[tuple[str, str]]:
    import time
    from dataclasses import replace

    from pydantic import BaseModel

    from llmrl.core.errors import LLMError
    from llmrl.core.records import ChatRequest
    from llmrl.llms.prompts import PromptFamily
    from llmrl.llms.reading.object_parser import parse_json
    from llmrl.llms.structured import InvalidReply, json_schema, read

    class Number(BaseModel):
        number: int

    class Probe(Number):
        word: Literal["blue", "green"]  # in the schema alone: who ignores the schema leaves it out

    client.forget()  # a cached answer would not test the model
    prompt = PromptFamily("cli", Path(__file__).with_name("prompts")).render("check")
    message = {"role": "user", "content": prompt.text}
    request = ChatRequest((message,), json_schema(Probe), PROBE, prompt.name, prompt.hash)
    asked = bool(getattr(client.provider, "structured", False))
    refusal = ""
    start = time.perf_counter()
    try:
        [reply] = client.chat([request])
    except LLMError as error:
        # A server that knows no schemas refuses the request as a whole.
        if not asked or not re.search(r"HTTP 4\d\d|BadRequest", str(error)):
            raise
        refusal = str(error)
        [reply] = client.chat([replace(request, schema=None)])
    seconds = time.perf_counter() - start
    form = VALID_FORM
    try:
        answer = read(reply, lambda said: parse_json(said.text, Number, said.cut))
        if answer.number != NUMBER:
            form = f"{VALID_FORM}, but with the number {answer.number} instead of {NUMBER}"
    except InvalidReply as fault:
        cut = "cut off at llm.max_tokens, which thoughts count toward: raise it; " if reply.cut else ""
        form = f"{cut}{fault}; such replies are shown to the model once to be repaired, then replaced and counted"
    if refusal:
        structured = f"refused, set llm.structured=false: {refusal}"
    elif asked:
        structured = "accepted and kept" if _is_read(reply, Probe) else IGNORED
    else:
        structured = "not asked for: the format is described in the prompt only"
    provider = client.provider
    return [
        ("model", client.label),
        ("reply", repr(reply.text[:200]) + (f" (finish: {reply.finish})" if reply.finish else "")),
        ("form", form),
        ("structured output", structured),
        ("latency", f"{seconds:.2f} s"),
        ("tokens", f"{_known(reply.prompt_tokens)} in, {_known(reply.completion_tokens)} out"),
        ("cost", "unknown: no prices or no token counts" if reply.cost is None else f"${reply.cost:.6f}"),
        ("context window", "unknown" if provider.context_window is None else f"{provider.context_window:,} tokens"),
    ]


def _is_read(reply: ChatReply, model: type[BaseModel]) -> bool:
    """Return whether a reply holds an object of a type."""
    from llmrl.llms.reading.object_parser import parse_json
    from llmrl.llms.structured import InvalidReply, read

    try:
        read(reply, lambda said: parse_json(said.text, model, said.cut))
    except InvalidReply:
        return False
    return True


def _check_scorer(scorer: Scorer) -> list[tuple[str, str]]:
    import time

    candidates = [" blue", " green", " made of cheese"]
    start = time.perf_counter()
    [scores] = scorer.score(["The colour of the sky is"], candidates).tolist()
    rows = [(f"log p({text!r})", f"{score:.3f}") for text, score in zip(candidates, scores, strict=True)]
    seconds = time.perf_counter() - start
    return [
        ("model", scorer.label),
        ("prompt", "'The colour of the sky is'"),
        *rows,
        ("latency", f"{seconds:.2f} s, loading included"),
    ]


def tried(overrides: Sequence[str], out: Path | None = None) -> tuple[Path, list[str], list[list[str]]]:
    """Try the model that `overrides` choose in all families; return the page, and the columns and rows of its table.

    Raises:
        ConfigError: an unknown model or family, an invalid budget, or a model that costs money without a budget.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.model_trial import PAGE, table, trial

    words = [word for word in overrides if not word.startswith(("budget=", "families="))]
    given = dict(word.split("=", 1) for word in overrides if word not in words)
    try:
        usd = float(given["budget"]) if "budget" in given else None
    except ValueError:
        raise ConfigError(f"budget={given['budget']}: a number of US dollars is needed") from None
    if usd is not None and not 0 <= usd < float("inf"):
        raise ConfigError(f"budget={given['budget']}: it must be 0 or more")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))[:80]
    folder = Path("outputs/trials") / name if out is None else out
    found = trial(words, usd, folder, [each for each in given.get("families", "").split(",") if each])
    columns, rows = table(found)
    return folder / PAGE, columns, rows


def totals(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table of calls: one row for each model of each run in `folder`, and their sum.

    Raises:
        ConfigError: `folder` does not exist, or no run in it has called a language model.
    """
    from llmrl.analysis.llm_calls import CallTotals, call_totals, summed
    from llmrl.core.errors import ConfigError

    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    runs = call_totals(folder)
    if not runs:
        raise ConfigError(f"no run in {folder} has asked a language model (there is no llm_calls.jsonl)")

    def cells(name: str, total: CallTotals) -> list[str]:
        invalid = f"{total.invalid / total.judged:.1%}" if total.judged else "-"
        counts = (total.calls, total.cached, total.failed, total.lost)
        tokens = (_known(total.prompt_tokens), _known(total.completion_tokens))
        return [name, ", ".join(total.models), *(f"{n:,}" for n in counts), invalid, *tokens, total.paid]

    found = [(str(run.relative_to(folder)), total) for run, models in runs.items() for total in models.values()]
    rows = [cells(run, total) for run, total in found]
    if len(found) > 1:
        rows.append(cells("all", summed(total for _, total in found)))
    columns = ["run", "model", "replies", "from cache", "failed", "lost", "invalid", "tokens in", "tokens out"]
    return [*columns, "paid, $"], rows


def _known(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def composed(overrides: Sequence[str], config_dir: Path | None, keys: Sequence[str]) -> dict[str, Any]:
    """Return some keys of the config of `llmrl-train` as plain data.

    Raises:
        ConfigError: an unknown option or field, or a missing value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    from llmrl.config.trust_options import only_typed
    from llmrl.core.errors import ConfigError
    from llmrl.core.secrets import refuse
    from llmrl.experiment.composition import composed as in_full

    with in_full("train", overrides, [] if config_dir is None else [config_dir]) as config:
        refuse(cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)))
        try:
            plain = {
                key: OmegaConf.to_object(config[key]) if OmegaConf.is_config(config[key]) else config[key]
                for key in keys
            }
        except MissingMandatoryValue as error:
            raise ConfigError(f"{error.full_key} has no default; add {error.full_key}=<value>") from error
        except OmegaConfBaseException as error:
            raise ConfigError(str(error)) from error
    refuse(plain)
    return only_typed(plain, overrides)


@interruptible("llmrl-llm")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `llmrl-llm`, with `argv` or else the process's arguments."""
    from llmrl.core.terminal import guard_terminal

    guard_terminal()
    args = parser().parse_args(argv)
    from llmrl.display.console import print_rows, print_table
    from llmrl.run.command_exit import ending

    with ending("llmrl-llm"):
        if args.command == "check":
            checked = check(args.overrides, args.config_dir)
            print_rows("One request", checked)
            if dict(checked).get("form", VALID_FORM) != VALID_FORM:
                raise SystemExit(1)
        elif args.command == "trial":
            page, columns, rows = tried(args.overrides, args.out)
            print_table("Trial", columns, rows)
            print(f"The page: {page}")
        elif args.command == "make":
            from llmrl.cli.small_model import make

            print_rows("A small model", make(args, composed(args.overrides, None, ("env", "seed", "trusted_modules"))))
        else:
            from llmrl.experiment.run_lookup import folder_of

            folder = folder_of(args.folder, args.output_root)
            print_table(str(folder), *totals(folder))


if __name__ == "__main__":
    main()
