import socket

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry
from models import connect_client, make_client, make_openai_model, make_request

KEY = "sk-canary-7f3a9d"


def chat(server, retries=3, limits=None, **provider):
    return connect_client(server, retries, provider, limits=limits or RateLimit())


def test_reply_usage():
    with FakeOpenAIServer(lambda messages: messages[-1]["content"].upper()) as server:
        model = chat(server, input_price=2.0, output_price=10.0, temperature=0.3, max_tokens=50)
        model.check()
        [reply] = model.chat([make_request("hello")])
    assert reply.text == "HELLO"
    assert (reply.prompt_tokens, reply.completion_tokens) == (11, 7)
    assert reply.cost == pytest.approx((11 * 2 + 7 * 10) / 1e6)
    assert reply.latency > 0
    assert server.requests == [
        {
            "model": "fake-model",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": False,
            "temperature": 0.3,
            "max_tokens": 50,
        }
    ]


def test_null_content_has_unknown_price():
    with FakeOpenAIServer() as server:
        server.faults += ["null_content"]
        [reply] = chat(server, input_price=1.0).chat([make_request()])
    assert reply.cost is None and reply.text == ""


@pytest.mark.parametrize("structured", [True, False])
def test_schema_requires_server_support(structured):
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    with FakeOpenAIServer() as server:
        chat(server, structured=structured).chat([make_request(schema=schema)])
    assert ("response_format" in server.requests[0]) is structured
    if structured:
        assert server.requests[0]["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize("fault", ["429", "429-after", "500", "503", "reset", "malformed", "truncated", "no_choices"])
def test_transient_failures_retry(fault):
    with FakeOpenAIServer(lambda messages: "fine") as server:
        server.faults += [fault, fault]
        [reply] = chat(server).chat([make_request()])
    assert reply.text == "fine" and len(server.requests) == 3


def test_hanging_server_times_out():
    with FakeOpenAIServer(lambda messages: "fine") as server:
        server.faults += ["hang"]
        [reply] = chat(server, timeout=0.3).chat([make_request()])
    assert reply.text == "fine" and len(server.requests) == 2


def test_retry_after_is_honored():
    with FakeOpenAIServer(retry_after="0.4") as server:
        server.faults += ["429-after"]
        chat(server).chat([make_request()])
    # The backoff alone would be 0.01 s.
    assert server.times[1] - server.times[0] >= 0.4


def test_long_retry_after_raises_immediately():
    with FakeOpenAIServer(retry_after="86400") as server:
        server.faults += ["429-after"]
        with pytest.raises(LLMError, match="86400 s"):
            chat(server).chat([make_request()])
    assert len(server.requests) == 1


def test_retries_end_with_reason():
    with FakeOpenAIServer() as server:
        server.faults += ["503"] * 10
        with pytest.raises(LLMError, match=r"HTTP 503.*fault 503.* 4 times"):
            chat(server).chat([make_request()])
    assert len(server.requests) == 4


def test_invalid_key_is_hidden(monkeypatch, caplog):
    monkeypatch.setenv("MY_KEY", KEY)
    with FakeOpenAIServer(key="another") as server:
        model = chat(server, api_key_env="MY_KEY")
        with pytest.raises(LLMError, match="MY_KEY") as checked:
            model.check()
        with pytest.raises(LLMError, match="MY_KEY") as error:
            model.chat([make_request()])
    assert server.requests == []
    assert "<redacted>" in str(error.value)
    assert KEY not in str(checked.value) + str(error.value) + caplog.text + repr(model.provider.identity) + repr(
        vars(model.provider)
    )


def test_request_contains_key(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with FakeOpenAIServer(key=KEY) as server:
        model = chat(server, api_key_env="MY_KEY")
        model.check()
        assert model.chat([make_request()])[0].text == "hello"


def test_missing_key_names_the_variable(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with FakeOpenAIServer() as server, pytest.raises(LLMError, match="MY_KEY"):
        chat(server, api_key_env="MY_KEY").check()


def test_unreachable_server_error_contains_address():
    with socket.socket() as server_socket:
        server_socket.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{server_socket.getsockname()[1]}/v1"
        model = make_client(make_openai_model(url, "m"), retry=Retry(1, initial_delay=0.01))
        with pytest.raises(LLMError, match=f"no answer.*{url}"):
            model.check()
        with pytest.raises(LLMError, match="tried 2 times"):
            model.chat([make_request()])


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://user:secret@host/v1"])
def test_bad_address(url):
    with pytest.raises(ConfigError, match=r"llm\.base_url") as error:
        make_openai_model(url, "m")
    assert "secret" not in str(error.value)


def test_batches_keep_order():
    with FakeOpenAIServer(lambda messages: messages[0]["content"]) as server:
        server.delay = 0.05
        replies = chat(server, limits=RateLimit(3)).chat([make_request(str(i)) for i in range(10)])
    assert [reply.text for reply in replies] == [str(i) for i in range(10)]
    assert 1 < server.most_in_flight <= 3


def test_empty_batch():
    assert ChatClient(make_openai_model("http://localhost:1/v1", "m")).chat([]) == []


def test_failed_model_list_is_ignored():
    """Some servers answer questions but cannot list what they serve."""
    with FakeOpenAIServer() as server:
        server.models_status = 500
        make_openai_model(server.url, "fake-model").check()


def test_stop_reasons_with_cached_tokens():
    with FakeOpenAIServer() as server:
        [reply] = chat(server).chat([make_request()])
    assert reply.finish == "stop" and reply.cached_tokens is None
