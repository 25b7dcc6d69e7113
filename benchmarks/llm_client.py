"""Overhead of the chat client: cached calls, calls over the network, and concurrent calls.

Prompts have 8 kB and a schema, the call log is enabled, and servers run in separate processes. Targets: less than 1 ms
for a cached call; at most 1.25 times the ideal 0.8 s for 64 requests to a server with a latency of 200 ms, 16 at once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from pydantic import BaseModel

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.by_name import build_model
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient, ClientPolicies
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reading.object_parser import parse_object
from llmrl.llms.structured import json_schema

PROMPT = "Generation 12: eat=0.25, clean=1, other=0 -> payoff -0.4375; trees 47.36.\n" * 110
LATENCY, REQUESTS, CONCURRENCY = 0.2, 64, 16
ROUNDS, CALLS = 5, 200

SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = json.dumps({
    "choices": [{"message": {"content": '{"reasoning": "none", "tax": 0.5}'}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2000, "completion_tokens": 10},
}).encode()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(float(sys.argv[1]))
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(ANSWER) + ANSWER)

class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Proposal(BaseModel):
    reasoning: str
    tax: float


def parse_proposal(reply: ChatReply) -> Proposal:
    return parse_object(reply.text, Proposal)


def make_requests(first: int, n: int) -> list[ChatRequest]:
    """Return `n` distinct requests, numbered from `first`."""
    schema = json_schema(Proposal)
    return [
        ChatRequest(({"role": "user", "content": f"{PROMPT}Question {i}"},), schema, "benchmark", parse=parse_proposal)
        for i in range(first, first + n)
    ]


@contextmanager
def run_server(latency: float) -> Iterator[str]:
    """Run a server in another process, and yield its URL.

    Args:
        latency: time until a reply, seconds.
    """
    command = [sys.executable, "-c", SERVER, str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.kill()


def make_client(url: str, folder: Path, use_cache: bool = True) -> ChatClient:
    provider = build_model(
        "openai_compatible", base_url=url, model="benchmark", max_tokens=100, input_price=1.0, output_price=2.0
    )
    cache = Cache(folder / "cache", "readwrite" if use_cache else "off")
    policies = ClientPolicies(limits=RateLimit(CONCURRENCY))
    return ChatClient(provider, cache, CallLog(folder / "llm_calls.jsonl"), policies)


def measure_milliseconds(call: Callable[[ChatRequest], object], requests: list[ChatRequest]) -> float:
    """Return the median duration of sequential calls, milliseconds."""
    times = []
    for request in requests:
        start = time.perf_counter()
        call(request)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def make_httpx_call(http: httpx.Client, url: str) -> Callable[[ChatRequest], object]:
    """Return a function that sends the same requests with httpx alone."""

    def send(request: ChatRequest) -> object:
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "strict": True, "schema": request.schema},
        }
        body = {"model": "benchmark", "messages": list(request.messages), "response_format": response_format}
        response = http.post(f"{url}/chat/completions", json=body)
        return json.loads(response.text)["choices"][0]["message"]["content"]

    return send


def make_client_call(chat: ChatClient) -> Callable[[ChatRequest], object]:
    return lambda request: chat.chat([request])


def measure_sequential_calls(folder: Path) -> None:
    rows = []
    with run_server(0.0) as url, httpx.Client() as http:
        for i in range(ROUNDS):
            requests = make_requests(i * CALLS, CALLS)
            clients = [
                make_client(url, folder / f"{i}_plain", use_cache=False),
                make_client(url, folder / f"{i}"),
                make_client(url, folder / f"{i}"),  # reads the replies that the previous client cached
            ]
            calls = [make_httpx_call(http, url), *(make_client_call(chat) for chat in clients)]
            rows.append([measure_milliseconds(call, requests) for call in calls])
            for chat in clients:
                chat.close()
    httpx_ms, client_ms, write_ms, cached_ms = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"call from the cache    {cached_ms:5.2f} ms   (target < 1 ms)")
    print(
        f"call over the network  httpx {httpx_ms:.2f} ms   "
        f"client, cache off {client_ms:.2f} ms (+{client_ms - httpx_ms:.2f})   "
        f"client, reply stored {write_ms:.2f} ms (+{write_ms - httpx_ms:.2f}, mostly fsync)"
    )


def measure_concurrent_calls(folder: Path) -> None:
    ideal = LATENCY * REQUESTS / CONCURRENCY
    ratios = []
    with run_server(LATENCY) as url:
        for i in range(ROUNDS):
            chat = make_client(url, folder / f"many_{i}")
            start = time.perf_counter()
            replies = chat.chat(make_requests(0, REQUESTS))
            ratios.append((time.perf_counter() - start) / ideal)
            assert all(reply.attempts == 1 for reply in replies)
            chat.close()
    ratio = statistics.median(ratios)
    print(
        f"{REQUESTS} calls, {CONCURRENCY} at once, {1e3 * LATENCY:.0f} ms each   "
        f"{ratio * ideal:.2f} s   ratio to the ideal {ideal:.1f} s: {ratio:.2f} "
        f"(from {min(ratios):.2f} to {max(ratios):.2f}; target <= 1.25)"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure_sequential_calls(Path(folder))
        measure_concurrent_calls(Path(folder))


if __name__ == "__main__":
    main()
