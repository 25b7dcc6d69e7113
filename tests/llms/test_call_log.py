import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import commands
from llmrl.analysis.llm_calls import CallTotals, read_run_totals
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.llms.cache import Cache, compute_request_key
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.scripted import ScriptedChat
from llmrl.llms.transcript import format_call
from models import EchoProvider, make_client, make_request, make_scripted_client


def refuse(reply):
    raise InvalidReply("too short")


def client(path, model=None, **policies):
    return make_client(model or EchoProvider(), call_log=CallLog(path), **policies)


def test_call_is_logged_completely(tmp_path):
    path = tmp_path / "run" / CALL_LOG_NAME
    request = make_request("zwei \u00fc\n", purpose="test", prompt="p/x", prompt_hash="ab", parse=refuse)
    model = client(path, sample_seed=5)
    model.chat([make_request("one", purpose="test")])
    model.chat([request])
    first, second = read_calls(path)
    assert abs(first.pop("time") - time.time()) < 60 and 0 <= first.pop("latency") < 60
    assert 0 <= first["spent"].pop("seconds") < 60
    assert first == {
        "hash": compute_request_key({"model": "echo"}, make_request("one"), sample_seed=5),
        "model": "echo",
        "identity": {"model": "echo"},
        "sample_seed": 5,
        "purpose": "test",
        "prompt": "",
        "prompt_hash": "",
        "repeat": 0,
        "messages": [{"role": "user", "content": "one"}],
        "schema": None,
        "reply": "one",
        "valid": None,
        "parse_error": None,
        "parsed_reply": None,
        "finish": "",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
        "thoughts": "",
        "cost": 7e-6,
        "attempts": 1,
        "cached": False,
        "spent": {
            "calls": 1,
            "attempts": 1,
            "failed": 0,
            "tokens": 5,
            "cost": 7e-6,
            "unknown_tokens": 0,
            "unknown_costs": 0,
            "unsettled": 0,
            "unsettled_tokens": 0,
            "unsettled_cost": 0.0,
        },
    }
    assert second["reply"] == "zwei \u00fc\n" and second["prompt_hash"] == "ab"
    assert second["valid"] is False and second["parse_error"] == "too short"
    assert second["spent"]["calls"] == 2


def test_spending_persists_across_processes(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    client(path).chat([make_request("one"), make_request("x" * 200_000)])
    path.write_bytes(path.read_bytes() + b'{"cut sho')
    next_client = client(path)
    assert next_client.metrics()["usage/llm_calls"] == 2 and next_client.metrics()["llm/calls"] == 0
    next_client.chat([make_request("three")])
    assert list(read_calls(path))[-1]["spent"]["calls"] == 3


def test_failures_are_in_log_with_successes(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    model = client(path, EchoProvider(fail={"a": LLMError("HTTP 401", refused=True)}))
    with pytest.raises(LLMError, match=r"HTTP 401 \(1 of 2 "):
        model.chat([make_request("a"), make_request("b")])
    failed, success = sorted(read_calls(path), key=lambda call: "reply" in call)
    assert failed["error"] == "HTTP 401" and "reply" not in failed
    assert success["reply"] == "b"
    assert model.metrics()["usage/llm_calls"] == 1 and model.metrics()["usage/llm_failed_calls"] == 1


def test_threads_do_not_mix_lines(tmp_path):
    model = client(tmp_path / CALL_LOG_NAME)

    def work(i):
        for j in range(50):
            model.chat([make_request(f"{i}-{j} " + "x" * 5000)])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = list(read_calls(tmp_path / CALL_LOG_NAME))
    assert len({call["reply"] for call in calls}) == len(calls) == 400 == model.metrics()["llm/calls"]
    assert [call["spent"]["calls"] for call in calls] == sorted(call["spent"]["calls"] for call in calls)


def test_truncated_line_is_skipped(tmp_path, caplog):
    path = tmp_path / CALL_LOG_NAME
    model = client(path)
    model.chat([make_request("one")])
    model.chat([make_request("two")])
    content = path.read_bytes()
    for n_bytes in (1, 2, 40, 300):
        path.write_bytes(content[:-n_bytes])
        client(path).chat([make_request("three")])
        # Without its newline a record is still whole; else all that is left of the call is that it was asked.
        replies = ["one", "two", "three"] if n_bytes == 1 else ["one", None, "three"]
        calls = list(read_calls(path))
        assert [call.get("reply") for call in calls] == replies
        assert [call.get("unsettled", False) for call in calls] == [text is None for text in replies]
    assert "line 4:" in caplog.text


def test_kill_9_preserves_complete_calls(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    program = f"""
from pathlib import Path
from llmrl.llms.client import ChatClient
from llmrl.llms.call_log import CallLog
from models import EchoProvider, make_request
model = ChatClient(EchoProvider(), call_log=CallLog(Path({str(path)!r})))
n = 0
while True:
    model.chat([make_request(f"{{n}} " + "y" * 200_000)])
    n += 1
    print(n, flush=True)
"""
    process = commands.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    n_finished = 0
    for line in process.stdout:
        n_finished = int(line)
        if n_finished >= 20:
            os.kill(process.pid, signal.SIGKILL)
            break
    n_finished = max([n_finished, *(int(line) for line in process.stdout)])
    process.wait()
    process.stdout.close()
    client(path).chat([make_request("after")])
    calls = list(read_calls(path))
    assert [call["reply"].split()[0] for call in calls[:n_finished]] == [str(i) for i in range(n_finished)]
    assert calls[-1]["reply"] == "after"


def test_unwritable_log(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="call log"):
        CallLog(tmp_path / "file" / CALL_LOG_NAME)


def test_parsed_value_is_logged_with_reply(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    client(path).chat(
        [make_request("1, 2", parse=lambda reply: (np.array([1.0, 2.0]), "why")), make_request("x", parse=refuse)]
    )
    good, bad = sorted(read_calls(path), key=lambda call: call["reply"])  # two at once: either may come first
    assert (good["reply"], good["parsed_reply"], good["parse_error"]) == ("1, 2", [[1.0, 2.0], "why"], "")
    assert (bad["parsed_reply"], bad["parse_error"]) == (None, "too short")
    assert '**Understood as:**\n\n```\n[[1.0, 2.0], "why"]\n```' in format_call(good)
    assert "**Not understood:**\n\n```\ntoo short\n```" in format_call(bad)


def test_totals_across_run_folders(tmp_path):
    cache = Cache(tmp_path / "cache")
    for seed in (0, 1):
        model = client(tmp_path / f"s{seed}" / CALL_LOG_NAME, cache=cache)  # one stream: the second run pays nothing
        model.chat([make_request("a", parse=lambda reply: reply.text), make_request("b", parse=refuse)])
    unknown = client(
        tmp_path / "other" / CALL_LOG_NAME, EchoProvider(input_price=None, fail={"x": LLMError("no", refused=True)})
    )
    unknown.chat([make_request("a")])
    with pytest.raises(LLMError):
        unknown.chat([make_request("x")])
    client(tmp_path / "s0" / "backup_1" / CALL_LOG_NAME).chat([make_request("a")])
    (tmp_path / "silent").mkdir()
    CallLog(tmp_path / "silent" / CALL_LOG_NAME)
    totals = {name: read_run_totals(tmp_path / name) for name in ("s0", "s1", "other", "silent")}
    assert totals.pop("silent") == CallTotals()
    assert totals["s0"] == CallTotals(("echo",), 2, 0, 0, 2, 1, 6, 4, pytest.approx(14e-6))
    assert totals["s1"] == CallTotals(("echo",), 2, 2, 0, 2, 1, 6, 4, 0.0)
    assert totals["other"] == CallTotals(("echo",), 1, 0, 1, 0, 0, 3, 2, None)
    total = totals["s0"] + totals["other"]
    assert (total.calls, total.failed, total.cost) == (3, 1, None)


def test_lines_are_readable_json(tmp_path):
    model = ChatClient(make_scripted_client().provider, call_log=CallLog(tmp_path / CALL_LOG_NAME))
    model.chat([make_request("This is a connection test. \u00fc", purpose="check")])
    line = (tmp_path / CALL_LOG_NAME).read_text(encoding="utf-8")
    assert "\u00fc" in line and json.loads(line)["model"] == ScriptedChat.label
