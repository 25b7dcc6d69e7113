"""Replies that a vLLM server samples with the adapter that this process trains."""

import json

import numpy as np
import pytest
import torch

from experiments import find_run_folder, run_silently
from learning_chats import QUESTIONS, make_request, make_settings, sample_trajectories
from llmrl.chat_learning import advantages_and_losses
from llmrl.core.errors import CallInterrupted, ConfigError, LLMError
from llmrl.llms.local.loading import load_tokenizer
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.llms.local.vllm_sampler import VLLMSampler
from vllm_server import VLLMServer

OPTIONS = {"tune": "lora", "learning_rate": 3e-3, "kl": 0.0, "group_size": 4}


@pytest.fixture
def server(chat_folder):
    with VLLMServer(chat_folder, load_tokenizer(str(chat_folder), None).eos_token_id) as server:
        yield server


@pytest.fixture
def connect(server, make_chat, tmp_path):
    """Return a function that makes a learning chat model whose replies the server samples."""
    models = []

    def make(learn=(), chat=(), **options):
        fields = {
            **{"base_url": server.url, "model": None, "adapter_dir": str(tmp_path), "concurrency": 4, "timeout": 20.0},
            **{"retries": 0, "max_staleness": 0, "max_importance": 2.0},
        }
        models.append(
            make_chat(
                sampler=VLLMSampler(**fields | options), learn=make_settings(**OPTIONS | dict(learn)), **dict(chat)
            )
        )
        return models[-1]

    yield make
    for model in models:
        model.close()


def odd_first_token(game, step, reply):
    """Return a reward that depends on the reply."""
    return float(reply.sample.tokens[0] % 2)


def update(chat, seed):
    """Train on sampled trajectories."""
    trajectories = sample_trajectories(chat, seed=seed, reward=odd_first_token)
    return chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(seed))


def test_samples_equal_server_samples(server, connect):
    chat = connect()
    requests = [make_request(QUESTIONS[i % 2], repeat=i) for i in range(6)]
    replies = chat.complete(requests)
    assert [list(reply.sample.prompt) for reply in replies] == [chat.encode(r.messages) for r in requests]
    assert sorted(body["seed"] for body in server.requests) == sorted({body["seed"] for body in server.requests})
    assert all(body["temperature"] == 1 and body["top_p"] == 1 and body["top_k"] == -1 for body in server.requests)
    assert len({reply.text for reply in replies}) > 1
    for reply in replies:
        ids = torch.tensor([[*reply.sample.prompt, *reply.sample.tokens]])
        with torch.no_grad():
            log_probs = chat.module(input_ids=ids).logits[0].log_softmax(-1)
        n = len(reply.sample.tokens)
        expected = log_probs[-n - 1 : -1].gather(1, torch.tensor(reply.sample.tokens)[:, None]).squeeze(1)
        np.testing.assert_allclose(reply.sample.log_probs, expected, atol=1e-4)
    assert [reply.text for reply in chat.complete(requests)] == [reply.text for reply in replies]


def test_server_samples_with_trained_adapter(server, connect):
    chat = connect()
    metrics = [update(chat, seed) for seed in range(3)]
    assert all(m["learn/log_prob_error"] < 1e-4 for m in metrics)
    assert all(m["learn/importance"] == pytest.approx(1.0, abs=1e-4) for m in metrics)
    assert len(server.loads) == 3 and list(server.adapters) == server.loads[-1:]
    chat.close()
    assert not server.adapters


def test_staleness_is_bounded_and_corrected(server, connect):
    chat = connect(max_staleness=1, max_importance=1.1)
    metrics = [update(chat, seed) for seed in range(4)]
    assert len(server.loads) == 2
    assert [m["learn/log_prob_error"] > 1e-3 for m in metrics] == [False, True, False, True]
    assert all(m["learn/importance"] <= 1.1 for m in metrics)


def test_updates_equal_local_updates(connect, make_chat):
    """The weights after an update on given samples do not depend on which computation has sampled them."""
    remote, local = connect(), make_chat(learn=make_settings(**OPTIONS))
    trajectories = sample_trajectories(remote, reward=odd_first_token)
    states = []
    for chat in (remote, local):
        learner = chat.learners.learner("")
        learner.update(trajectories, torch.Generator().manual_seed(0))
        states.append(learner.state_dict()["weights"])
    for name, weights in states[0].items():
        torch.testing.assert_close(weights, states[1][name], atol=2e-4, rtol=0)


def test_importance_weights_are_truncated():
    weights = advantages_and_losses.importance_weights(
        torch.log(torch.tensor([0.5, 0.1])), torch.log(torch.tensor([0.1, 0.5])), 2.0
    )
    torch.testing.assert_close(weights, torch.tensor([2.0, 0.2]))


def test_request_repeats_after_outage(server, connect):
    chat = connect(retries=1)
    server.statuses += [503]
    assert chat.complete([make_request(QUESTIONS[0])])[0].completion_tokens > 0


def test_stop_does_not_wait_for_server(server, connect):
    chat = connect()
    chat.complete([make_request(QUESTIONS[0])])
    chat.should_stop = lambda: True
    server.responsive.clear()
    try:
        with pytest.raises(CallInterrupted):
            chat.complete([make_request(QUESTIONS[1])])
    finally:
        server.responsive.set()


@pytest.mark.parametrize("status", [400, 503])
def test_failed_requests_raise(server, connect, status):
    chat = connect()
    server.statuses += [status]
    with pytest.raises(LLMError, match=str(status)):
        chat.complete([make_request(QUESTIONS[0])])


def test_missing_features_of_servers_raise(server, connect):
    chat = connect()
    server.with_token_ids = False
    with pytest.raises(LLMError, match="token ids"):
        chat.complete([make_request(QUESTIONS[0])])
    server.with_loras = False
    with pytest.raises(LLMError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        connect().complete([make_request(QUESTIONS[0])])
    server.with_loras = True


def test_unknown_model_raises(connect):
    connect().check()
    with pytest.raises(LLMError, match=r"llm\.sampler\.model"):
        connect(model="another").check()
    with pytest.raises(LLMError, match=r"llm\.sampler\.base_url"):
        connect(base_url="http://127.0.0.1:9/v1").check()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"learn": {"tune": "full"}}, r"llm\.learn\.tune"),
        ({"chat": {"temperature": 0.7}}, r"llm\.temperature"),
        ({"base_url": "localhost"}, r"llm\.sampler\.base_url"),
    ],
)
def test_incompatible_options_raise(connect, options, match):
    with pytest.raises(ConfigError, match=match):
        connect(**options)


def test_server_needs_learner(server, make_chat):
    fields = {"model": None, "adapter_dir": None, "concurrency": 1, "timeout": 1.0, "retries": 0, "max_staleness": 0}
    with pytest.raises(ConfigError, match="llm/learn"):
        make_chat(sampler=VLLMSampler(server.url, **fields, max_importance=2.0))


@pytest.mark.slow
def test_run_samples_on_server(tmp_path):
    folder = tmp_path / "model"
    shape = SmallModelShape(width=32, layers=1, heads=2, tokens="messages", longest=4096)
    make_small_model(folder, ["hit", "stick"] * 20, "chat", shape, 0)
    with VLLMServer(folder, load_tokenizer(str(folder), None).eos_token_id) as server:
        check_run(server, tmp_path)


def check_run(server, tmp_path):
    run_silently(
        *("env=blackjack", "env.n_envs=8", "learn.env_steps=16", "learn.evaluate_episodes=8", "agent=llm_player"),
        *("agent.history=0", "agent.reflection=false", "agent.repair_turns=0", "agent.show=[]", "llm.max_invalid=null"),
        *("llm=local_chat", f"llm.model={server.folder}", "llm.max_tokens=4", "llm/learn=grpo", "llm.learn.tune=lora"),
        *("llm/sampler=vllm", f"llm.sampler.base_url={server.url}", f"output_root={tmp_path}", "name=served"),
    )
    folder = find_run_folder(tmp_path / "served")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["learn/importance"] == pytest.approx(1, abs=1e-3) for row in rows if "learn/reward" in row)
    assert any("learn/reward" in row for row in rows) and (folder / "adapter").is_dir() and not server.adapters
