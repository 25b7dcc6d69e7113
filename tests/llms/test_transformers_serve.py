"""End-to-end tests with `transformers serve` and a small model."""

import json

import pytest

from experiments import find_run_folder, run
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from models import make_openai_model
from tiny_models import make_tiny_causal
from transformers_server import TransformersServer

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    # Rooms for the longest prompt of a principal, whose letters are mostly one token each.
    folder = make_tiny_causal(tmp_path_factory.mktemp("model"), window=8192)
    with TransformersServer(folder, tmp_path_factory.mktemp("server")) as server:
        yield server


def ask(text, schema=None):
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": text})
    return ChatRequest(messages, schema=schema)


def client(server, **options):
    return make_openai_model(base_url=server.url, model=server.model, **{"max_tokens": 16, **options})


def in_process(server, **options):
    return build_model("local_chat", model=server.model, seeds=Seeds(0), **{"max_tokens": 16, **options})


def test_replies_match_local_model(server):
    """The server ignores schemas, which must not cause an error."""
    provider = client(server, temperature=0.0)
    provider.check()
    for request in (ask("What tax rate?"), ask("0.1 or 0.2?", schema={"type": "object"})):
        (remote,), (local,) = provider.complete([request]), in_process(server, temperature=0.0).complete([request])
        assert remote.text == local.text
        assert (remote.prompt_tokens, remote.completion_tokens) == (local.prompt_tokens, local.completion_tokens)
        assert remote.finish == local.finish
    provider.close()


def test_the_temperature_arrives(server):
    provider = client(server, temperature=1.0)
    replies = [provider.complete([ask("What tax rate?")])[0] for _ in range(3)]
    assert len({reply.text for reply in replies}) > 1
    assert {reply.prompt_tokens for reply in replies} == {
        in_process(server).count_tokens(ask("What tax rate?").messages)
    }


def test_wrong_model_name_raises(server):
    provider = make_openai_model(base_url=server.url, model="another", max_tokens=4)
    with pytest.raises(LLMError, match="another"):
        provider.complete([ask("Hi")])


def test_run_with_babbling_model_finishes(server, tmp_path):
    """A model with random weights never replies in the right format, so each proposal is a fallback."""
    run(
        "env=escape_room",
        "principal=llm",
        "llm=openai_compatible",
        f"llm.base_url={server.url}",
        f"llm.model={server.model}",
        "llm.max_tokens=16",
        "design.steps=2",
        "design.references=0",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "design.adapt_rounds=1",
        "design.validate_episodes=1",
        f"output_root={tmp_path}",
    )
    folder = find_run_folder(tmp_path)
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["llm/fallbacks"] == 2 and last["llm/invalid_replies"] == last["llm/calls"] >= 2
    assert last["llm/prompt_tokens"] > 0 and last["llm/completion_tokens"] > 0
