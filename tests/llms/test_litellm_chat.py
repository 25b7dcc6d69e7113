"""litellm against our server. Importing litellm takes seconds, hence `slow` where a request is made."""

import importlib.util
import subprocess
import sys

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import LLMError
from llmrl.llms.client import ChatClient
from llmrl.llms.litellm_chat import LiteLLMChat
from llmrl.llms.retry import Retry
from models import ask

KEY = "sk-canary-91c2"
installed = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is an optional package")


def chat(server, **kwargs):
    options = {"api_base": server.url, "timeout": 5.0, "temperature": 0.2, **kwargs}
    return ChatClient(LiteLLMChat("gpt-4o-mini", "OPENAI_API_KEY", **options), retry=Retry(1, first_delay=0.01))


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@installed
def test_missing_key_names_the_variable_before_litellm_is_imported():
    program = """
import os, sys
os.environ.pop("OPENAI_API_KEY", None)
from llmrl.llms.litellm_chat import LiteLLMChat
try:
    LiteLLMChat("gpt-4o", "OPENAI_API_KEY").check()
except Exception as error:
    print(type(error).__name__, error, "litellm" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.startswith("LLMError gpt-4o (litellm) needs a key in the environment variable OPENAI_API_KEY")
    assert output.strip().endswith("False")


@installed
@pytest.mark.slow
def test_reply_tokens_cost_and_schema(key):
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    with FakeOpenAIServer(lambda messages: "fine", key=KEY) as server:
        [reply] = chat(server, input_price=1.0, output_price=2.0).chat([ask(schema=schema)])
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("fine", 11, 7)
    assert reply.cost == pytest.approx((11 * 1 + 7 * 2) / 1e6)
    sent = server.requests[0]
    assert sent["model"] == "gpt-4o-mini" and sent["temperature"] == 0.2
    assert sent["response_format"]["json_schema"]["schema"] == schema


@installed
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["429-after", "500", "reset", "hang", "truncated", "no_choices"])
def test_passing_failures_are_tried_again_once_each(key, fault):
    with FakeOpenAIServer(lambda messages: "fine", retry_after="0.2") as server:
        server.faults += [fault]
        [reply] = chat(server, timeout=1.0).chat([ask()])
    assert reply.text == "fine"
    assert len(server.requests) == 2, "litellm must not retry by itself"


@installed
@pytest.mark.slow
def test_a_refused_key_is_an_error_without_the_key(key, caplog, capfd):
    with FakeOpenAIServer(key="another") as server, pytest.raises(LLMError, match="AuthenticationError") as error:
        chat(server).chat([ask()])
    captured = capfd.readouterr()
    assert KEY not in str(error.value) + caplog.text + captured.out + captured.err


@installed
@pytest.mark.slow
def test_reasoning_models_are_asked_in_their_own_terms(key):
    """No temperature, and a limit that counts thinking."""
    with FakeOpenAIServer(lambda messages: "fine", model="o4-mini") as server:
        model = LiteLLMChat(
            "o4-mini",
            "OPENAI_API_KEY",
            api_base=server.url,
            reasoning_effort="low",
            temperature=None,
            max_tokens=900,
        )
        [reply] = ChatClient(model).chat([ask()])
    [sent] = server.requests
    assert reply.text == "fine" and sent["reasoning_effort"] == "low" and "temperature" not in sent
    assert sent["max_completion_tokens"] == 900 and "max_tokens" not in sent
