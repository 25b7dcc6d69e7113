"""What a chat model was asked and what it answered, as Markdown beside a run's metrics: the call log, for reading."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrl.core.folder_files import open_file
from llmrl.core.records import REPLY_COUNTS
from llmrl.llms.call_log import FILE_NAME, JUDGED, address_of, as_record, with_verdict
from llmrl.llms.images import IMAGES
from llmrl.llms.stored_values import ValueReader

CALLS = "llm/calls"
"""Metric that marks the lines to which calls belong: those that tell the model's totals."""

MESSAGES = 4
"""Most messages of a question that are shown, the last ones."""
CHARACTERS = 8000
"""Most characters of a message or reply that are shown: its beginning and its end."""
LARGEST_BATCH = 10_000
"""Calls that a verdict is looked for among."""
COLUMNS = 120
"""Width that lines are wrapped to: TensorBoard cuts what is wider than its card."""
ALL_OF_FIRST = 128
"""So many exchanges are all shown; then every second until there were twice as many, every fourth until there were four
times as many, and so on. That is about 500 of 8,000."""


class Transcript:
    """The newest call up to each line of metrics, as Markdown; None where no call was made since the line before.

    To be asked once for each line, in their order. Lines and calls are brought together by their times, so a run that
    goes on from a checkpoint gets the same texts for the lines it kept as when it wrote them.

    Args:
        folder: the run folder; there need not be a call log in it.
    """

    TAG = "llm/exchange"

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._position = 0
        self._values = ValueReader(self._path)
        self._ahead: dict[str, Any] | None = None  # read already, and made after the line that was asked for last
        self._unjudged: dict[tuple[str, str], dict[str, Any]] = {}
        self._exchanges = 0

    def __call__(self, line: Mapping[str, Any]) -> str | None:
        """The Markdown for a line of `metrics.jsonl`."""
        if CALLS not in line:
            return None
        newest, calls = None, 0
        for call in self._calls_until(line["time/unix"]):
            newest, calls = call, calls + 1
        if newest is None:
            return None
        index, self._exchanges = self._exchanges, self._exchanges + 1
        stride = 1
        while index >= ALL_OF_FIRST * stride:
            stride *= 2
        return markdown(newest, calls) if index % stride == 0 else None

    def _calls_until(self, unix: float) -> Iterator[dict[str, Any]]:
        """The calls not asked for before that were made until the Unix time `unix`, oldest first."""
        while self._ahead is None or self._ahead["time"] <= unix:
            if self._ahead is not None:
                yield self._ahead
            self._ahead = self._read()
            if self._ahead is None:
                return

    def _read(self) -> dict[str, Any] | None:
        """The next call of the log, if there is one by now; lines that a kill cut short are left out."""
        if not self._path.exists():
            return None
        with open_file(self._path) as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return None
                start, self._position = self._position, self._position + len(line)
                if self._values.add(line, start):
                    continue
                call = as_record(line)
                if call is None or not isinstance(call.get("time"), int | float):
                    continue
                if JUDGED in call:
                    if (judged := self._unjudged.pop(address_of(call), None)) is not None:
                        judged |= with_verdict(judged, call)
                elif "messages" in call:  # what attempts came to stands between the calls
                    return self._waiting(self._values.resolve(call))
        return None

    def _waiting(self, call: dict[str, Any]) -> dict[str, Any]:
        """A call whose verdict may follow; those of a batch do when all its replies are there."""
        self._unjudged[address_of(call)] = call
        if len(self._unjudged) > LARGEST_BATCH:
            del self._unjudged[next(iter(self._unjudged))]
        return call


def markdown(call: Mapping[str, Any], of: int = 1) -> str:
    """One call of the log; `of` is how many calls it is the last of.

    All that a model or a prompt said stands in code blocks, where nothing is markup.
    """
    which = f", the last of {of} calls since the step before" if of > 1 else ""
    facts = [f"asked for {_name(call.get('purpose'))} with the prompt {_name(call.get('prompt'))}{which}"]
    messages = call.get("messages") or []
    left_out = len(messages) - MESSAGES
    if left_out > 0:
        facts.append(f"{left_out} earlier messages are left out here")
    parts = [f"{_name(call.get('model'))} {'; '.join(facts)}."]
    # The reply first: it is short, and TensorBoard shows the beginning.
    if "error" in call:
        parts += ["**No reply:**", _block(str(call["error"]))]
    else:
        parts += [f"**Reply**{_what_it_took(call)}:", _block(str(call.get("reply")))]
        if call.get("valid"):
            parts += ["**Understood as:**", _block(json.dumps(call.get("understood"), ensure_ascii=False))]
        elif call.get("fault"):
            parts += ["**Not understood:**", _block(str(call["fault"]))]
        if call.get("thoughts"):
            parts += ["**Thought before:**", _block(str(call["thoughts"]))]
    for message in messages[-MESSAGES:]:
        parts += [f"**To it, as** {_name(message.get('role'))}:", _block(str(message.get("content")))]
        if message.get(IMAGES):
            parts.append(f"with the pictures {', '.join(_name(each) for each in message[IMAGES])}")
    return "\n\n".join(parts)


def _what_it_took(call: Mapping[str, Any]) -> str:
    facts = []
    if call.get("valid") is not None:
        facts.append("valid" if call["valid"] else "**not valid**")
    if call.get("finish") not in (None, "", "stop"):
        facts.append(f"ended by {_name(call['finish'])}")
    for name in REPLY_COUNTS:
        if call.get(name) is not None:
            facts.append(f"{call[name]:,} {name.replace('_', ' ')}")
    if call.get("cached"):
        facts.append("from the cache")
    elif call.get("cost") is not None:
        facts.append(f"{call['cost']:.4g} US dollars")
    return f" ({', '.join(facts)})" if facts else ""


def _block(text: str) -> str:
    """A fenced code block; the fence is longer than any run of backticks inside."""
    if len(text) > CHARACTERS:
        half = CHARACTERS // 2
        note = f"[... {len(text) - 2 * half:,} characters left out here; all of them are in {FILE_NAME} ...]"
        text = f"{text[:half]}\n\n{note}\n\n{text[-half:]}"
    text = "\n".join(_wrapped(line) for line in _encodable(text).splitlines())
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _wrapped(line: str) -> str:
    """`line`, broken where it is wider than `COLUMNS`; what was indented stays indented."""
    if len(line) <= COLUMNS:
        return line
    indent = line[: len(line) - len(line.lstrip())][: COLUMNS // 2]
    return textwrap.fill(
        line, COLUMNS, subsequent_indent=indent, replace_whitespace=False, break_on_hyphens=False, drop_whitespace=True
    )


def _name(value: Any) -> str:
    """A name as code in running text, without characters that could end it."""
    name = "".join(c if c.isalnum() or c in " -_./:()=,+" else "?" for c in str(value)).strip()
    return f"`{name or '?'}`"


def _encodable(text: str) -> str:
    """Lone surrogates, which JSON may contain and UTF-8 cannot, become question marks."""
    return text.encode("utf-8", "replace").decode()
