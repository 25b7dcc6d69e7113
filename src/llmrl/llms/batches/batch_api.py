"""The batch APIs of OpenAI and Anthropic: make a batch, find one, look how far it is, fetch its answers.

OpenAI: https://platform.openai.com/docs/api-reference/batch. Anthropic:
https://docs.claude.com/en/api/creating-message-batches. Few requests of either, through httpx: the libraries that have
both APIs would be two more, and neither tells a refusal from a reply that was lost.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from llmrl.core.errors import LLMError
from llmrl.core.secrets import redact
from llmrl.llms.batches.litellm_requests import Prepared
from llmrl.llms.hosted import LONGEST_MESSAGE, refuses
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after

LISTED = 100
"""Batches that are looked through for one whose name is not known."""
CHAT = "/chat/completions"
"""How the address of OpenAI's chat completions ends, of which a batch may be made."""
PASSING_ERRORS = ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")
"""Errors of Anthropic's that another attempt may mend."""
CLOCKS_S = 60.0
"""Seconds by which a provider's clock may differ from ours."""


@dataclass(frozen=True)
class Failure:
    """Why a request of a batch has no reply; nothing is charged for it. `passing`: another attempt may do."""

    message: str
    passing: bool


class NotThereError(LLMError):
    """The provider has no such thing, or has it no more (HTTP 404, 410)."""


Answer = Mapping[str, Any] | Failure
"""The provider's answer to a request, as if it had been sent by itself; or why there is none."""


@dataclass(frozen=True)
class Progress:
    """How far a batch is: whether it has ended, and how many of its requests have; `failed` says why all have none."""

    ended: bool
    done: int = 0
    failed: Failure | None = None
    files: tuple[str, ...] = ()


class BatchWire(ABC):
    """A provider's batch API.

    Args:
        timeout: seconds of silence after which a request is given up.

    Attributes:
        most: requests of a batch at most.
        most_bytes: of all of them together.
    """

    most: int
    most_bytes: int

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @abstractmethod
    def upload(self, requests: Mapping[str, Prepared]) -> str:
        """Send what a batch is made of ahead, where the provider wants it; returns its name there, "" for nothing."""

    @abstractmethod
    def create(self, requests: Mapping[str, Prepared], uploaded: str) -> str:
        """Make a batch of requests by their names; returns the batch's name."""

    @abstractmethod
    def find(self, one: Prepared, uploaded: str, n: int, since: float) -> list[str]:
        """Batches that may be one of `n` requests that was made after `since` (seconds of `time.time`), and whose name
        nobody has heard."""

    @abstractmethod
    def look(self, one: Prepared, batch: str) -> Progress:
        """How far a batch is."""

    @abstractmethod
    def answers(self, one: Prepared, batch: str, progress: Progress) -> dict[str, Answer]:
        """Answers of a batch that has ended, by the names of requests."""

    def _call(self, method: str, url: str, one: Prepared, **what: Any) -> httpx.Response:
        """One request with the headers of `one`; raises TransientError or LLMError, as `Provider.complete`."""
        dropped = ("content-length", "content-type", "host", "connection", "accept-encoding")
        headers = {name: value for name, value in one.headers.items() if name not in dropped}
        try:
            # Redirects are not followed: they would take the key to wherever they lead.
            response = httpx.request(method, url, headers=headers, timeout=self.timeout, **what)
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            message = f"{method} {httpx.URL(url).path}: {type(error).__name__}: {_short(str(error))}"
            raise TransientError(message, refused=refused) from None
        if response.is_success:
            return response
        status = response.status_code
        message = f"{method} {httpx.URL(url).path}: HTTP {status}: {_short(response.text)}"
        if status in (404, 410):
            raise NotThereError(message, refused=True)
        if status in RETRIABLE_STATUS:
            wait = parse_retry_after(response.headers.get("retry-after"))
            raise TransientError(message, wait, refused=refuses(status))
        raise LLMError(message, refused=refuses(status))

    def _listed(self, url: str, one: Prepared) -> Iterator[Mapping[str, Any]]:
        """The newest batches of the account."""
        listed = _object(self._call("GET", url, one, params={"limit": LISTED}))
        yield from listed.get("data") or []


class OpenAIBatches(BatchWire):
    """OpenAI's batch API: a file of requests, a batch of it, a file of answers and one of failures."""

    most = 50_000
    most_bytes = 150_000_000

    def upload(self, requests: Mapping[str, Prepared]) -> str:
        one = next(iter(requests.values()))
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{CHAT}", "body": each.body})
            for name, each in requests.items()
        ]
        file = ("requests.jsonl", "\n".join(lines).encode(), "application/jsonl")
        made = self._call("POST", f"{_base(one)}/files", one, data={"purpose": "batch"}, files={"file": file})
        return _name(made)

    def create(self, requests: Mapping[str, Prepared], uploaded: str) -> str:
        one = next(iter(requests.values()))
        body = {"input_file_id": uploaded, "endpoint": f"/v1{CHAT}", "completion_window": "24h"}
        return _name(self._call("POST", f"{_base(one)}/batches", one, json=body))

    def find(self, one: Prepared, uploaded: str, n: int, since: float) -> list[str]:
        if not uploaded:
            return []
        return [str(b["id"]) for b in self._listed(f"{_base(one)}/batches", one) if b.get("input_file_id") == uploaded]

    def look(self, one: Prepared, batch: str) -> Progress:
        said = _object(self._call("GET", f"{_base(one)}/batches/{batch}", one))
        counts = said.get("request_counts") or {}
        done = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
        ended = said.get("status") in ("completed", "failed", "expired", "cancelled")
        wrong = (said.get("errors") or {}).get("data") or []
        message = _short("; ".join(f"{each.get('code')}: {each.get('message')}" for each in wrong)) or "no reason given"
        # The account has too much under way: later there is room.
        passing = any(each.get("code") == "token_limit_exceeded" for each in wrong)
        failed = Failure(f"the batch failed: {message}", passing) if said.get("status") == "failed" else None
        files = tuple(str(said[name]) for name in ("output_file_id", "error_file_id") if said.get(name))
        return Progress(ended, done, failed, files)

    def answers(self, one: Prepared, batch: str, progress: Progress) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for file in progress.files:
            for line in _lines(self._call("GET", f"{_base(one)}/files/{file}/content", one)):
                response = line.get("response") or {}
                status, body = int(response.get("status_code") or 0), response.get("body")
                wrong = line.get("error") or (body.get("error") if isinstance(body, dict) else None) or {}
                if status == 200 and isinstance(body, dict):
                    found[str(line["custom_id"])] = body
                else:
                    code = str(wrong.get("code") or status)
                    passing = status in RETRIABLE_STATUS or code == "batch_expired"
                    found[str(line["custom_id"])] = Failure(_short(f"{code}: {wrong.get('message')}"), passing)
        return found


class AnthropicBatches(BatchWire):
    """Anthropic's Message Batches API: one request with all others in it, and a stream of results."""

    most = 100_000
    most_bytes = 200_000_000

    def upload(self, requests: Mapping[str, Prepared]) -> str:
        return ""

    def create(self, requests: Mapping[str, Prepared], uploaded: str) -> str:
        one = next(iter(requests.values()))
        body = {"requests": [{"custom_id": name, "params": each.body} for name, each in requests.items()]}
        return _name(self._call("POST", f"{one.url}/batches", one, json=body))

    def find(self, one: Prepared, uploaded: str, n: int, since: float) -> list[str]:
        from datetime import datetime

        def fits(batch: Mapping[str, Any]) -> bool:
            made = datetime.fromisoformat(str(batch["created_at"]).replace("Z", "+00:00")).timestamp()
            counts = batch.get("request_counts") or {}
            return made >= since - CLOCKS_S and sum(int(x) for x in counts.values()) == n

        return [str(b["id"]) for b in self._listed(f"{one.url}/batches", one) if fits(b)]

    def look(self, one: Prepared, batch: str) -> Progress:
        said = _object(self._call("GET", f"{one.url}/batches/{batch}", one))
        counts = said.get("request_counts") or {}
        done = sum(int(n) for name, n in counts.items() if name != "processing")
        return Progress(said.get("processing_status") == "ended", done)

    def answers(self, one: Prepared, batch: str, progress: Progress) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for line in _lines(self._call("GET", f"{one.url}/batches/{batch}/results", one)):
            result = line.get("result") or {}
            kind = result.get("type")
            if kind == "succeeded":
                found[str(line["custom_id"])] = result["message"]
                continue
            wrong = (result.get("error") or {}).get("error") or result.get("error") or {}
            passing = kind == "expired" or wrong.get("type") in PASSING_ERRORS
            found[str(line["custom_id"])] = Failure(_short(f"{kind}: {wrong.get('message', '')}".rstrip(": ")), passing)
        return found


def wire_of(provider: str, timeout: float) -> BatchWire | None:
    """Return the batch API of a provider, by the name that litellm has for it; None where it has none that is known."""
    kinds: dict[str, Callable[[float], BatchWire]] = {"openai": OpenAIBatches, "anthropic": AnthropicBatches}
    return kinds[provider](timeout) if provider in kinds else None


def _base(one: Prepared) -> str:
    """The address of OpenAI's API with its version, from that of a request."""
    if not one.url.endswith(CHAT):
        raise LLMError(f"{httpx.URL(one.url).path} is no address that a batch can be made of", refused=True)
    return one.url.removesuffix(CHAT)


def _short(text: str) -> str:
    """What a provider says, on one line, without the key that it may quote."""
    return redact(" ".join(text.split()))[:LONGEST_MESSAGE]


def _object(response: httpx.Response) -> Mapping[str, Any]:
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TransientError(f"{response.request.url.path}: the answer is no JSON object")
    return found


def _name(response: httpx.Response) -> str:
    name = _object(response).get("id")
    if not isinstance(name, str) or not name:
        raise TransientError(f"{response.request.url.path}: the answer names nothing that was made")
    return name


def _lines(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    for line in response.text.split("\n"):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise TransientError(f"{response.request.url.path}: a line is no JSON object")
        yield found
