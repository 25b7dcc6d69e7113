"""API keys do not occur in files or output, even if servers quote them."""

import importlib.util
import os
import sys

import pytest

import commands
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.retry import Retry
from llmrl.principals import scripted_mechanism
from models import make_client, make_openai_model

KEY = "sk-canary-Zq3vXw81LkTn0PfYb7RdUe"
PIECES = (KEY[: len(KEY) // 2].encode(), KEY[len(KEY) // 2 :].encode())
"""A key cut in half by a message cut short is a leak, too."""

GAME = (
    "env=escape_room",
    "env.n_envs=4",
    "principal=llm",
    "design.evaluations=1",
    "design.steps=6",
    "design.references=0",
    "design.adapt_rounds=0",
    "design.validate_episodes=4",
    "llm.retry.initial_delay=0.001",
)


def openai_compatible(url):
    return ("llm=openai_compatible", "llm.model=fake-model", f"llm.base_url={url}", "llm.api_key_env=OPENAI_API_KEY")


def litellm(url):
    return ("llm=gpt4o", f"llm.api_base={url}", "llm.api_key_env=OPENAI_API_KEY")


PROVIDERS = [
    openai_compatible,
    pytest.param(
        litellm, marks=pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional")
    ),
]
SOME_PROVIDERS = [openai_compatible, pytest.param(litellm, marks=[*PROVIDERS[1].marks, pytest.mark.long])]


def reply(messages):
    return scripted_mechanism.reply(messages)


def find_leaks(*texts, folder=None, started=True):
    """Return where a piece of the key occurs.

    The result has the numbers of the `texts` and the names of the files below `folder` that contain it; without
    `started` there may be none.
    """
    contents = {f"text {number}": text for number, text in enumerate(texts)}
    if folder is not None:
        contents |= {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert len(contents) > len(texts) or not started, "there are no files to look into"
    return {name for name, content in contents.items() if any(piece in content for piece in PIECES)}


def command(folder, module, *arguments):
    """Run a command with the most verbose logging and return its exit code, stdout and stderr."""
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "HYDRA_FULL_ERROR": "1"}
    process = commands.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


def train(folder, *overrides):
    return command(folder, "llmrl.cli.train", *GAME, f"output_root={folder}", *overrides)


@pytest.mark.slow
def test_leak_detection(tmp_path):
    """Checks the detection itself: an unregistered secret is found in all files."""
    half = PIECES[1].decode()
    with FakeOpenAIServer(lambda messages: f"I am {half}", model=half) as server:
        code, out, err = train(tmp_path, *openai_compatible(server.url), "llm.api_key_env=null", "design.steps=1")
    assert code == 0
    matches = find_leaks(out, err, folder=tmp_path)
    assert "llm_calls.jsonl" in matches
    assert sum(len(name) == 64 + len(".json") for name in matches) >= 1, "the cache"


@pytest.mark.slow
@pytest.mark.parametrize("provider", SOME_PROVIDERS)
def test_rejected_key_is_hidden(tmp_path, provider):
    with FakeOpenAIServer(reply, key="another") as server:
        code, out, err = train(tmp_path, *provider(server.url))
    assert code == 1 and (b"refuses" in err or b"AuthenticationError" in err)
    # A run that is refused at once has no folder.
    assert find_leaks(out, err, folder=tmp_path, started=False) == set()


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_leaked_key_reaches_no_file(tmp_path, provider):
    with FakeOpenAIServer(reply, key=KEY) as server:
        # In the text of passing errors, in replies (the question and its repair), and in the error that ends the run.
        server.faults += ["500-echo", "echo", "500-echo", "echo", "echo", "malformed", "400-echo"]
        code, out, err = train(tmp_path, *provider(server.url), "hydra.verbose=true")
        assert not server.faults
    assert code == 1 and b"fault 400-echo" in err
    assert find_leaks(out, err, folder=tmp_path) == set()
    assert any("<redacted>" in path.read_text() for path in tmp_path.rglob("llm_calls.jsonl"))
    assert any("<redacted>" in path.read_text() for path in tmp_path.rglob("traceback.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("provider", SOME_PROVIDERS)
def test_the_check_command_quotes_no_key(tmp_path, provider):
    with FakeOpenAIServer(key=KEY) as server:
        server.faults += ["500-echo", "echo"]
        code, out, err = command(
            tmp_path, "llmrl.cli.llm", "check", *provider(server.url), "llm.retry.initial_delay=0.001"
        )
        # The reply is not of the form asked for.
        assert code == 1 and b"<redacted>" in out and not server.faults
        # With the schema and, in case that was the trouble, without.
        server.faults += ["400-echo", "400-echo"]
        code, *output = command(tmp_path, "llmrl.cli.llm", "check", *provider(server.url))
        assert code == 1 and b"fault 400-echo" in output[1] and not server.faults
    assert find_leaks(out, err, *output) == set()


def test_message_truncation_keeps_key_masked(tmp_path, monkeypatch, caplog):
    """At every position of the key in a damaged response."""
    monkeypatch.setenv("MY_KEY", KEY)
    with FakeOpenAIServer(lambda messages: "x" * int(messages[0]["content"]) + KEY + "y" * 2000, key=KEY) as server:
        provider = make_openai_model(server.url, "fake-model", api_key_env="MY_KEY")
        chat = make_client(provider, Cache(tmp_path / "cache"), CallLog(tmp_path / "calls.jsonl"), retry=Retry(0))
        for padding in range(0, 600, 3):
            server.faults.append("truncated-json")
            with pytest.raises(LLMError, match="completion") as error:
                chat.chat([ChatRequest(({"role": "user", "content": str(padding)},))])
            assert find_leaks(str(error.value).encode(), caplog.text.encode(), folder=tmp_path) == set()
        chat.close()


@pytest.mark.parametrize("ending", ["\n", "\r\n", " "])
def test_key_whitespace_is_stripped(monkeypatch, ending):
    """Keys read from files often end in a line break, which is invalid in headers."""
    monkeypatch.setenv("MY_KEY", KEY + ending)
    with FakeOpenAIServer(lambda messages: f"you sent {KEY}", key=KEY) as server:
        provider = make_openai_model(server.url, "fake-model", api_key_env="MY_KEY")
        provider.check()
        chat = ChatClient(provider)
        [reply] = chat.chat([ChatRequest(({"role": "user", "content": "hi"},))])
        chat.close()
    assert reply.text == "you sent <redacted>"


@pytest.mark.parametrize("middle", ["\n", " ", "\u00e9", "\x01"])
def test_invalid_key_error_hides_key(monkeypatch, middle):
    monkeypatch.setenv("MY_KEY", KEY + middle + KEY)
    with pytest.raises(LLMError, match=r"MY_KEY .*ASCII") as error:
        make_openai_model("http://localhost:1/v1", "fake-model", api_key_env="MY_KEY").check()
    assert not any(piece.decode() in str(error.value) for piece in PIECES)
