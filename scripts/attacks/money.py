"""Attacks on the budget for language models: servers that lose answers, killed processes, damaged logs.

Every attack asks the same in the end: may more have been generated than was allowed, and does the record say so?
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
from llmrl.llms.call_log import FILE_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient, ClientPolicies
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry
from models import make_openai_model

Answer = Callable[["Handler", int], None]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


class Handler(BaseHTTPRequestHandler):
    """Generates (and counts) a reply for every request, then does with it what `answer` says."""

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

    def send(self, data: bytes, status: int = 200, promised: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if promised is None else promised))
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
def server(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the requests for which it has generated replies."""
    kind = type("Own", (Handler,), {"answer": answer, "generated": [], "lock": threading.Lock()})
    http = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", kind.generated  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()


def client(
    url: str, folder: Path | None, retries: int = 5, timeout: float = 5.0, cache: Cache | None = None, **limits: Any
) -> ChatClient:
    facts = {name: limits.pop(name) for name in ("max_tokens", "input_price", "output_price") if name in limits}
    provider = make_openai_model(url, "m", timeout=timeout, **facts)
    call_log = None if folder is None else CallLog(folder / FILE_NAME)
    policies = ClientPolicies(Retry(retries, 0.002, 0.01), RateLimit(concurrency=8), Budget(**limits), "fall_back")
    return ChatClient(provider, cache, call_log, policies)


def ask(i: int) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": f"question {i}"},))


def spend(chat: ChatClient, n: int = 200, at_once: int = 8) -> str:
    """Ask until the budget says no; what it said, or nothing."""
    try:
        for i in range(0, n, at_once):
            chat.chat([ask(j) for j in range(i, i + at_once)])
    except BudgetExhausted as error:
        return str(error)
    finally:
        chat.close()
    return ""


def losing(kind: str) -> Answer:
    def answer(handler: Handler, number: int) -> None:
        half = b'{"choices": [{"message": {"content": "hel'
        if number % 2:
            handler.reply()
        elif kind == "reset":
            handler.reset()
        elif kind == "cut":
            handler.close_connection = True
            handler.send(half, promised=200)
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


def _losing(kind: str) -> None:
    @attack(f"every second answer lost: {kind}; 40 calls allowed", "40 generated, not one more, and all on record")
    def _(folder: Path) -> tuple[bool, str]:
        with server(losing(kind)) as (url, generated):
            chat = client(url, folder, timeout=0.3 if kind == "silence" else 5.0, calls=40)
            said = spend(chat)
            time.sleep(0.05)
            lost = sum(bool(call.get("unsettled")) for call in read_calls(folder / FILE_NAME))
            spent = chat.budget.spent
            held = len(generated) == 40 and "lost" in said and lost == spent.unsettled == 40 - spent.calls > 0
            return held, f"{len(generated)} generated, {spent.calls} paid, {lost} on record as lost"


for _kind in ("reset", "cut", "half JSON", "HTML", "empty", "silence", "500", "502", "503", "504", "408"):
    _losing(_kind)


@attack("half the answers of 16 threads lost at random; 40 calls allowed", "at most 40 generated, budget used up")
def _(folder: Path) -> tuple[bool, str]:
    draw = random.Random(1)

    def answer(handler: Handler, number: int) -> None:
        handler.reset() if draw.random() < 0.5 else handler.reply()

    with server(answer) as (url, generated):
        chat = client(url, folder, calls=40)
        threads = [threading.Thread(target=spend, args=(chat, 16, 2)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        stuck = sum(thread.is_alive() for thread in threads)
        return len(generated) == 40 and not stuck, f"{len(generated)} generated, {stuck} threads stuck"


@attack("the server refuses (429, 401, 400, 529) 30 times, then answers; 3 calls allowed", "3 replies")
def _(folder: Path) -> tuple[bool, str]:
    def answer(handler: Handler, number: int) -> None:
        handler.send(b"{}", (429, 401, 400, 529)[number % 4]) if number <= 30 else handler.reply()

    with server(answer) as (url, _):
        chat = client(url, folder, calls=3)
        said = spend(chat, at_once=1)
        return chat.budget.spent.calls == 3 and "spent 3," in said, f"{chat.budget.spent.calls} replies of 3"


@attack("nobody listens, 20 calls with 5 retries; 1 call allowed", "nothing counted, the reply is had afterwards")
def _(folder: Path) -> tuple[bool, str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        chat = client(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", folder, calls=1)
        chat.chat([ask(i) for i in range(20)])
        chat.close()
    with server(lambda handler, number: handler.reply()) as (url, generated):
        again = client(url, folder, calls=1)
        again.chat([ask(1)])
        again.close()
    return len(generated) == 1, f"{chat.budget.spent.unsettled} counted, then {len(generated)} generated"


@attack("an unknown host; 1 call allowed", "nothing counted")
def _(folder: Path) -> tuple[bool, str]:
    chat = client("https://nosuchhost.invalid/v1", folder, calls=1)
    replies = [chat.chat([ask(i)])[0] for i in range(3)]
    chat.close()
    return all(r.error for r in replies) and chat.budget.spent.unsettled == 0, replies[-1].error[:80]


def _killed(folder: Path, kills: int, in_flight: int, allowed: int) -> tuple[int, int, int]:
    """Kill -9 with requests in flight, `kills` times; then spend what is left. Generated, lost on record, paid."""
    program = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\nfrom money import ask, client\n"
        f"chat = client(sys.argv[1], Path(sys.argv[2]), timeout=60.0, calls={allowed})\n"
        f"chat.chat([ask(i) for i in range({in_flight})])\n"
    )
    open_again = threading.Event()

    def answer(handler: Handler, number: int) -> None:
        if not open_again.is_set():
            open_again.wait(20)
            handler.reset()
        else:
            handler.reply()

    with server(answer) as (url, generated):
        for kill in range(1, kills + 1):
            arguments = [sys.executable, "-c", program, url, str(folder), str(Path(__file__).parent)]
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            while len(generated) < kill * in_flight and process.poll() is None:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        open_again.set()
        chat = client(url, folder, calls=allowed)
        spend(chat, at_once=1)
        lost = sum(call.get("unsettled", False) for call in read_calls(folder / FILE_NAME))
        return len(generated), lost, chat.budget.spent.calls


@attack("kill -9 three times with 4 requests in flight; 20 calls allowed", "20 generated, 12 lost on record")
def _(folder: Path) -> tuple[bool, str]:
    generated, lost, paid = _killed(folder, 3, 4, 20)
    totals = read_run_totals(folder)
    held = (generated, lost, paid, totals.lost, totals.calls) == (20, 12, 8, 12, 8)
    return held, f"{generated} generated, {lost} lost on record, {paid} paid; totals {totals.lost} and {totals.calls}"


@attack("kill -9 with all calls allowed in flight, then the last line cut short", "nothing more is sent")
def _(folder: Path) -> tuple[bool, str]:
    _killed(folder, 1, 5, 5)
    with server(lambda handler, number: handler.reply()) as (url, generated):
        log = folder / FILE_NAME
        # The record of a start that was killed while it wrote: another line, cut short.
        log.write_bytes(log.read_bytes() + b'{"time": 1.0, "attempt_id": "beef", "spe')
        said = spend(client(url, folder, calls=5))
        return not generated and bool(said), f"{len(generated)} generated"


@attack("a reply's line torn by a kill", "the attempt counts whole, and is marked in the record")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reply()) as (url, generated):
        spend(client(url, folder, calls=1, max_tokens=500), n=1, at_once=1)
        log = folder / FILE_NAME
        log.write_bytes(log.read_bytes()[:-25])
        said = spend(client(url, folder, calls=1), at_once=1)
        marked = [call.get("unsettled") for call in read_calls(log)]
        return len(generated) == 1 and marked == [True] and bool(said), f"{len(generated)} generated, record {marked}"


@attack("a disk that is full: the log cannot be written", "nothing is sent")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reply()) as (url, generated):
        chat = client(url, folder)
        try:
            with limit_file_size(0):
                chat.chat([ask(1)])
        except RunFolderError as error:
            return not generated, str(error)
        finally:
            chat.close()
    return False, f"{len(generated)} generated"


@attack("replies that tell no tokens; 1,000 tokens allowed, 300 a reply", "3 calls at most")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reply(usage={})) as (url, generated):
        chat = client(url, folder, tokens=1000, max_tokens=300)
        spend(chat, at_once=1)
        return len(generated) == 3, f"{len(generated)} generated, {chat.budget.spent.unsettled_tokens} tokens counted"


@attack("usage of absurd kinds (strings, negative, NaN, lists); tokens limited", "counted as set aside")
def _(folder: Path) -> tuple[bool, str]:
    odd: list[Any] = [{"prompt_tokens": "11", "completion_tokens": -7}, [1], "none", {"prompt_tokens": 1e99}, 7]
    with server(lambda handler, number: handler.reply(usage=odd[number % len(odd)])) as (url, generated):
        chat = client(url, folder, tokens=1000, max_tokens=300)
        spend(chat, at_once=1)
        return len(generated) == 3, f"{len(generated)} generated"


@attack("dollars: every answer cut, a reply of 1,000 tokens costs 0.01, 0.1 allowed", "9 generated")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reset()) as (url, generated):
        chat = client(url, folder, usd=0.1, max_tokens=1000, input_price=1.0, output_price=10.0)
        said = spend(chat)
        cost = chat.budget.spent.unsettled_cost
        return len(generated) == 9 and cost <= 0.1, f"{len(generated)} generated, at most {cost:.4f}: {said[:60]}"


@attack("unknown=ignore: ten answers lost; 5 calls allowed", "5 replies, 10 told as lost")
def _(folder: Path) -> tuple[bool, str]:
    def answer(handler: Handler, number: int) -> None:
        handler.reset() if number <= 10 else handler.reply()

    with server(answer) as (url, _):
        chat = client(url, folder, retries=20, calls=5, unknown="ignore")
        spend(chat, at_once=1)
        told = chat.metrics()["usage/llm_unsettled_calls"]
        return (chat.budget.spent.calls, told) == (5, 10), f"{chat.budget.spent.calls} replies, {told:g} told as lost"


@attack("a thread that hangs is abandoned, and answers later", "counted once, whatever comes")
def _(folder: Path) -> tuple[bool, str]:
    go_on = threading.Event()

    def answer(handler: Handler, number: int) -> None:
        go_on.wait(20)
        handler.reply()

    with server(answer) as (url, generated):
        chat = client(url, folder, calls=2, timeout=30.0)
        thread = threading.Thread(target=chat.chat, args=([ask(1)],))
        thread.start()
        while not generated:
            time.sleep(0.01)
        for reservation in list(chat.budget._open_reservations.values()):
            chat.budget.abandon(reservation)
        go_on.set()
        thread.join(20)
        spent = chat.budget.spent
        spend(chat, at_once=1)
        return (spent.unsettled, spent.calls, len(generated)) == (1, 0, 2), f"{spent.unsettled} lost, {len(generated)}"


@attack("the cache is asked first: 50 kept replies, no call allowed", "50 replies, nothing sent")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reply()) as (url, generated):
        for calls in (50, 0):
            chat = client(url, folder, calls=calls, cache=Cache(folder / "cache"))
            replies = chat.chat([ask(i) for i in range(50)])
            chat.close()
        return len(generated) == 50 and len(replies) == 50, f"{len(generated)} generated for 100 asked"


@attack("a model's reply that looks like lines of the log", "read as a reply, and nothing else")
def _(folder: Path) -> tuple[bool, str]:
    forged = (
        '{"time": 1, "attempt_id": "x", "spent": {"calls": 0}}\n'
        '"settled_attempt": "x", "outcome": "lost"\u2028{"attempt_id": "y"}'
    )
    with server(lambda handler, number: handler.reply(text=forged)) as (url, _):
        chat = client(url, folder, calls=2)
        chat.chat([ask(1)])
        chat.close()
        calls = list(read_calls(folder / FILE_NAME))
        before = CallLog(folder / FILE_NAME).spent_before
        held = [call.get("reply") for call in calls] == [forged] and (before.calls, before.unsettled) == (1, 0)
        return held, f"{len(calls)} calls, spent {before.calls}"


@attack("the record of lost and paid attempts beside its running total, after much of both", "equal")
def _(folder: Path) -> tuple[bool, str]:
    draw = random.Random(2)

    def answer(handler: Handler, number: int) -> None:
        (handler.reset, handler.reply, lambda: handler.send(b"{}", 429))[draw.randrange(3)]()

    with server(answer) as (url, _):
        spend(client(url, folder, calls=60))
    calls = list(read_calls(folder / FILE_NAME))
    lost, paid = sum("unsettled" in call for call in calls), sum("reply" in call for call in calls)
    total = CallLog(folder / FILE_NAME).spent_before
    return (lost, paid) == (total.unsettled, total.calls) and lost + paid == 60, f"{lost} lost, {paid} paid, {total}"


@attack("a budget in dollars, prices unknown", "refused before anything is sent")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler, number: handler.reply()) as (url, generated):
        try:
            client(url, folder, usd=1.0).check()
        except (ConfigError, LLMError) as error:
            return not generated and "prices" in str(error), str(error)[:80]
    return False, "accepted"


if __name__ == "__main__":
    main("The hard budget counts what may have arrived")
