"""Real HTTP servers that behave like the batch APIs of OpenAI and Anthropic, and misbehave on request.

with FakeBatchServer("openai", reply=lambda messages: "hello") as server:
    server.faults["create"] += ["429", "lost"]    # the next two attempts to make a batch
    ...  # ask `server.url`, with llm.batch=true or without

Their objects have every field of the providers' API documents (`tests/llms/test_batch_servers.py` holds them to these).
"""

import email
import itertools
import json
import re
import threading
import time
from collections import Counter, defaultdict, deque
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler

from api_documents import REPLIES
from loopback import LoopbackServer, reset

OPERATIONS = ("upload", "create", "list", "look", "fetch", "chat")
FAULTS = ("pass", "429", "500", "404", "echo", "lost", "malformed")
"""`pass` is none; `echo` is a refusal that quotes the key; `lost`: it is done, and the answer does not arrive."""
STAGES = {"openai": ("validating", "in_progress", "finalizing"), "anthropic": ("in_progress",)}
"""What a look says, one after another, before the end."""
ENDS = {"openai": "completed", "anthropic": "ended"}


@dataclass
class Batch:
    """A batch: its requests by `custom_id`, looks so far, and results once it has ended."""

    id: str
    requests: dict[str, dict]
    input_file: str = ""
    created: float = field(default_factory=time.time)
    looks: int = 0
    results: list[dict] | None = None


class FakeBatchServer(LoopbackServer):
    """A server on a port of its own.

    Args:
        provider: `openai` or `anthropic`.
        reply: from messages to the text of the reply.
        key: demanded, if given.
        fate: from messages to what becomes of a request in a batch: `succeeded`, `errored` (the provider's fault),
            `invalid` (refused for good), `expired` or `canceled`.
        ends: how OpenAI's batches end: `completed`, `failed` (at once, for `reason`) or `expired`.

    Attributes:
        faults: what goes wrong with the next requests, by operation (`OPERATIONS`).
        hold: while it is set, batches go on.
        batches, files: that were made, by name.
        asked: operations, oldest first.
        answered: how often each question was answered, and so is paid, by its last message.
        singles: chat requests that came one by one.
    """

    def __init__(
        self, provider, reply=lambda messages: "hello", key=None, fate=lambda messages: "succeeded", ends=None
    ):
        self.provider, self.reply, self.key, self.fate = provider, reply, key, fate
        self.ends, self.reason = ends or ENDS[provider], "invalid_request"
        self.faults = defaultdict(deque)
        self.hold = threading.Event()
        self.batches, self.files, self.asked, self.answered = {}, {}, [], Counter()
        self.singles = 0
        self._numbers, self._lock = itertools.count(1), threading.RLock()
        super().__init__(self._handler())

    @property
    def url(self):
        """The address to give a client: with the version for OpenAI, without for Anthropic."""
        return self.address + ("/v1" if self.provider == "openai" else "")

    @property
    def sizes(self):
        """Requests of each batch, oldest first."""
        return [len(batch.requests) for batch in self.batches.values()]

    def number(self):
        return f"{next(self._numbers):06d}"

    def message(self, body):
        """Return the answer to one request, which is paid with it."""
        with self._lock:
            self.answered[_text(body["messages"][-1]["content"])] += 1
        text, answer = self.reply(_plain(body)), deepcopy(REPLIES[self.provider]) | {"model": body["model"]}
        if self.provider == "openai":
            answer["choices"][0]["message"]["content"] = text
        else:
            answer["content"][0]["text"] = text
        return answer

    def look(self, batch):
        """Advance a batch by one look and return whether it has ended."""
        with self._lock:
            if not self.hold.is_set():
                batch.looks += 1
            if batch.results is None and batch.looks > len(STAGES[self.provider]):
                make = self._openai_result if self.provider == "openai" else self._anthropic_result
                results = [] if self.ends == "failed" else [make(*request) for request in batch.requests.items()]
                # No provider promises an order.
                batch.results = results[1::2] + results[0::2][::-1]
            return batch.results is not None

    def _openai_result(self, name, body):
        fate = "expired" if self.ends == "expired" else self.fate(_plain(body))
        line = {"id": f"batch_req_{self.number()}", "custom_id": name, "response": None, "error": None}
        if fate == "succeeded":
            return line | {"response": {"status_code": 200, "request_id": "r", "body": self.message(body)}}
        if fate in ("errored", "invalid"):
            error = {"message": f"it went wrong with {self.key}", "type": "server_error", "param": None, "code": None}
            status = 500 if fate == "errored" else 400
            return line | {"response": {"status_code": status, "request_id": "r", "body": {"error": error}}}
        code = {"expired": "batch_expired", "canceled": "batch_cancelled"}[fate]
        return line | {"error": {"code": code, "message": "This request could not be executed in time."}}

    def _anthropic_result(self, name, body):
        fate = self.fate(_plain(body))
        result = {"type": "errored" if fate == "invalid" else fate}
        if fate == "succeeded":
            result["message"] = self.message(body)
        elif fate in ("errored", "invalid"):
            kind = "api_error" if fate == "errored" else "invalid_request_error"
            error = {"type": kind, "message": f"it went wrong with {self.key}"}
            result["error"] = {"type": "error", "error": error, "request_id": None}
        return {"custom_id": name, "result": result}

    def shown(self, batch):
        """Return a batch as the provider tells of it."""
        return (self._openai_batch if self.provider == "openai" else self._anthropic_batch)(batch)

    def _openai_batch(self, batch):
        done, lines = batch.results is not None, batch.results or []
        good = [line for line in lines if (line["response"] or {}).get("status_code") == 200]
        status = self.ends if done else STAGES["openai"][min(batch.looks, 2)]
        files = {}
        for kind, part in (("output", good), ("error", [line for line in lines if line not in good])):
            if part:
                self.files[f"file-{kind}-{batch.id}"] = "\n".join(json.dumps(line) for line in part) + "\n"
                files[f"{kind}_file_id"] = f"file-{kind}-{batch.id}"
        wrong = {"code": self.reason, "message": "no", "param": None, "line": 1}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": batch.input_file,
            "completion_window": "24h",
            "status": status,
            "created_at": int(batch.created),
            **({"errors": {"object": "list", "data": [wrong]}} if status == "failed" else {}),
            **files,
            "request_counts": {
                "total": len(batch.requests),
                "completed": len(good),
                "failed": len(lines) - len(good),
            },
        }

    def _anthropic_batch(self, batch):
        kinds = Counter(line["result"]["type"] for line in batch.results or [])
        done = batch.results is not None
        created = datetime.fromtimestamp(batch.created, UTC).isoformat().replace("+00:00", "Z")
        counts = {kind: kinds[kind] for kind in ("succeeded", "errored", "canceled", "expired")}
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if done else "in_progress",
            "request_counts": {"processing": 0 if done else len(batch.requests), **counts},
            "created_at": created,
            "expires_at": created,
            "ended_at": created if done else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"{self.url}/v1/messages/batches/{batch.id}/results" if done else None,
        }

    def made(self, requests, input_file=""):
        with self._lock:
            name = f"batch_{self.number()}" if self.provider == "openai" else f"msgbatch_{self.number()}"
            self.batches[name] = Batch(name, requests, input_file)
            if self.ends == "failed":
                self.batches[name].looks = len(STAGES[self.provider])
            return self.batches[name]

    def _handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args):
                pass

            def do_GET(self):
                self._serve(b"")

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                data = self.rfile.read(length)
                if len(data) < length:
                    self.close_connection = True  # the client was killed while it sent: this was no request
                    return
                self._serve(data)

            def _serve(self, data):
                path = self.path.partition("?")[0].removeprefix("/v1").removeprefix("/messages").strip("/")
                operation = self._operation(path)
                key = self.headers.get("Authorization", "").removeprefix("Bearer ") or self.headers.get("x-api-key")
                with fake._lock:
                    fake.asked.append(operation)
                    fault = fake.faults[operation].popleft() if fake.faults[operation] else None
                if fake.key is not None and key != fake.key:
                    return self._send(401, {"error": {"message": f"Incorrect API key provided: {key}"}})
                if fault == "echo":
                    return self._send(400, {"error": {"message": f"your key {key} was no help"}})
                if fault == "malformed":
                    return self._send_bytes(200, b"<html>this is not JSON</html>")
                if fault in ("429", "500", "404"):
                    return self._send(int(fault), {"error": {"message": f"fault {fault}, key {key}"}})
                status, answer = getattr(self, operation)(path, data)
                if fault == "lost":
                    return reset(self)
                return self._send_bytes(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def _operation(self, path):
                posts = {"files": "upload", "batches": "create"}
                if self.command == "POST":
                    return posts.get(path, "chat")
                if path == "batches":
                    return "list"
                return "fetch" if path.endswith(("/results", "/content")) else "look"

            def upload(self, path, data):
                head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                parts = {
                    re.search('name="([a-z]+)"', part["Content-Disposition"])[1]: part.get_payload(decode=True)
                    for part in email.message_from_bytes(head + data).get_payload()
                }
                if parts["purpose"] != b"batch":
                    return 400, {"error": {"message": "purpose"}}
                name = f"file-{fake.number()}"
                fake.files[name] = parts["file"].decode()
                size, now = len(parts["file"]), int(time.time())
                return 200, {
                    "id": name,
                    "object": "file",
                    "bytes": size,
                    "created_at": now,
                    "filename": "f.jsonl",
                    "purpose": "batch",
                    "status": "processed",
                }

            def create(self, path, data):
                body = json.loads(data)
                if fake.provider == "anthropic":
                    request_pairs = [(request["custom_id"], request["params"]) for request in body["requests"]]
                    file = ""
                else:
                    file = body["input_file_id"]
                    lines = [json.loads(line) for line in fake.files[file].splitlines()]
                    form = {(line["method"], line["url"]) for line in lines}
                    has_single_model = len({line["body"]["model"] for line in lines}) == 1
                    if (
                        form != {("POST", body["endpoint"])}
                        or body["completion_window"] != "24h"
                        or not has_single_model
                    ):
                        return 400, {"error": {"message": "the lines of a batch are to be alike"}}
                    request_pairs = [(line["custom_id"], line["body"]) for line in lines]
                requests = dict(request_pairs)
                if len(requests) < len(request_pairs) or not all(
                    re.fullmatch(r"[\w-]{1,64}", name) for name in requests
                ):
                    return 400, {"error": {"message": "custom_id must be of 1 to 64 signs, and occur once"}}
                if any(request.get("stream") for request in requests.values()):
                    return 400, {"error": {"message": "nothing is streamed in a batch"}}
                return 200, fake.shown(fake.made(requests, file))

            def list(self, path, data):
                with fake._lock:
                    batches = [fake.shown(batch) for batch in reversed(fake.batches.values())]
                ids = {"first_id": batches[0]["id"], "last_id": batches[-1]["id"]} if batches else {}
                fields = {"object": "list"} if fake.provider == "openai" else {"first_id": None, "last_id": None}
                return 200, {"data": batches, "has_more": False, **fields, **ids}

            def look(self, path, data):
                batch = fake.batches.get(path.removeprefix("batches/"))
                if batch is None:
                    return 404, {"error": {"message": f"no {path} here"}}
                fake.look(batch)
                return 200, fake.shown(batch)

            def fetch(self, path, data):
                if fake.provider == "openai":
                    return 200, fake.files[path.split("/")[1]].encode()
                lines = fake.batches[path.split("/")[1]].results
                return 200, "".join(f"{json.dumps(line)}\n" for line in lines).encode()

            def chat(self, path, data):
                with fake._lock:
                    fake.singles += 1
                return 200, fake.message(json.loads(data))

            def _send(self, status, answer):
                self._send_bytes(status, json.dumps(answer).encode())

            def _send_bytes(self, status, data):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self._headers_buffer.append(b"\r\n" + data)
                self.flush_headers()

        return Handler


def _plain(body):
    """Messages with their texts in one piece, the system's first, as OpenAI is sent them."""
    rules = [{"role": "system", "content": body["system"]}] if "system" in body else []
    return [{**message, "content": _text(message["content"])} for message in (*rules, *body["messages"])]


def _text(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
