"""Transcript of a run's calls to chat models: Markdown texts that loggers show beside the metrics."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.folder_files import open_file
from llmrl.core.records import TOKEN_COUNT_FIELDS
from llmrl.llms.call_log import CALL_LOG_NAME, VERDICT_KEY, StoredValueReader, get_call_id, parse_log_line, with_verdict
from llmrl.llms.images import IMAGES_KEY

CALLS_METRIC = "llm/calls"
"""Metric that is in all lines of `metrics.jsonl` to which calls are assigned."""

MAX_SHOWN_MESSAGES = 4
"""Maximum number of messages of a request that are shown, the last ones."""
MAX_SHOWN_CHARACTERS = 8000
"""Maximum number of characters of a message or reply that are shown, half from its start and half from its end."""
MAX_PENDING_VERDICTS = 10_000
"""Maximum number of calls in memory that wait for their verdicts."""
LINE_WIDTH = 120
"""Maximum length of lines in characters; TensorBoard does not show the rest of longer lines."""
N_TEXTS_BEFORE_THINNING = 128
"""Number of texts that are all returned at the start of a run.

Then every second text is returned up to twice this number, every fourth up to four times this number, and so on. For
example, about 500 of 8,000 texts are returned.
"""


class Transcript:
    """Function from a line of metrics to the Markdown of the last call since the previous line, or None.

    It must be called once for each line, in order. Calls are assigned to lines by time, so a resumed run gets the same
    texts for its earlier lines.

    Args:
        folder: the run folder, with or without a call log.
    """

    TAG = "llm/exchange"

    def __init__(self, folder: Path) -> None:
        self._path = folder / CALL_LOG_NAME
        self._offset = 0
        self._stored_values = StoredValueReader(self._path)
        self._next_call: dict[str, Any] | None = None  # next call, made after the time of the previous line
        self._calls_without_verdict: dict[tuple[str, str], dict[str, Any]] = {}
        self._n_exchanges = 0

    def __call__(self, line: Mapping[str, Any]) -> str | None:
        """Return the text for a line of `metrics.jsonl`; None if there is no new call or the text is thinned out."""
        if CALLS_METRIC not in line:
            return None
        newest_call, n_calls = None, 0
        while (call := self._next_call or self._read_call()) is not None and call["time"] <= line["time/unix"]:
            newest_call, n_calls, self._next_call = call, n_calls + 1, None
        self._next_call = call
        if newest_call is None:
            return None
        index, self._n_exchanges = self._n_exchanges, self._n_exchanges + 1
        stride = 1 << (index // N_TEXTS_BEFORE_THINNING).bit_length()
        return format_call(newest_call, n_calls) if index % stride == 0 else None

    def _read_call(self) -> dict[str, Any] | None:
        """Return the next call of the log; None if there is none yet. Invalid lines are skipped."""
        if not self._path.exists():
            return None
        with open_file(self._path) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return None
                start, self._offset = self._offset, self._offset + len(line)
                if self._stored_values.index_line(line, start):
                    continue
                call = parse_log_line(line)
                if call is None or not isinstance(call.get("time"), int | float):
                    continue
                if VERDICT_KEY in call:
                    if (judged_call := self._calls_without_verdict.pop(get_call_id(call), None)) is not None:
                        judged_call |= with_verdict(judged_call, call)
                elif "messages" in call:  # other lines describe attempts
                    call = self._stored_values.resolve_references(call)
                    # Verdicts of a batch are written after all its calls.
                    self._calls_without_verdict[get_call_id(call)] = call
                    if len(self._calls_without_verdict) > MAX_PENDING_VERDICTS:
                        del self._calls_without_verdict[next(iter(self._calls_without_verdict))]
                    return call
        return None


def format_call(call: Mapping[str, Any], n_calls: int = 1) -> str:
    """Return the Markdown of `call`, the last of `n_calls` calls since the previous line of metrics.

    All texts of models and prompts are in code blocks, so that they are not interpreted as markup.
    """
    position = f", the last of {n_calls} calls since the step before" if n_calls > 1 else ""
    facts = [
        f"asked for {_inline_code(call.get('purpose'))} with the prompt {_inline_code(call.get('prompt'))}{position}"
    ]
    messages = call.get("messages") or []
    n_omitted = len(messages) - MAX_SHOWN_MESSAGES
    if n_omitted > 0:
        facts.append(f"{n_omitted} earlier messages are left out here")
    parts = [f"{_inline_code(call.get('model'))} {'; '.join(facts)}."]
    # The reply comes first, because it is short and TensorBoard shows the start of a text.
    if "error" in call:
        parts += ["**No reply:**", _code_block(str(call["error"]))]
    else:
        parts += [f"**Reply**{_format_usage(call)}:", _code_block(str(call.get("reply")))]
        if call.get("valid"):
            parts += ["**Understood as:**", _code_block(json.dumps(call.get("parsed_reply"), ensure_ascii=False))]
        elif call.get("parse_error"):
            parts += ["**Not understood:**", _code_block(str(call["parse_error"]))]
        if call.get("thoughts"):
            parts += ["**Thought before:**", _code_block(str(call["thoughts"]))]
    for message in messages[-MAX_SHOWN_MESSAGES:]:
        parts += [f"**To it, as** {_inline_code(message.get('role'))}:", _code_block(str(message.get("content")))]
        if message.get(IMAGES_KEY):
            parts.append(f"with the pictures {', '.join(_inline_code(path) for path in message[IMAGES_KEY])}")
    return "\n\n".join(parts)


def _format_usage(call: Mapping[str, Any]) -> str:
    """Return validity, finish reason, token counts and cost of a call in round brackets; "" if all are unknown."""
    facts = []
    if call.get("valid") is not None:
        facts.append("valid" if call["valid"] else "**not valid**")
    if call.get("finish") not in (None, "", "stop"):
        facts.append(f"ended by {_inline_code(call['finish'])}")
    facts += [f"{call[name]:,} {name.replace('_', ' ')}" for name in TOKEN_COUNT_FIELDS if call.get(name) is not None]
    if call.get("cached"):
        facts.append("from the cache")
    elif call.get("cost") is not None:
        facts.append(f"{call['cost']:.4g} US dollars")
    return f" ({', '.join(facts)})" if facts else ""


def _code_block(text: str) -> str:
    """Return a fenced code block, whose fence is longer than any sequence of backticks in `text`."""
    if len(text) > MAX_SHOWN_CHARACTERS:
        half = MAX_SHOWN_CHARACTERS // 2
        note = f"[... {len(text) - 2 * half:,} characters left out here; all of them are in {CALL_LOG_NAME} ...]"
        text = f"{text[:half]}\n\n{note}\n\n{text[-half:]}"
    text = text.encode("utf-8", "replace").decode()  # UTF-8 cannot encode lone surrogates, which JSON may contain
    text = "\n".join(_wrap(line) for line in text.splitlines())
    fence = "`" * max([3, *(len(backticks) + 1 for backticks in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


def _wrap(line: str) -> str:
    """Return `line`, broken into lines of at most `LINE_WIDTH` characters with the same indentation."""
    if len(line) <= LINE_WIDTH:
        return line
    indent = line[: len(line) - len(line.lstrip())][: LINE_WIDTH // 2]
    return textwrap.fill(line, LINE_WIDTH, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False)


def _inline_code(value: Any) -> str:
    """Return a name as inline code, with "?" for characters that could be markup."""
    name = "".join(c if c.isalnum() or c in " -_./:()=,+" else "?" for c in str(value)).strip()
    return f"`{name or '?'}`"
