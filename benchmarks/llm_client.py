"""Cost of the client around a chat model: a call from the cache, a call over the network, many calls at once.

Prompts of 8 kB with a schema, the call log on, against servers in a process of their own. Targets: under 1 ms for a
cached call, and 64 requests to a server that takes 200 ms, 16 at once, within 1.25 times the ideal 0.8 s.
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


def read(reply: ChatReply) -> Proposal:
    return parse_object(reply.text, Proposal)


def requests(first: int, n: int) -> list[ChatRequest]:
    """Return `n` questions that were not sent before."""
    schema = json_schema(Proposal)
    return [
        ChatRequest(({"role": "user", "content": f"{PROMPT}Question {i}"},), schema, "benchmark", parse=read)
        for i in range(first, first + n)
    ]


@contextmanager
def server(latency: float) -> Iterator[str]:
    command = [sys.executable, "-c", SERVER, str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.kill()


def client(url: str, folder: Path, cached: bool = True) -> ChatClient:
    provider = build_model(
        "openai_compatible", base_url=url, model="benchmark", max_tokens=100, input_price=1.0, output_price=2.0
    )
    cache = Cache(folder / "cache", "readwrite" if cached else "off")
    policies = ClientPolicies(limits=RateLimit(CONCURRENCY))
    return ChatClient(provider, cache, CallLog(folder / "llm_calls.jsonl"), policies)


def milliseconds(call: Callable[[ChatRequest], object], questions: list[ChatRequest]) -> float:
    """Return the median time of a call, one after the other."""
    times = []
    for question in questions:
        start = time.perf_counter()
        call(question)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def make_httpx_call(http: httpx.Client, url: str) -> Callable[[ChatRequest], object]:
    """Return a minimal function that sends the same requests."""

    def ask(request: ChatRequest) -> object:
        form = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": request.schema}}
        body = {"model": "benchmark", "messages": list(request.messages), "response_format": form}
        answer = http.post(f"{url}/chat/completions", json=body)
        return json.loads(answer.text)["choices"][0]["message"]["content"]

    return ask


def make_client_call(chat: ChatClient) -> Callable[[ChatRequest], object]:
    return lambda request: chat.chat([request])


def measure_sequential_calls(folder: Path) -> None:
    rows = []
    with server(0.0) as url, httpx.Client() as http:
        for i in range(ROUNDS):
            questions = requests(i * CALLS, CALLS)
            clients = [
                client(url, folder / f"{i}_plain", cached=False),
                client(url, folder / f"{i}"),
                client(url, folder / f"{i}"),  # finds what the one before has kept
            ]
            calls = [make_httpx_call(http, url), *(make_client_call(chat) for chat in clients)]
            rows.append([milliseconds(call, questions) for call in calls])
            for chat in clients:
                chat.close()
    bare, plain, with_cache_write, cached = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"call from the cache    {cached:5.2f} ms   (target < 1 ms)")
    print(
        f"call over the network  bare httpx {bare:.2f} ms   client, cache off {plain:.2f} ms (+{plain - bare:.2f})   "
        f"client, reply kept {with_cache_write:.2f} ms (+{with_cache_write - bare:.2f}, of which most is fsync)"
    )


def measure_concurrent_calls(folder: Path) -> None:
    ideal = LATENCY * REQUESTS / CONCURRENCY
    ratios = []
    with server(LATENCY) as url:
        for i in range(ROUNDS):
            chat = client(url, folder / f"many_{i}")
            start = time.perf_counter()
            replies = chat.chat(requests(0, REQUESTS))
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
