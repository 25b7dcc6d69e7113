"""HTTP server with OpenAI's chat protocol and injected faults.

with FakeOpenAIServer(reply=lambda messages: "hello") as server:
    server.faults += ["429", "hang"]      # faults of the next two chat requests
    make_openai_model(base_url=server.url, ...)

with FakeOpenAIServer(fault_rate=0.3) as server:   # three in ten, drawn from PASSING
"""

import hashlib
import json
import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

from loopback import LoopbackServer, reset_connection

TRANSIENT_FAULTS = (
    "429",
    "429-after",  # Retry-After in seconds
    "429-date",  # Retry-After as the current HTTP date
    "500",
    "503",
    "529",
    "500-echo",  # quotes the Authorization header
    "reset",  # before the first byte
    "reset-midway",
    "hang",
    "trickle",  # one byte every 0.02 s
    "truncated",  # body shorter than Content-Length
    "truncated-json",  # complete HTTP response with incomplete JSON
    "malformed",
    "no_choices",
    "huge",
)
"""Faults after which a retry may succeed."""

UNUSUAL_REPLIES = ("null_content", "wrong_schema", "wrong_usage", "echo")
"""Unusual replies that a client must accept; `echo` quotes the Authorization header."""

PERMANENT_FAULTS = ("400-echo", "401")
"""Faults after which a retry fails, too."""

FAULTS = (*TRANSIENT_FAULTS, *UNUSUAL_REPLIES, *PERMANENT_FAULTS)

HUGE_REPLY_BYTES = 32 << 20
"""Size of a huge reply in bytes."""

WRONG_USAGE = (
    {"prompt_tokens": "11", "completion_tokens": -7, "total_tokens": None},
    {"prompt_tokens": 1.5, "completion_tokens": [7], "prompt_tokens_details": "none"},
    ["prompt_tokens", 11],
    "eleven",
)


@dataclass
class Exchange:
    """Chat request and its response.

    Attributes:
        question: hash of the messages.
        fault: injected fault, None for none.
        start, end: times of the request and of the end of the response, in seconds of `time.monotonic`, which is the
            same in all processes.
        sending: whether sending a complete reply has begun.
        delivered: whether a complete reply was sent.
    """

    question: str
    fault: str | None
    start: float
    end: float = float("inf")
    sending: bool = False
    delivered: bool = False


def hash_messages(messages):
    """Return a hash of the messages of a question."""
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()


class FakeOpenAIServer(LoopbackServer):
    """Fake OpenAI server on a free port.

    Args:
        reply: function from messages to the text of the reply, or to fields of the assistant's message, which may
            include `finish_reason`.
        usage: additional fields of the usage, or a function from messages and the assistant's message to such fields.
        key: required API key; None for none.
        retry_after: value of the header Retry-After of `429-after`, in seconds.
        hang: maximum duration of a hanging or trickling response, in seconds.
        model: name in the list of models.
        delay: delay of each response in seconds, or a function that returns it.
        fault_rate: share of requests with a fault, drawn from `fault_kinds` with the random `seed`. Faults in the
            queue `faults` come first.

    Attributes:
        models_status: HTTP status of the list of models.
        requests, times, exchanges: bodies, start times and records of all authorized chat requests.
        delivered: number of complete replies sent, by question.
        in_flight: number of requests whose handling has not ended.
        most_in_flight: maximum number of simultaneous requests whose response had not begun. It never exceeds the
            number of requests that the client had open, whereas `in_flight` may: a client can abandon or finish a
            request before the server stops handling it.
    """

    def __init__(
        self,
        reply=lambda messages: "hello",
        key=None,
        retry_after="0.05",
        hang=30.0,
        model="fake-model",
        delay=0.0,
        fault_rate=0.0,
        fault_kinds=TRANSIENT_FAULTS,
        seed=0,
        usage=None,
    ):
        self.reply, self.key, self.retry_after, self.hang, self.model = reply, key, retry_after, hang, model
        self.delay, self.fault_rate, self.fault_kinds = delay, fault_rate, fault_kinds
        self.usage = usage or {}
        self.models_status = 200
        self.faults: deque[str] = deque()
        self.requests: list[dict] = []
        self.times: list[float] = []
        self.exchanges: list[Exchange] = []
        self._delivered: Counter[str] = Counter()
        self.in_flight, self.most_in_flight, self._unanswered = 0, 0, 0
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        super().__init__(self._handler())

    @property
    def delivered(self):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with self._lock:  # a client may have read a reply before the server records that it was sent
                if not any(exchange.sending and exchange.end == float("inf") for exchange in self.exchanges[-200:]):
                    break
            time.sleep(0.001)
        return self._delivered

    @property
    def url(self):
        return f"{self.address}/v1"

    def __exit__(self, *exc):
        self.stopping.set()
        super().__exit__(*exc)

    def forget(self):
        """Delete all records of requests."""
        with self._lock:
            for log in (self.requests, self.times, self.exchanges, self._delivered):
                log.clear()

    def _begin(self, body):
        question = hash_messages(body["messages"])
        with self._lock:
            fault = self.faults.popleft() if self.faults else None
            if fault is None and self._rng.random() < self.fault_rate:
                fault = self._rng.choice(self.fault_kinds)
            assert fault is None or fault in FAULTS, fault
            exchange = Exchange(question, fault, time.monotonic())
            self.requests.append(body)
            self.times.append(exchange.start)
            self.exchanges.append(exchange)
            self.in_flight += 1
            self._unanswered += 1
            self.most_in_flight = max(self.most_in_flight, self._unanswered)
            return exchange

    def _answer_begins(self):
        with self._lock:
            self._unanswered -= 1

    def _end(self, exchange):
        with self._lock:
            exchange.end = time.monotonic()
            self.in_flight -= 1
            self._delivered[exchange.question] += exchange.delivered

    def _handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args):
                pass

            def do_GET(self):
                if self._refused():
                    return
                if self.path == "/v1/models":
                    self._send(fake.models_status, {"object": "list", "data": [{"id": fake.model, "object": "model"}]})
                else:
                    self._send(404, {"error": {"message": f"no {self.path} here"}})

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                data = self.rfile.read(length)
                if len(data) < length:
                    self.close_connection = True  # the client was killed while it sent the request
                    return
                body = json.loads(data)
                if self._refused():
                    return
                exchange = fake._begin(body)
                try:
                    fake.stopping.wait(fake.delay() if callable(fake.delay) else fake.delay)
                    fake._answer_begins()
                    self._answer(body, exchange)
                finally:
                    fake._end(exchange)

            def _refused(self):
                header = self.headers.get("Authorization")
                if fake.key is None or header == f"Bearer {fake.key}":
                    return False
                # Real providers quote the invalid key.
                self._send(
                    401, {"error": {"message": f"Incorrect API key provided: {header}", "code": "invalid_api_key"}}
                )
                return True

            def _answer(self, body, exchange):
                fault = exchange.fault or ""
                if fault[:1].isdigit():
                    self._refuse(fault)
                elif fault == "hang":
                    fake.stopping.wait(fake.hang)
                    self.close_connection = True
                elif fault == "reset":
                    reset_connection(self)
                elif fault == "malformed":
                    self._send_bytes(200, b"<html>this is not JSON</html>")
                elif fault == "no_choices":
                    self._send(200, {"choices": [], "usage": {}})
                elif fault == "huge":
                    self._send_huge()
                else:
                    self._send_completion(body, exchange)

            def _refuse(self, fault):
                status, _, detail = fault.partition("-")
                headers = {"after": {"Retry-After": fake.retry_after}, "date": {"Retry-After": formatdate(usegmt=True)}}
                quotation = f", your header was {self.headers.get('Authorization')}" if detail == "echo" else ""
                self._send(int(status), {"error": {"message": f"fault {fault}{quotation}"}}, headers.get(detail))

            def _send_huge(self):
                self.close_connection = True
                self._send_bytes(200, b'{"choices": [{"message": {"content": "', content_length=HUGE_REPLY_BYTES)
                chunk = b"x" * (1 << 16)
                for _ in range(HUGE_REPLY_BYTES // len(chunk)):
                    self.wfile.write(chunk)

            def _send_completion(self, body, exchange):
                fault = exchange.fault
                text = (
                    {
                        "null_content": None,
                        "wrong_schema": '{"reasoning": ["no", "such"], "numbers": {"a": "b"}}',
                        "echo": f"You sent me {self.headers.get('Authorization')}, did you not?",
                    }[fault]
                    if fault in UNUSUAL_REPLIES and fault != "wrong_usage"
                    else fake.reply(body["messages"])
                )
                extra_usage = fake.usage(body["messages"], text) if callable(fake.usage) else fake.usage
                usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, **extra_usage}
                if fault == "wrong_usage":
                    usage = WRONG_USAGE[int(exchange.question[:4], 16) % len(WRONG_USAGE)]
                message = dict(text) if isinstance(text, dict) else {"content": text}
                finish = message.pop("finish_reason", "stop")
                choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
                answer = {
                    "id": "chatcmpl-1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": body["model"],
                    "choices": [choice],
                    "usage": usage,
                }
                data = json.dumps(answer).encode()
                half = data[: len(data) // 2]
                if fault == "truncated":
                    self.close_connection = True
                    self._send_bytes(200, half, content_length=len(data))
                elif fault == "truncated-json":
                    self._send_bytes(200, half)
                elif fault == "reset-midway":
                    self._send_bytes(200, half, content_length=len(data))
                    reset_connection(self)
                elif fault == "trickle":
                    self.close_connection = True
                    self._send_bytes(200, b"", content_length=len(data))
                    end = time.monotonic() + fake.hang
                    for i in range(len(data)):
                        self.wfile.write(data[i : i + 1])
                        if fake.stopping.wait(0.02) or time.monotonic() > end:
                            break
                else:
                    exchange.sending = True
                    self._send_bytes(200, data)
                    exchange.delivered = True

            def _send(self, status, answer, headers=None):
                self._send_bytes(status, json.dumps(answer).encode(), headers=headers)

            def _send_bytes(self, status, data, headers=None, content_length=None):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data) if content_length is None else content_length))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                # Headers and body in one packet, so that small responses do not wait for an acknowledgment.
                self._headers_buffer.append(b"\r\n" + data)
                self.flush_headers()

        return Handler
