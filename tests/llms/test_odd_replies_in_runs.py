"""Unusual replies of servers and of the cache do not end runs."""

import json

import pytest

from experiments import find_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from models import EchoProvider, connect_client, make_request

PLAY = ("env=cartpole", "agent=llm_player", "agent.lessons=1", "env.n_envs=1", "env.horizon=2", "play.episodes=2")
LONG = "9" * 5000


def model(server):
    return ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model", "llm.api_key_env=null")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "content", "valid"),
    [
        (PLAY, {"reflection": "\ud800", "action": 0, "lesson": "\udfff"}, True),
        (PLAY, {"reflection": "why", "action": LONG, "lesson": "none"}, False),
    ],
    ids=["half a pair in what is remembered", "5,000 digits"],
)
def test_run_survives_odd_reply(tmp_path, game, content, valid):
    with FakeOpenAIServer(lambda messages: json.dumps(content)) as server:
        run(*game, *model(server), f"output_root={tmp_path}")
        n_requests = len(server.requests)
        run(*game, *model(server), "rerun=true", f"output_root={tmp_path}")  # out of the cache
        assert len(server.requests) == n_requests
    calls = list(read_calls(find_run_folder(tmp_path) / CALL_LOG_NAME))
    assert len(calls) == n_requests and calls[0]["valid"] is valid


def test_odd_cached_reply_is_cleaned(tmp_path):
    from llmrl.llms.cache import Cache

    with FakeOpenAIServer(lambda messages: "kept") as server:
        connect_client(server, cache=Cache(tmp_path)).chat([make_request("q")])
        [path] = tmp_path.rglob("*.json")
        path.write_text(path.read_text().replace("kept", "\\ud800"))
        client = connect_client(server, cache=Cache(tmp_path), call_log=CallLog(tmp_path / CALL_LOG_NAME))
        assert client.chat([make_request("q")])[0].text == "\ufffd"


def test_log_with_unreadable_lines(tmp_path):
    from llmrl.llms.client import ChatClient

    path = tmp_path / CALL_LOG_NAME
    ChatClient(EchoProvider(), call_log=CallLog(path)).chat([make_request("q")])
    path.write_text(f'{{"hash": {LONG}}}\n{"[" * 100_000}\n' + path.read_text())
    assert [call["reply"] for call in read_calls(path)] == ["q"]
