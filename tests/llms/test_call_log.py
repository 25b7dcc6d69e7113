import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.protocols import ChatModel
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.call_log import LoggedChat, read_calls
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.request_key import request_key
from llmrl.llms.scripted import ScriptedChat


def ask(text="hi", purpose="test"):
    return ChatRequest(({"role": "user", "content": text},), purpose=purpose)


class Echo:
    label = "echo"
    identity = {"model": "echo"}

    def __init__(self, **reply):
        self.reply = {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.5, "latency": 0.25, **reply}

    def check(self):
        pass

    def chat(self, requests):
        return [ChatReply(request.messages[-1]["content"], **self.reply) for request in requests]


def test_a_call_is_logged_whole(tmp_path):
    log = LoggedChat(Echo(), tmp_path / "run" / "llm_calls.jsonl")
    assert isinstance(log, ChatModel) and log.label == "echo"
    log.chat([ask("one"), ask("zwei \u00fc\n")])
    first, second = read_calls(log.path)
    assert abs(first.pop("time") - time.time()) < 60
    assert first == {
        "hash": request_key({"model": "echo"}, ask("one")),
        "model": "echo",
        "purpose": "test",
        "messages": [{"role": "user", "content": "one"}],
        "schema": None,
        "reply": "one",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cost": 0.5,
        "latency": 0.25,
    }
    assert second["reply"] == "zwei \u00fc\n"


def test_totals_and_their_state(tmp_path):
    log = LoggedChat(Echo(), tmp_path / "a.jsonl")
    log.chat([ask()] * 3)
    expected = {
        "llm/calls": 3.0,
        "llm/failed_calls": 0.0,
        "llm/prompt_tokens": 9.0,
        "llm/completion_tokens": 6.0,
        "time/llm_latency": 0.75,
        "llm/cost": 1.5,
    }
    assert log.metrics() == expected
    other = LoggedChat(Echo(), tmp_path / "b.jsonl")
    other.load_state_dict(json.loads(json.dumps(log.state_dict())))
    assert other.metrics() == expected
    other.chat([ask()])
    assert log.metrics() == expected, "the state must not be shared"


def test_unknown_is_not_zero(tmp_path):
    log = LoggedChat(Echo(cost=None, prompt_tokens=None), tmp_path / "a.jsonl")
    log.chat([ask()])
    assert set(log.metrics()) == {"llm/calls", "llm/failed_calls", "llm/completion_tokens", "time/llm_latency"}
    log.inner = Echo()
    log.chat([ask()])
    assert "llm/cost" not in log.metrics(), "a sum with an unknown term stays unknown"


def test_failures_are_logged_beside_the_replies_that_were_paid_for(tmp_path):
    with FakeOpenAIServer() as server:
        server.faults += ["401"]
        model = OpenAICompatibleChat(server.url, "fake-model", concurrency=1, retries=0)
        log = LoggedChat(model, tmp_path / "a.jsonl")
        with pytest.raises(LLMError):
            log.chat([ask("a"), ask("b")])
    failed, answered = read_calls(log.path)
    assert "HTTP 401" in failed["error"] and "reply" not in failed
    assert answered["reply"] == "hello"
    assert log.metrics()["llm/calls"] == 2 and log.metrics()["llm/failed_calls"] == 1


def test_key_reaches_no_file(tmp_path, monkeypatch):
    key = "sk-canary-55aa"
    monkeypatch.setenv("MY_KEY", key)
    with FakeOpenAIServer(key="another") as server:
        model = OpenAICompatibleChat(server.url, "fake-model", api_key_env="MY_KEY")
        log = LoggedChat(model, tmp_path / "a.jsonl")
        with pytest.raises(LLMError):
            log.chat([ask()])
    assert "401" in log.path.read_text() and key not in log.path.read_text()


def test_threads_do_not_mix_lines(tmp_path):
    log = LoggedChat(Echo(), tmp_path / "a.jsonl")

    def work(i):
        for j in range(50):
            log.chat([ask(f"{i}-{j} " + "x" * 5000)])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = read_calls(log.path)
    assert len({call["reply"] for call in calls}) == len(calls) == 400 == log.metrics()["llm/calls"]


def test_a_line_cut_short_is_closed_and_skipped(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    LoggedChat(Echo(), path).chat([ask("one"), ask("two")])
    whole = path.read_bytes()
    for cut in (1, 2, 40, len(whole) // 3):
        path.write_bytes(whole[:-cut])
        LoggedChat(Echo(), path).chat([ask("three")])
        # Without its newline a record is still whole.
        expected = ["one", "two", "three"] if cut == 1 else ["one", "three"]
        assert [call["reply"] for call in read_calls(path)] == expected
    assert "line 2: not a whole record" in caplog.text


def test_kill_9_loses_no_finished_call(tmp_path):
    path = tmp_path / "a.jsonl"
    program = f"""
from pathlib import Path
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.call_log import LoggedChat
class Model:
    label = "m"
    def check(self): pass
    def chat(self, requests): return [ChatReply("y" * 200_000) for _ in requests]
log = LoggedChat(Model(), Path({str(path)!r}))
n = 0
while True:
    log.chat([ChatRequest(({{"role": "user", "content": str(n)}},))])
    n += 1
    print(n, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    finished = 0
    for line in process.stdout:
        finished = int(line)
        if finished >= 20:
            os.kill(process.pid, signal.SIGKILL)
            break
    finished = max([finished, *(int(line) for line in process.stdout)])
    process.wait()
    process.stdout.close()
    LoggedChat(Echo(), path).chat([ask("after")])
    calls = read_calls(path)
    assert [call["messages"][0]["content"] for call in calls[:finished]] == [str(i) for i in range(finished)]
    assert calls[-1]["reply"] == "after"


def test_unwritable_log(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write the call log"):
        LoggedChat(ScriptedChat(), tmp_path / "file" / "a.jsonl")


def test_request_key_changes_with_what_can_change_the_answer():
    identity = {"model": "m", "temperature": 1.0}
    base = request_key(identity, ask("a"))
    assert base == request_key({"temperature": 1.0, "model": "m"}, ask("a", purpose="another"))
    others = [
        request_key({**identity, "temperature": 0.5}, ask("a")),
        request_key(identity, ask("b")),
        request_key(identity, ChatRequest(ask("a").messages, schema={"type": "object"})),
        request_key(identity, ask("a"), repeat=1),
    ]
    assert len({base, *others}) == 5
