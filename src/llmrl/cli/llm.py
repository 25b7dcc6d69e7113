"""`llmrl-llm`: check a language model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    from llmrl.core.model_protocols import Scorer
    from llmrl.llms.client import ChatClient

TEST_PURPOSE = "check"
"""Purpose of the test request in the call log."""
REQUESTED_NUMBER = 7
"""Number that the prompt of `check` requests."""
VALID_FORMAT_TEXT = "the requested format"
"""Text of the row `format` for a valid reply; with any other text in this row, the command exits with 1."""
SCHEMA_IGNORED_TEXT = (
    "ignored: the reply lacks a field that only the schema contains, so only the prompt determines the format of "
    "replies; llm.structured=false sends no schemas"
)
"""Text of the row `structured output` for a server that accepts a schema but whose reply does not follow it."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="llmrl-llm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="send one short request (well under a cent) and print the reply; exits with 1 if the reply is invalid",
        description="Send one short request: llmrl-llm check llm=gpt4o",
    )
    check.add_argument("overrides", nargs="+", help="as for llmrl-train: llm=<option>, and its fields llm.<field>=...")
    check.add_argument("--config-dir", type=Path, default=None, help="folder with your own option files")
    return parser


def check(overrides: Sequence[str], config_dir: Path | None = None) -> list[tuple[str, str]]:
    """Send a test request to the model that `overrides` choose; return pairs (label, text) about the reply.

    Raises:
        LlmrlError: no model is chosen, or the model does not reply.
    """
    from llmrl.config.permissions import with_permissions
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.composition import compose_config, to_plain
    from llmrl.experiment.models import build_model
    from llmrl.experiment.resources import RunResources
    from llmrl.llms.client import ChatClient

    with compose_config("train", overrides, [] if config_dir is None else [config_dir]) as composition:
        full_config = to_plain(composition)
    keys = ("llm", "hardware", "seed", "trusted_modules", "dry_run")
    resources = RunResources(with_permissions({key: full_config[key] for key in keys}), build_model)
    if (model := resources.checked_model) is None:
        raise ConfigError("llm=none is not a model; choose one with llm=<option>")
    return _check_chat(model) if isinstance(model, ChatClient) else _check_scorer(model)


def _check_chat(client: ChatClient) -> list[tuple[str, str]]:
    """Return rows about a chat model's reply: its format, support of schemas, latency, tokens and cost."""
    import time
    from dataclasses import replace

    from pydantic import BaseModel

    from llmrl.core.errors import LLMError
    from llmrl.core.records import ChatRequest
    from llmrl.llms.hosted import HostedProvider
    from llmrl.llms.invalid_reply import InvalidReply
    from llmrl.llms.prompts import PromptFamily
    from llmrl.llms.reading.object_parser import parse_object
    from llmrl.llms.structured import apply_parser, json_schema

    class Number(BaseModel):
        number: int

    class Probe(Number):
        word: Literal["blue", "green"]  # not in the prompt, so replies that ignore the schema lack this field

    client.services.cache = None  # a cached reply would not test the model
    prompt = PromptFamily("cli", Path(__file__).with_name("prompts")).render("check")
    message = {"role": "user", "content": prompt.text}
    request = ChatRequest((message,), json_schema(Probe), TEST_PURPOSE, prompt.name, prompt.hash)
    uses_schema = isinstance(client.provider, HostedProvider) and client.provider.settings.structured
    refusal = ""
    start = time.perf_counter()
    try:
        [reply] = client.chat([request])
    except LLMError as error:
        # A server without support of schemas may refuse the request as malformed.
        if not uses_schema or not re.search(r"HTTP (?:400|415|422)|BadRequest|Unprocessable", str(error)):
            raise
        refusal = str(error)
        start = time.perf_counter()
        [reply] = client.chat([replace(request, schema=None)])
    latency_seconds = time.perf_counter() - start
    parsed_reply: Number | None = None
    format_text, schema_support = VALID_FORMAT_TEXT, "accepted and followed"
    try:
        parsed_reply = apply_parser(
            reply, lambda completion: parse_object(completion.text, Number, completion.is_truncated)
        )
        if parsed_reply.number != REQUESTED_NUMBER:
            format_text = f"{VALID_FORMAT_TEXT}, but the number {parsed_reply.number} instead of {REQUESTED_NUMBER}"
    except InvalidReply as error:
        truncation = "cut off at llm.max_tokens, which includes thoughts; increase it; " if reply.is_truncated else ""
        format_text = (
            f'{truncation}{error}; the request asks for {{"number": {REQUESTED_NUMBER}}}. A run asks the model once to '
            "repair such a reply, and replaces a second invalid one"
        )
    if refusal:
        schema_support = f"refused by the server ({refusal}); set llm.structured=false"
    elif not uses_schema:
        schema_support = "not used: only the prompt describes the format"
    elif parsed_reply is None:
        schema_support = "accepted, but unknown whether followed: the reply is invalid"
    else:
        try:
            apply_parser(reply, lambda completion: parse_object(completion.text, Probe, completion.is_truncated))
        except InvalidReply:
            schema_support = SCHEMA_IGNORED_TEXT
    provider = client.provider
    return [
        ("model", client.label),
        ("reply", repr(reply.text[:200]) + (f" (finish: {reply.finish})" if reply.finish else "")),
        ("format", format_text),
        ("structured output", schema_support),
        ("latency", f"{latency_seconds:.2f} s"),
        ("tokens", f"{_format_count(reply.prompt_tokens)} in, {_format_count(reply.completion_tokens)} out"),
        ("cost", "unknown: no prices or no token counts" if reply.cost is None else f"${reply.cost:.6f}"),
        ("context window", "unknown" if provider.context_window is None else f"{provider.context_window:,} tokens"),
    ]


def _check_scorer(scorer: Scorer) -> list[tuple[str, str]]:
    """Score three continuations of a sentence; return rows with their log-probabilities in nats, and the latency."""
    import time

    candidates = [" blue", " green", " made of cheese"]
    start = time.perf_counter()
    [scores] = scorer.score(["The color of the sky is"], candidates).tolist()
    rows = [(f"log p({text!r})", f"{score:.3f}") for text, score in zip(candidates, scores, strict=True)]
    seconds = time.perf_counter() - start
    return [
        ("model", scorer.label),
        ("prompt", "'The color of the sky is'"),
        *rows,
        ("latency", f"{seconds:.2f} s, loading included"),
    ]


def _format_count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


@console_command("llmrl-llm")
def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script `llmrl-llm`, with `argv` or else the process's arguments."""
    args = build_parser().parse_args(argv)
    from llmrl.display.console import print_fields

    fields = check(args.overrides, args.config_dir)
    print_fields("One request", fields)
    if dict(fields).get("format", VALID_FORMAT_TEXT) != VALID_FORMAT_TEXT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
