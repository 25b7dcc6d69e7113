"""litellm with a local server; tests with requests are slow because importing litellm takes seconds."""

import contextlib
import importlib.util
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.option_files import load_options
from llmrl.core.records import ChatRequest
from llmrl.experiment.resources import CALL_POLICY_KEYS
from llmrl.llms import litellm_chat
from llmrl.llms.client import ChatClient
from llmrl.llms.litellm_chat import MIN_BLOCK_LENGTH, mark_cache_prefix, split_blocks
from llmrl.llms.retry import Retry
from models import make_client, make_litellm_model, make_request

KEY = "sk-canary-91c2"
installed = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is an optional package")


def chat(server, **kwargs):
    options = {"api_base": server.url, "timeout": 5.0, "temperature": 0.2, **kwargs}
    return make_client(
        make_litellm_model("gpt-4o-mini", "OPENAI_API_KEY", **options), retry=Retry(1, initial_delay=0.01)
    )


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@installed
def test_missing_key_precedes_litellm_import():
    program = """
import os, sys
os.environ.pop("OPENAI_API_KEY", None)
from llmrl.llms.by_name import build_model
try:
    build_model("gpt4o").check()
except Exception as error:
    print(type(error).__name__, error, "litellm" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.match("LLMError gpt-4o .*OPENAI_API_KEY.* False$", output, re.DOTALL)


@installed
@pytest.mark.slow
def test_reply_usage(key):
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    with FakeOpenAIServer(lambda messages: "fine", key=KEY) as server:
        [reply] = chat(server, input_price=1.0, output_price=2.0).chat([make_request(schema=schema)])
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("fine", 11, 7)
    assert reply.cost == pytest.approx((11 * 1 + 7 * 2) / 1e6)
    body = server.requests[0]
    assert body["model"] == "gpt-4o-mini" and body["temperature"] == 0.2
    assert body["response_format"]["json_schema"]["schema"] == schema


@installed
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["429-after", "500", "reset", "hang", "truncated", "no_choices"])
def test_transient_failures_retry(key, fault):
    with FakeOpenAIServer(lambda messages: "fine", retry_after="0.2") as server:
        server.faults += [fault]
        [reply] = chat(server, timeout=1.0).chat([make_request()])
    assert reply.text == "fine"
    assert len(server.requests) == 2, "litellm must not retry by itself"


@installed
@pytest.mark.slow
def test_invalid_key_error_omits_key(key, caplog, capfd):
    with FakeOpenAIServer(key="another") as server, pytest.raises(LLMError, match="AuthenticationError") as error:
        chat(server).chat([make_request()])
    captured = capfd.readouterr()
    assert KEY not in str(error.value) + caplog.text + captured.out + captured.err


@installed
@pytest.mark.slow
def test_reasoning_models_use_supported_parameters(key):
    """Requests have no temperature, and their token limit includes reasoning."""
    with FakeOpenAIServer(lambda messages: "fine", model="o3") as server:
        model = make_litellm_model(
            "o3",
            "OPENAI_API_KEY",
            api_base=server.url,
            reasoning_effort="low",
            temperature=None,
            max_tokens=900,
            thinking_budget=1000,
        )
        [reply] = ChatClient(model).chat([make_request()])
    [body] = server.requests
    assert reply.text == "fine" and body["reasoning_effort"] == "low" and "temperature" not in body
    assert body["max_completion_tokens"] == 1900 and "max_tokens" not in body


@installed
@pytest.mark.slow
def test_unsupported_settings_raise_early(monkeypatch):
    cases = [
        ("gpt-4o", {"reasoning_effort": "low"}, "reasoning_effort=low"),
        ("gpt-4o", {"thinking_budget": 2000}, "does not reason"),
        ("o3", {"top_p": 0.9}, "top_p=0.9"),
        ("anthropic/claude-haiku-4-5", {"sampling_seed": 3}, "sampling_seed=3"),
        ("anthropic/claude-haiku-4-5", {"thinking_budget": 100}, "minimum is 1024"),
        ("anthropic/claude-haiku-4-5", {"thinking_budget": 2000, "reasoning_effort": "low"}, "only one"),
        ("anthropic/claude-haiku-4-5", {"reasoning_effort": "high"}, "4096 tokens of thought"),
        ("anthropic/claude-haiku-4-5", {"extra_body": {"a": 1}}, "extra_body"),
        ("gemini/gemini-3.8-flash", {"reasoning_effort": "none"}, "sent as another"),
        ("mistral/mistral-medium-3-5", {"reasoning_effort": "medium"}, "sent as another"),
        ("no-such-model", {}, "does not know the provider"),
    ]
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for model, settings, message in cases:
        with pytest.raises(ConfigError, match=message):
            make_litellm_model(model, "OPENAI_API_KEY", max_tokens=2048, **settings).check()


@installed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "limit", "budget"),
    [
        ("anthropic/claude-haiku-4-5", {"max_tokens": 3000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ("gemini/gemini-2.5-flash", {"max_tokens": 3000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ("anthropic/claude-sonnet-5-5", {"max_tokens": 3000}, {}),
        ("o3", {"max_tokens": 3000}, {}),
    ],
)
def test_thinking_budget_requires_support(key, model, limit, budget):
    chat = make_litellm_model(model, "OPENAI_API_KEY", temperature=None, max_tokens=1000, thinking_budget=2000)
    chat.check()
    assert chat._completion_arguments == {**limit, **budget}


CLAUDE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "fine"}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 10,
        "output_tokens": 50,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 1000,
    },
}


@installed
@pytest.mark.slow
def test_claude_cache_usage(key):
    """Requests use Anthropic's protocol."""
    turns = [("system", "rules"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    request = ChatRequest(tuple({"role": role, "content": content} for role, content in turns))
    prices = {"input_price": 1.0, "cached_input_price": 0.1, "cache_write_price": 1.25, "output_price": 5.0}
    with serve_response(CLAUDE) as (address, requests):
        model = make_litellm_model("anthropic/claude-haiku-4-5", "OPENAI_API_KEY", api_base=address, **prices)
        [reply] = ChatClient(model).chat([request])
    [body] = requests
    parts = [*body["system"], *(part for message in body["messages"] for part in message["content"])]
    mark_cache_prefix = [part["text"] for part in parts if "cache_control" in part]
    assert mark_cache_prefix == ["rules", "two"]
    assert (reply.prompt_tokens, reply.cached_tokens, reply.cache_write_tokens) == (1110, 1000, 100)
    assert reply.cost == pytest.approx((10 * 1.0 + 1000 * 0.1 + 100 * 1.25 + 50 * 5.0) / 1e6)
    assert (reply.text, reply.thoughts) == ("fine", "hm")


@given(st.text("ab\n", max_size=9000), st.text("ab\n", max_size=3000), st.text("ab\n", max_size=3000))
def test_common_prefixes_split_identically(begin, first_end, second_end):
    first, second = split_blocks(begin + first_end), split_blocks(begin + second_end)
    assert "".join(first) == begin + first_end and all(block.endswith("\n") for block in first[:-1])
    shared = sum(
        len(a) for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
    longest_line = max(map(len, (begin + first_end).split("\n"))) + 1
    assert shared >= len(begin) - MIN_BLOCK_LENGTH - longest_line - 1 or first == second


def test_long_question_cache_mark_precedes_end():
    lines = "".join(f"generation {i}: payoff {i * i}\n" for i in range(400))
    [messages] = mark_cache_prefix([{"role": "user", "content": f"{lines}What now?"}])
    texts = [part["text"] for part in messages["content"]]
    assert "".join(texts) == f"{lines}What now?" and len(texts) > 4
    assert ["cache_control" in part for part in messages["content"]] == [*[False] * (len(texts) - 3), True, True, False]
    assert mark_cache_prefix([{"role": "user", "content": "short"}]) == [{"role": "user", "content": "short"}]


@contextlib.contextmanager
def serve_response(answer):
    """Yield the address of a server that returns the same response to all requests, and the list of requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_POST(self):
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "rate 1": {"type": "number", "description": "a rate"}},
    "required": ["reasoning", "rate 1"],
    "additionalProperties": False,
}
HOSTED_MODELS = [
    name for name, fields in load_options("llm").items() if str(fields["_target_"]).endswith("LiteLLMChat")
]


@installed
@pytest.mark.parametrize("option", HOSTED_MODELS)
def test_prices_match_litellm(option):
    """Prices are read from litellm's file to avoid its import. If a new version differs, update ours."""
    package = Path(importlib.util.find_spec("litellm").origin).parent
    prices_ = json.loads((package / "model_prices_and_context_window_backup.json").read_text())
    fields = {key: value for key, value in load_options("llm")[option].items() if key not in CALL_POLICY_KEYS}
    model = prices_.get(fields["model"]) or prices_[fields["model"].partition("/")[2]]
    prices = ("input_price", "input"), ("output_price", "output"), ("cached_input_price", "cache_read_input_token")
    for configured, published_price in prices:
        key = f"{published_price}_cost" if published_price.startswith("cache") else f"{published_price}_cost_per_token"
        assert fields[configured] == pytest.approx(model[key] * 1e6), configured
    if fields["cache_write_price"] is not None:
        assert fields["cache_write_price"] == pytest.approx(model["cache_creation_input_token_cost"] * 1e6)
    else:
        assert "cache_creation_input_token_cost" not in model
    assert model.get("deprecation_date", "9") > "2026-11", "it is no longer served"
    # Of models whose longer prompts have another price, what has the lower one is used.
    dearer = [re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key) for key in model]
    windows = [1000 * int(match[1]) for match in dearer if match] or [model["max_input_tokens"]]
    assert fields["context_window"] == min(windows)
    assert fields["max_tokens"] + (fields["thinking_budget"] or 0) <= model["max_output_tokens"]


@installed
@pytest.mark.slow
@pytest.mark.parametrize("option", HOSTED_MODELS)
def test_schema_format_per_provider(option, monkeypatch):
    """The request that litellm builds for each option file is checked without sending it: no provider is available."""
    from litellm.types.utils import CallTypes
    from litellm.utils import return_raw_request

    from llmrl.config.builder import Builder

    fields = {key: value for key, value in load_options("llm")[option].items() if key not in CALL_POLICY_KEYS}
    monkeypatch.setenv(fields["api_key_env"], KEY)
    model = Builder().build(fields, "llm")
    model.check()
    options_ = {}
    with monkeypatch.context() as patched:
        patched.setattr("litellm.completion", lambda **arguments: options_.update(arguments) or 1 / 0)
        with pytest.raises(LLMError, match="ZeroDivisionError"):
            model.complete([make_request("Which rate?", schema=SCHEMA)])
    assert options_.pop("api_key") == KEY  # given in the environment, too
    raw_request = return_raw_request(CallTypes.completion, {k: v for k, v in options_.items() if "retries" not in k})
    assert raw_request["error"] is None, raw_request
    body = json.dumps(raw_request["raw_request_body"])
    longest = fields["max_tokens"] + (fields["thinking_budget"] or 0)
    for part in (
        "Which rate?",
        '"rate 1"',
        '"additionalProperties": false',
        str(longest),
    ):
        assert part in body, part
    assert ("temperature" in body) == (fields["temperature"] is not None)
    assert KEY not in body


@installed
@pytest.mark.slow
def test_only_provider_is_contacted(key):
    """By default litellm downloads tables on import or on first use."""
    program = """
import socket, sys
hosts, real = set(), socket.getaddrinfo
def look_up(host, *arguments, **options):
    hosts.add(host if isinstance(host, str) else host.decode())
    return real(host, *arguments, **options)
socket.getaddrinfo = look_up
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.llms.by_name import build_model
for model in ("gpt-4o-mini", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"):
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    request = ChatRequest(({"role": "user", "content": "hi"},), schema=schema)
    try:
        build_model("gpt4o", model=model, api_base=sys.argv[1]).complete([request])
    except LLMError:
        pass  # nobody listens there
print(sorted(hosts))
"""
    command = [sys.executable, "-c", program, "http://127.0.0.1:9/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "['127.0.0.1']", done.stdout + done.stderr


@installed
def test_litellm_warnings_are_not_logged(caplog):
    litellm_chat._import_litellm()
    logging.getLogger("LiteLLM").warning("the model ignores a parameter")
    assert not caplog.records
