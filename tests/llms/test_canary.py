"""A key stays where it is: in the environment. Servers that quote it do their best to bring it into a file."""

import importlib.util
import os
import sys

import pytest

import commands
from fake_batch_server import FakeBatchServer
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.retry import Retry
from llmrl.principals import scripted_mechanism

KEY = "sk-canary-Zq3vXw81LkTn0PfYb7RdUe"
PIECES = (KEY[: len(KEY) // 2].encode(), KEY[len(KEY) // 2 :].encode())
"""A key cut in half by a message cut short is a leak, too."""

GAME = (
    "env=escape_room",
    "env.n_envs=4",
    "principal=llm",
    "design.steps=6",
    "design.references=0",
    "design.adapt_rounds=0",
    "design.validate_episodes=4",
    "llm.retry.first_delay=0.001",
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


def reply(messages):
    return scripted_mechanism.reply(messages)


def leaks(*texts, folder=None, started=True):
    """Numbers of the `texts`, and names of the files below `folder`, in which a piece of the key is; without `started`
    there need be none."""
    contents = {f"text {number}": text for number, text in enumerate(texts)}
    if folder is not None:
        contents |= {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert len(contents) > len(texts) or not started, "there are no files to look into"
    return {name for name, content in contents.items() if any(piece in content for piece in PIECES)}


def command(folder, module, *arguments):
    """Exit code, stdout and stderr of one of our programs, with every detail it can be made to print."""
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
def test_what_does_leak_is_found(tmp_path):
    """The rest of this file can fail: a text that nobody knows to be a key is found wherever it goes."""
    half = PIECES[1].decode()
    with FakeOpenAIServer(lambda messages: f"I am {half}", model=half) as server:
        code, out, err = train(tmp_path, *openai_compatible(server.url), "llm.api_key_env=null", "design.steps=1")
    assert code == 0
    found = leaks(out, err, folder=tmp_path)
    assert "llm_calls.jsonl" in found
    assert "text 0" in found or "text 1" in found
    assert sum(len(name) == 64 + len(".json") for name in found) >= 1, "the cache"


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_refused_key_is_not_quoted(tmp_path, provider):
    with FakeOpenAIServer(reply, key="another") as server:
        code, out, err = train(tmp_path, *provider(server.url))
    assert code == 1 and (b"refuses" in err or b"AuthenticationError" in err)
    # A run that is refused at once has no folder.
    assert leaks(out, err, folder=tmp_path, started=False) == set()


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_quoted_key_reaches_no_file(tmp_path, provider):
    with FakeOpenAIServer(reply, key=KEY) as server:
        # In the text of passing errors, in replies (the question and its repair), and in the error that ends the run.
        server.faults += ["500-echo", "echo", "500-echo", "echo", "echo", "malformed", "400-echo"]
        code, out, err = train(tmp_path, *provider(server.url), "hydra.verbose=true")
        assert not server.faults
    assert code == 1 and b"fault 400-echo" in err
    assert leaks(out, err, folder=tmp_path) == set()
    assert any("<redacted>" in path.read_text() for path in tmp_path.rglob("llm_calls.jsonl"))
    assert any("<redacted>" in path.read_text() for path in tmp_path.rglob("traceback.txt"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional")
def test_batches_bring_the_key_into_no_file(tmp_path):
    """Quoted by every operation, in an answer, and in the error that ends the run, while a batch is under way."""
    with FakeBatchServer("openai", reply=lambda messages: f"you sent {KEY}", key=KEY) as server:
        for operation in ("upload", "create", "look", "fetch"):
            server.faults[operation].append("500")
        words = ("llm.batch=true", "llm.batch_gather=0", "llm.batch_poll=0.05", "llm.max_invalid=null")
        server.faults["look"] += ["pass"] * 8 + ["echo"]
        code, out, err = train(tmp_path, *litellm(server.url), *words, "hydra.verbose=true")
        assert not any(server.faults.values())
    assert code == 1 and b"your key <redacted> was no help" in err
    assert leaks(out, err, folder=tmp_path) == set()
    assert list(tmp_path.rglob("batches/*.json")), "none was under way"
    assert any("<redacted>" in path.read_text() for path in tmp_path.rglob("llm_calls.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_check_command_quotes_no_key(tmp_path, provider):
    with FakeOpenAIServer(key=KEY) as server:
        server.faults += ["500-echo", "echo"]
        code, out, err = command(
            tmp_path, "llmrl.cli.llm", "check", *provider(server.url), "llm.retry.first_delay=0.001"
        )
        # The reply is not of the form asked for.
        assert code == 1 and b"<redacted>" in out and not server.faults
        # With the schema and, in case that was the trouble, without.
        server.faults += ["400-echo", "400-echo"]
        code, *more = command(tmp_path, "llmrl.cli.llm", "check", *provider(server.url))
        assert code == 1 and b"fault 400-echo" in more[1] and not server.faults
    assert leaks(out, err, *more) == set()


def test_a_message_is_not_cut_within_a_key(tmp_path, monkeypatch, caplog):
    """Wherever in a damaged answer the key stands."""
    monkeypatch.setenv("MY_KEY", KEY)
    with FakeOpenAIServer(lambda messages: "x" * int(messages[0]["content"]) + KEY + "y" * 2000, key=KEY) as server:
        provider = OpenAICompatibleChat(server.url, "fake-model", api_key_env="MY_KEY")
        chat = ChatClient(provider, Cache(tmp_path / "cache"), CallLog(tmp_path / "calls.jsonl"), Retry(0))
        for padding in range(0, 600, 3):
            server.faults.append("truncated-json")
            with pytest.raises(LLMError, match="no chat completion") as error:
                chat.chat([ChatRequest(({"role": "user", "content": str(padding)},))])
            assert leaks(str(error.value).encode(), caplog.text.encode(), folder=tmp_path) == set()
        chat.close()


@pytest.mark.parametrize("ending", ["\n", "\r\n", " "])
def test_blanks_around_a_key_are_no_part_of_it(monkeypatch, ending):
    """A key out of a file often ends in a line break, which no header may hold."""
    monkeypatch.setenv("MY_KEY", KEY + ending)
    with FakeOpenAIServer(lambda messages: f"you sent {KEY}", key=KEY) as server:
        provider = OpenAICompatibleChat(server.url, "fake-model", api_key_env="MY_KEY")
        provider.check()
        chat = ChatClient(provider)
        [reply] = chat.chat([ChatRequest(({"role": "user", "content": "hi"},))])
        chat.close()
    assert reply.text == "you sent <redacted>"


@pytest.mark.parametrize("middle", ["\n", " ", "\u00e9", "\x01"])
def test_what_cannot_be_a_key_is_refused_without_being_quoted(monkeypatch, middle):
    monkeypatch.setenv("MY_KEY", KEY + middle + KEY)
    with pytest.raises(LLMError, match="MY_KEY holds blanks or signs") as error:
        OpenAICompatibleChat("http://localhost:1/v1", "fake-model", api_key_env="MY_KEY").check()
    assert not any(piece.decode() in str(error.value) for piece in PIECES)
