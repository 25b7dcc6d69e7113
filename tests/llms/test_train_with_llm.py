"""Complete runs with a principal that uses a server."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import commands
from experiments import find_run_folder, load_comparable_metrics, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import LLMError
from llmrl.llms.call_log import read_calls
from llmrl.principals import scripted_mechanism

KEY = "sk-canary-1234"
RUN = (
    "env=escape_room",
    "principal=llm",
    "design.evaluations=1",
    "design.steps=5",
    "design.adapt_rounds=1",
    "design.validate_episodes=1",
)
RUN += ("design.references=0",)


def legislator():
    """Return a function with valid replies, of which every fourth is invalid."""
    calls = []

    def reply(messages):
        calls.append(messages)
        readable = scripted_mechanism.reply(messages)
        return "No idea, perhaps $5?" if len(calls) % 4 == 2 else readable

    return reply


def test_run_survives_server_restart(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with FakeOpenAIServer(legislator(), key=KEY) as server:
        server.faults += ["429-after", "truncated"]
        run(
            *RUN,
            "llm=openai_compatible",
            f"llm.base_url={server.url}",
            "llm.model=fake-model",
            "llm.api_key_env=MY_KEY",
            "llm.retry.initial_delay=0.01",
            f"output_root={tmp_path}",
        )
    folder = find_run_folder(tmp_path)
    unsettled, *calls = read_calls(folder / "llm_calls.jsonl")
    assert unsettled["unsettled"] and unsettled["attempt"] == 2
    # Replies 1 (cut off on the way) to 8, of which 2 and 6 cannot be read: five proposals and two repairs.
    assert len(calls) == 7 and all(call["prompt_tokens"] == 11 and call["cost"] is None for call in calls)
    assert [call["valid"] for call in calls] == [False, True, True, True, False, True, True]
    assert {call["prompt"] for call in calls} == {"principal/escape_room"}
    assert [call["attempts"] for call in calls] == [3, 1, 1, 1, 1, 1, 1]
    last = load_comparable_metrics(folder, "proposal")[-1]
    assert [last[f"llm/{name}"] for name in ("invalid_replies", "repairs", "fallbacks")] == [2, 2, 0]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_missing_key_stops_run_early(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("llmrl.envs.escape_room.EscapeRoom.__init__", lambda *args, **kwargs: pytest.fail("started"))
    with pytest.raises(LLMError, match="OPENAI_API_KEY"):
        run(*RUN, "llm=gpt4o", f"output_root={tmp_path}")


@pytest.mark.long
@pytest.mark.slow
def test_signal_ends_wait_for_unreachable_server(tmp_path):
    """The signal of a scheduler during an outage: the run saves its state, and the same command resumes it."""
    with FakeOpenAIServer(legislator()) as server:
        overrides = (*RUN, "llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model")
        command = [sys.executable, "-m", "llmrl.cli.train", *overrides, "llm.retry.initial_delay=30"]
        server.faults += ["503"] * 20
        process = commands.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        while not server.requests and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, errors
        assert "is saved" in errors and "Traceback" not in errors
        assert len(server.requests) == 1
        folder = find_run_folder(tmp_path)
        assert json.loads((folder / "status.json").read_text())["state"] == "preempted"
        server.faults.clear()
        second_run = commands.run(
            command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120
        )
    assert second_run.returncode == 0, second_run.stderr
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
