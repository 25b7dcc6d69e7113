"""Clients of the batch APIs of OpenAI and Anthropic: create a batch, find one, query its progress, fetch its answers.

OpenAI: https://platform.openai.com/docs/api-reference/batch. Anthropic:
https://docs.claude.com/en/api/creating-message-batches. The few requests are sent with httpx, because the official
libraries would be two more dependencies and do not distinguish a refused request from a lost reply.
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
from llmrl.llms.hosted import MAX_MESSAGE_LENGTH, is_refusal
from llmrl.llms.litellm_requests import RecordedHttpRequest
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after

MAX_LISTED = 100
"""Number of newest batches that are searched for one whose name is unknown."""
CHAT = "/chat/completions"
"""End of the address of OpenAI's chat completions, the requests that a batch may contain."""
PASSING_ERRORS = ("api_error", "overloaded_error", "rate_limit_error", "timeout_error")
"""Anthropic's errors that may not occur again in another attempt."""
MAX_CLOCK_SKEW_S = 60.0
"""Maximum difference between a provider's clock and the local clock, in seconds."""


@dataclass(frozen=True)
class Failure:
    """Reason why a request of a batch has no reply; it costs nothing. `passing`: another attempt may succeed."""

    message: str
    passing: bool


class NotFoundError(LLMError):
    """The provider has no such object, or has deleted it (HTTP 404, 410)."""


Answer = Mapping[str, Any] | Failure
"""Provider's answer to a request, as if it had been sent individually; or the reason why there is none."""


@dataclass(frozen=True)
class Progress:
    """Progress of a batch.

    `done` counts finished requests, and `failed` is the reason if the batch as a whole failed.
    """

    ended: bool
    done: int = 0
    failed: Failure | None = None
    files: tuple[str, ...] = ()


class BatchWire(ABC):
    """Client of a provider's batch API.

    Args:
        timeout: seconds without data after which a request is given up.

    Attributes:
        max_requests: maximum number of requests in a batch.
        max_bytes: maximum size of a batch, in bytes.
    """

    max_requests: int
    max_bytes: int

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @abstractmethod
    def upload(self, requests: Mapping[str, RecordedHttpRequest]) -> str:
        """Upload the requests of a batch if the provider requires it; return the file's name there, or ""."""

    @abstractmethod
    def create(self, requests: Mapping[str, RecordedHttpRequest], uploaded: str) -> str:
        """Create a batch of requests, given by name; return the batch's name."""

    @abstractmethod
    def find(self, request: RecordedHttpRequest, uploaded: str, n: int, since: float) -> list[str]:
        """Return the names of batches that may be a batch that was created but whose name is unknown.

        The batch has `n` requests and was created after `since` (seconds of `time.time`).
        """

    @abstractmethod
    def query_progress(self, request: RecordedHttpRequest, batch: str) -> Progress:
        """Return the progress of a batch."""

    @abstractmethod
    def answers(self, request: RecordedHttpRequest, batch: str, progress: Progress) -> dict[str, Answer]:
        """Return the answers of a batch that has ended, by the names of requests."""

    def _call(self, method: str, url: str, request: RecordedHttpRequest, **options: Any) -> httpx.Response:
        """Send one request with the headers of `request`; raise TransientError or LLMError, as `Provider.complete`."""
        transport_headers = ("content-length", "content-type", "host", "connection", "accept-encoding")
        headers = {name: value for name, value in request.headers.items() if name not in transport_headers}
        try:
            # Redirects are not followed, because they would send the key to another address.
            response = httpx.request(method, url, headers=headers, timeout=self.timeout, **options)
        except httpx.HTTPError as error:
            is_unconnected = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            message = f"{method} {httpx.URL(url).path}: {type(error).__name__}: {_shorten(str(error))}"
            raise TransientError(message, refused=is_unconnected) from None
        if response.is_success:
            return response
        status = response.status_code
        message = f"{method} {httpx.URL(url).path}: HTTP {status}: {_shorten(response.text)}"
        if status in (404, 410):
            raise NotFoundError(message, refused=True)
        if status in RETRIABLE_STATUS:
            wait = parse_retry_after(response.headers.get("retry-after"))
            raise TransientError(message, wait, refused=is_refusal(status))
        raise LLMError(message, refused=is_refusal(status))

    def _newest_batches(self, url: str, request: RecordedHttpRequest) -> Iterator[Mapping[str, Any]]:
        """Yield the account's newest batches."""
        page = _json_object(self._call("GET", url, request, params={"limit": MAX_LISTED}))
        yield from page.get("data") or []


class OpenAIBatches(BatchWire):
    """Client of OpenAI's batch API: a file of requests, a batch of it, and files of answers and of failures."""

    max_requests = 50_000
    max_bytes = 150_000_000

    def upload(self, requests: Mapping[str, RecordedHttpRequest]) -> str:
        first_request = next(iter(requests.values()))
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{CHAT}", "body": request.body})
            for name, request in requests.items()
        ]
        file = ("requests.jsonl", "\n".join(lines).encode(), "application/jsonl")
        response = self._call(
            "POST", f"{_base_url(first_request)}/files", first_request, data={"purpose": "batch"}, files={"file": file}
        )
        return _created_id(response)

    def create(self, requests: Mapping[str, RecordedHttpRequest], uploaded: str) -> str:
        first_request = next(iter(requests.values()))
        body = {"input_file_id": uploaded, "endpoint": f"/v1{CHAT}", "completion_window": "24h"}
        return _created_id(self._call("POST", f"{_base_url(first_request)}/batches", first_request, json=body))

    def find(self, request: RecordedHttpRequest, uploaded: str, n: int, since: float) -> list[str]:
        if not uploaded:
            return []
        return [
            str(b["id"])
            for b in self._newest_batches(f"{_base_url(request)}/batches", request)
            if b.get("input_file_id") == uploaded
        ]

    def query_progress(self, request: RecordedHttpRequest, batch: str) -> Progress:
        status = _json_object(self._call("GET", f"{_base_url(request)}/batches/{batch}", request))
        counts = status.get("request_counts") or {}
        done = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
        is_complete = status.get("status") in ("completed", "failed", "expired", "cancelled")
        errors = (status.get("errors") or {}).get("data") or []
        message = (
            _shorten("; ".join(f"{error.get('code')}: {error.get('message')}" for error in errors)) or "no reason given"
        )
        # The account has too many pending tokens; another attempt may succeed later.
        passing = any(error.get("code") == "token_limit_exceeded" for error in errors)
        failure = Failure(f"the batch failed: {message}", passing) if status.get("status") == "failed" else None
        files = tuple(str(status[name]) for name in ("output_file_id", "error_file_id") if status.get(name))
        return Progress(is_complete, done, failure, files)

    def answers(self, request: RecordedHttpRequest, batch: str, progress: Progress) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for file in progress.files:
            for line in _json_lines(self._call("GET", f"{_base_url(request)}/files/{file}/content", request)):
                response = line.get("response") or {}
                status, body = int(response.get("status_code") or 0), response.get("body")
                errors = line.get("error") or (body.get("error") if isinstance(body, dict) else None) or {}
                if status == 200 and isinstance(body, dict):
                    answers[str(line["custom_id"])] = body
                else:
                    code = str(errors.get("code") or status)
                    passing = status in RETRIABLE_STATUS or code == "batch_expired"
                    answers[str(line["custom_id"])] = Failure(_shorten(f"{code}: {errors.get('message')}"), passing)
        return answers


class AnthropicBatches(BatchWire):
    """Client of Anthropic's Message Batches API: one request that contains all others, and a stream of results."""

    max_requests = 100_000
    max_bytes = 200_000_000

    def upload(self, requests: Mapping[str, RecordedHttpRequest]) -> str:
        return ""

    def create(self, requests: Mapping[str, RecordedHttpRequest], uploaded: str) -> str:
        first_request = next(iter(requests.values()))
        body = {"requests": [{"custom_id": name, "params": request.body} for name, request in requests.items()]}
        return _created_id(self._call("POST", f"{first_request.url}/batches", first_request, json=body))

    def find(self, request: RecordedHttpRequest, uploaded: str, n: int, since: float) -> list[str]:
        from datetime import datetime

        def is_candidate(batch: Mapping[str, Any]) -> bool:
            created_at = datetime.fromisoformat(str(batch["created_at"]).replace("Z", "+00:00")).timestamp()
            counts = batch.get("request_counts") or {}
            return created_at >= since - MAX_CLOCK_SKEW_S and sum(int(x) for x in counts.values()) == n

        return [str(b["id"]) for b in self._newest_batches(f"{request.url}/batches", request) if is_candidate(b)]

    def query_progress(self, request: RecordedHttpRequest, batch: str) -> Progress:
        status = _json_object(self._call("GET", f"{request.url}/batches/{batch}", request))
        counts = status.get("request_counts") or {}
        done = sum(int(n) for name, n in counts.items() if name != "processing")
        return Progress(status.get("processing_status") == "ended", done)

    def answers(self, request: RecordedHttpRequest, batch: str, progress: Progress) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for line in _json_lines(self._call("GET", f"{request.url}/batches/{batch}/results", request)):
            result = line.get("result") or {}
            kind = result.get("type")
            if kind == "succeeded":
                answers[str(line["custom_id"])] = result["message"]
                continue
            errors = (result.get("error") or {}).get("error") or result.get("error") or {}
            passing = kind == "expired" or errors.get("type") in PASSING_ERRORS
            answers[str(line["custom_id"])] = Failure(
                _shorten(f"{kind}: {errors.get('message', '')}".rstrip(": ")), passing
            )
        return answers


def make_batch_wire(provider: str, timeout: float) -> BatchWire | None:
    """Return the batch API of a provider, by litellm's name for it; None if it is not supported."""
    kinds: dict[str, Callable[[float], BatchWire]] = {"openai": OpenAIBatches, "anthropic": AnthropicBatches}
    return kinds[provider](timeout) if provider in kinds else None


def _base_url(request: RecordedHttpRequest) -> str:
    """Return the address of OpenAI's API, including its version, for a request."""
    if not request.url.endswith(CHAT):
        raise LLMError(
            f"batches accept requests to addresses that end in {CHAT}, got {httpx.URL(request.url).path}; set "
            "llm.batch=false",
            refused=True,
        )
    return request.url.removesuffix(CHAT)


def _shorten(text: str) -> str:
    """Return a provider's message on one line, without the key that it may quote."""
    return redact(" ".join(text.split()))[:MAX_MESSAGE_LENGTH]


def _json_object(response: httpx.Response) -> Mapping[str, Any]:
    """Return the JSON object of a response; raise TransientError if it is none."""
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TransientError(f"{response.request.url.path}: expected a JSON object in the answer")
    return content


def _created_id(response: httpx.Response) -> str:
    """Return the id of the created object; raise TransientError if there is none."""
    name = _json_object(response).get("id")
    if not isinstance(name, str) or not name:
        raise TransientError(f"{response.request.url.path}: the answer has no id of the created object")
    return name


def _json_lines(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a response with one per line."""
    for line in response.text.split("\n"):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise TransientError(f"{response.request.url.path}: expected a JSON object on each line of the answer")
        yield content
