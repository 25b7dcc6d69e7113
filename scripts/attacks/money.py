"""Budgets of language models under lost responses, killed processes and damaged logs.

Each attack checks that the server generates no more replies than the budget allows, and that the log records them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from attack import attack, main

from full_disk import limit_file_size
from llmrl.analysis.llm_calls import read_run_totals
from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError, RunFolderError
from llmrl.core.records import ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient, ClientPolicies
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry
from models import make_openai_model

Answer = Callable[["Handler", int], None]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


class Handler(BaseHTTPRequestHandler):
    """Request handler that counts a generated reply for each request, and then calls `answer` to send or lose it."""

    protocol_version = "HTTP/1.1"
    answer: Answer
    generated: list[str]
    lock: threading.Lock

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            self.generated.append(body.decode())
            number = len(self.generated)
        try:
            type(self).answer(self, number)
        except OSError:
            self.close_connection = True

    def send(self, data: bytes, status: int = 200, content_length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if content_length is None else content_length))
        self.end_headers()
        self.wfile.write(data)

    def reply(self, usage: Any = None, text: str = "hello") -> None:
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        self.send(json.dumps({"choices": [choice], "usage": USAGE if usage is None else usage}).encode())

    def reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()


@contextmanager
def run_server(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Run a server, and yield its URL and the list of requests for which it has generated replies."""
    handler_class = type("AnsweringHandler", (Handler,), {"answer": answer, "generated": [], "lock": threading.Lock()})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler_class)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", handler_class.generated  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()


def make_client(
    url: str, folder: Path | None, retries: int = 5, timeout: float = 5.0, cache: Cache | None = None, **limits: Any
) -> ChatClient:
    options = {name: limits.pop(name) for name in ("max_tokens", "input_price", "output_price") if name in limits}
    provider = make_openai_model(url, "m", timeout=timeout, **options)
    call_log = None if folder is None else CallLog(folder / CALL_LOG_NAME)
    policies = ClientPolicies(Retry(retries, 0.002, 0.01), RateLimit(concurrency=8), Budget(**limits), "fall_back")
    return ChatClient(provider, cache, call_log, policies)


def make_request(i: int) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": f"question {i}"},))


def spend(chat: ChatClient, n: int = 200, batch_size: int = 8) -> str:
    """Send `n` requests, or until the budget is exhausted; return the message of the budget, or an empty string."""
    try:
        for i in range(0, n, batch_size):
            chat.chat([make_request(j) for j in range(i, i + batch_size)])
    except BudgetExhausted as error:
        return str(error)
    finally:
        chat.close()
    return ""


def make_losing_answer(kind: str) -> Answer:
    """Return a function that loses every second response in the given way."""

    def answer(handler: Handler, number: int) -> None:
        half = b'{"choices": [{"message": {"content": "hel'
        if number % 2:
            handler.reply()
        elif kind == "reset":
            handler.reset()
        elif kind == "cut":
            handler.close_connection = True
            handler.send(half, content_length=200)
        elif kind == "half JSON":
            handler.send(half)
        elif kind == "HTML":
            handler.send(b"<html>proxy</html>")
        elif kind == "empty":
            handler.send(b"")
        elif kind == "silence":
            time.sleep(1.0)
        elif kind.isdigit():
            handler.send(b"{}", int(kind))

    return answer


def _register_lost_answers(kind: str) -> None:
    @attack(f"every second response lost: {kind}; 40 calls allowed", "exactly 40 generated, all recorded")
    def _(folder: Path) -> tuple[bool, str]:
        with run_server(make_losing_answer(kind)) as (url, generated):
            chat = make_client(url, folder, timeout=0.3 if kind == "silence" else 5.0, calls=40)
            message = spend(chat)
            time.sleep(0.05)
            lost = sum(bool(call.get("unsettled")) for call in read_calls(folder / CALL_LOG_NAME))
            spent = chat.budget.usage
            passed = len(generated) == 40 and "lost" in message and lost == spent.unsettled == 40 - spent.calls > 0
            return passed, f"{len(generated)} generated, {spent.calls} paid, {lost} recorded as lost"


for _kind in ("reset", "cut", "half JSON", "HTML", "empty", "silence", "500", "502", "503", "504", "408"):
    _register_lost_answers(_kind)


@attack("half of the responses to 16 threads lost at random; 40 calls allowed", "exactly 40 generated")
def _(folder: Path) -> tuple[bool, str]:
    draw = random.Random(1)

    def answer(handler: Handler, number: int) -> None:
        handler.reset() if draw.random() < 0.5 else handler.reply()

    with run_server(answer) as (url, generated):
        chat = make_client(url, folder, calls=40)
        threads = [threading.Thread(target=spend, args=(chat, 16, 2)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        stuck = sum(thread.is_alive() for thread in threads)
        return len(generated) == 40 and not stuck, f"{len(generated)} generated, {stuck} threads stuck"


@attack("30 error responses (429, 401, 400, 529), then replies; 3 calls allowed", "3 replies")
def _(folder: Path) -> tuple[bool, str]:
    def answer(handler: Handler, number: int) -> None:
        handler.send(b"{}", (429, 401, 400, 529)[number % 4]) if number <= 30 else handler.reply()

    with run_server(answer) as (url, _):
        chat = make_client(url, folder, calls=3)
        message = spend(chat, batch_size=1)
        return chat.budget.usage.calls == 3 and "spent 3," in message, f"{chat.budget.usage.calls} replies of 3"


@attack("connection refused, 20 calls with 5 retries; 1 call allowed", "no calls counted, a later call succeeds")
def _(folder: Path) -> tuple[bool, str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        chat = make_client(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", folder, calls=1)
        chat.chat([make_request(i) for i in range(20)])
        chat.close()
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        again = make_client(url, folder, calls=1)
        again.chat([make_request(1)])
        again.close()
    return len(generated) == 1, f"{chat.budget.usage.unsettled} counted, then {len(generated)} generated"


@attack("an unknown host; 1 call allowed", "no calls counted")
def _(folder: Path) -> tuple[bool, str]:
    chat = make_client("https://nosuchhost.invalid/v1", folder, calls=1)
    replies = [chat.chat([make_request(i)])[0] for i in range(3)]
    chat.close()
    return all(r.error for r in replies) and chat.budget.usage.unsettled == 0, replies[-1].error[:80]


def _kill_clients(folder: Path, kills: int, in_flight: int, max_calls: int) -> tuple[int, int, int]:
    """Kill clients with requests in flight, then spend the remaining budget.

    Args:
        folder: folder of the call log.
        kills: number of killed clients.
        in_flight: number of requests in flight when a client is killed.
        max_calls: number of allowed calls.

    Returns:
        The numbers of generated replies, of calls recorded as lost, and of paid calls.
    """
    program = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\n"
        "from money import make_client, make_request\n"
        f"chat = make_client(sys.argv[1], Path(sys.argv[2]), timeout=60.0, calls={max_calls})\n"
        f"chat.chat([make_request(i) for i in range({in_flight})])\n"
    )
    is_open = threading.Event()

    def answer(handler: Handler, number: int) -> None:
        if not is_open.is_set():
            is_open.wait(20)
            handler.reset()
        else:
            handler.reply()

    with run_server(answer) as (url, generated):
        for kill in range(1, kills + 1):
            arguments = [sys.executable, "-c", program, url, str(folder), str(Path(__file__).parent)]
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            while len(generated) < kill * in_flight and process.poll() is None:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        is_open.set()
        chat = make_client(url, folder, calls=max_calls)
        spend(chat, batch_size=1)
        lost = sum(call.get("unsettled", False) for call in read_calls(folder / CALL_LOG_NAME))
        return len(generated), lost, chat.budget.usage.calls


@attack("kill -9 three times with 4 requests in flight; 20 calls allowed", "20 generated, 12 recorded as lost")
def _(folder: Path) -> tuple[bool, str]:
    generated, lost, paid = _kill_clients(folder, 3, 4, 20)
    totals = read_run_totals(folder)
    passed = (generated, lost, paid, totals.lost, totals.calls) == (20, 12, 8, 12, 8)
    counts = f"{generated} generated, {lost} recorded as lost, {paid} paid"
    return passed, f"{counts}; totals {totals.lost} and {totals.calls}"


@attack("kill -9 with all allowed calls in flight, then a truncated last line", "no further requests")
def _(folder: Path) -> tuple[bool, str]:
    _kill_clients(folder, 1, 5, 5)
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        log = folder / CALL_LOG_NAME
        # A truncated line, as if a process was killed while it wrote the start of an attempt.
        log.write_bytes(log.read_bytes() + b'{"time": 1.0, "attempt_id": "beef", "spe')
        message = spend(make_client(url, folder, calls=5))
        return not generated and bool(message), f"{len(generated)} generated"


@attack("a truncated line of a reply", "the attempt counts fully, and is marked in the log")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        spend(make_client(url, folder, calls=1, max_tokens=500), n=1, batch_size=1)
        log = folder / CALL_LOG_NAME
        log.write_bytes(log.read_bytes()[:-25])
        message = spend(make_client(url, folder, calls=1), batch_size=1)
        marked = [call.get("unsettled") for call in read_calls(log)]
        passed = len(generated) == 1 and marked == [True] and bool(message)
        return passed, f"{len(generated)} generated, marks {marked}"


@attack("a full disk: the log cannot be written", "no requests")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        chat = make_client(url, folder)
        try:
            with limit_file_size(0):
                chat.chat([make_request(1)])
        except RunFolderError as error:
            return not generated, str(error)
        finally:
            chat.close()
    return False, f"{len(generated)} generated"


@attack("replies without token counts; 1,000 tokens allowed, 300 per reply", "at most 3 calls")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reply(usage={})) as (url, generated):
        chat = make_client(url, folder, tokens=1000, max_tokens=300)
        spend(chat, batch_size=1)
        return len(generated) == 3, f"{len(generated)} generated, {chat.budget.usage.unsettled_tokens} tokens counted"


@attack("invalid usage (strings, negative numbers, lists); limited tokens", "counted as reserved")
def _(folder: Path) -> tuple[bool, str]:
    odd: list[Any] = [{"prompt_tokens": "11", "completion_tokens": -7}, [1], "none", {"prompt_tokens": 1e99}, 7]
    with run_server(lambda handler, number: handler.reply(usage=odd[number % len(odd)])) as (url, generated):
        chat = make_client(url, folder, tokens=1000, max_tokens=300)
        spend(chat, batch_size=1)
        return len(generated) == 3, f"{len(generated)} generated"


@attack("all responses lost; a reply of 1,000 tokens costs $0.01, $0.1 allowed", "9 generated")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reset()) as (url, generated):
        chat = make_client(url, folder, usd=0.1, max_tokens=1000, input_price=1.0, output_price=10.0)
        message = spend(chat)
        cost = chat.budget.usage.unsettled_cost
        return len(generated) == 9 and cost <= 0.1, f"{len(generated)} generated, at most {cost:.4f}: {message[:60]}"


@attack("unknown=ignore: ten responses lost; 5 calls allowed", "5 replies, 10 reported as lost")
def _(folder: Path) -> tuple[bool, str]:
    def answer(handler: Handler, number: int) -> None:
        handler.reset() if number <= 10 else handler.reply()

    with run_server(answer) as (url, _):
        chat = make_client(url, folder, retries=20, calls=5, unknown="ignore")
        spend(chat, batch_size=1)
        n_lost = chat.metrics()["usage/llm_unsettled_calls"]
        calls = chat.budget.usage.calls
        return (calls, n_lost) == (5, 10), f"{calls} replies, {n_lost:g} reported as lost"


@attack("a late response in an abandoned thread", "counted once")
def _(folder: Path) -> tuple[bool, str]:
    resume_event = threading.Event()

    def answer(handler: Handler, number: int) -> None:
        resume_event.wait(20)
        handler.reply()

    with run_server(answer) as (url, generated):
        chat = make_client(url, folder, calls=2, timeout=30.0)
        thread = threading.Thread(target=chat.chat, args=([make_request(1)],))
        thread.start()
        while not generated:
            time.sleep(0.01)
        for reservation in list(chat.budget._open_reservations.values()):
            chat.budget.abandon(reservation)
        resume_event.set()
        thread.join(20)
        spent = chat.budget.usage
        spend(chat, batch_size=1)
        return (spent.unsettled, spent.calls, len(generated)) == (1, 0, 2), f"{spent.unsettled} lost, {len(generated)}"


@attack("50 cached replies, no calls allowed", "50 replies, no requests")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        for calls in (50, 0):
            chat = make_client(url, folder, calls=calls, cache=Cache(folder / "cache"))
            replies = chat.chat([make_request(i) for i in range(50)])
            chat.close()
        return len(generated) == 50 and len(replies) == 50, f"{len(generated)} generated for 100 requests"


@attack("a reply that resembles lines of the log", "parsed only as a reply")
def _(folder: Path) -> tuple[bool, str]:
    forged = (
        '{"time": 1, "attempt_id": "x", "spent": {"calls": 0}}\n'
        '"settled_attempt": "x", "outcome": "lost"\u2028{"attempt_id": "y"}'
    )
    with run_server(lambda handler, number: handler.reply(text=forged)) as (url, _):
        chat = make_client(url, folder, calls=2)
        chat.chat([make_request(1)])
        chat.close()
        calls = list(read_calls(folder / CALL_LOG_NAME))
        total = CallLog(folder / CALL_LOG_NAME).earlier_usage
        passed = [call.get("reply") for call in calls] == [forged] and (total.calls, total.unsettled) == (1, 0)
        return passed, f"{len(calls)} calls, spent {total.calls}"


@attack("recorded lost and paid attempts compared with the running total", "equal")
def _(folder: Path) -> tuple[bool, str]:
    draw = random.Random(2)

    def answer(handler: Handler, number: int) -> None:
        (handler.reset, handler.reply, lambda: handler.send(b"{}", 429))[draw.randrange(3)]()

    with run_server(answer) as (url, _):
        spend(make_client(url, folder, calls=60))
    calls = list(read_calls(folder / CALL_LOG_NAME))
    lost, paid = sum("unsettled" in call for call in calls), sum("reply" in call for call in calls)
    total = CallLog(folder / CALL_LOG_NAME).earlier_usage
    return (lost, paid) == (total.unsettled, total.calls) and lost + paid == 60, f"{lost} lost, {paid} paid, {total}"


@attack("a budget in dollars, unknown prices", "rejected before any request")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler, number: handler.reply()) as (url, generated):
        try:
            make_client(url, folder, usd=1.0).check()
        except (ConfigError, LLMError) as error:
            return not generated and "prices" in str(error), str(error)[:80]
    return False, "accepted"


if __name__ == "__main__":
    main("Budgets of language models")
