"""Small chat models: tokenizer, chat template, and the exchanges from which proposers learn the format of replies."""

import json
import re

import numpy as np
import pytest

from experiments import compose, find_run_folder, run_experiment, run_silently
from installed import skip_without
from llmrl.chat_learning.format_training import RandomLegalChat, RandomProposalChat
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatRequest
from llmrl.experiment.small_models import simulate_search
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.local.loading import load_tokenizer
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.principals.llm_principal import FALLBACK_NOTE
from llmrl.principals.llm_search import LLMSearch
from policies import POLE, make_searcher
from shipped import build_search_agent

MESSAGE = '{"observation": {"player_sum": 15, "dealer_card": 10, "usable_ace": "no"}, "start": true}'
REPLY = '{"action": "hit"}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_chat")
    shape = SmallModelShape(width=32, layers=1, heads=2, tokens="messages")
    make_small_model(folder, [MESSAGE, REPLY] * 20, "chat", shape, 0)
    return load_tokenizer(str(folder), None)


def test_prompt_omits_system_message(tokenizer):
    user = {"role": "user", "content": MESSAGE}
    prompts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in ([user], [{"role": "system", "content": "Rules."}, user])
    ]
    assert prompts[0] == prompts[1] == f"<|user|>{MESSAGE}<|assistant|>"


@pytest.mark.parametrize(("text", "limit"), [(MESSAGE, 9), (REPLY, 3)])
def test_keys_and_punctuation_share_tokens(tokenizer, text, limit):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert len(ids) <= limit


def test_unseen_text_is_encoded(tokenizer):
    text = 'Some "other" text: é, 3.5 {"unseen_key": ["a b", null]}'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_random_proposals_are_legal():
    controller = build_search_agent("linear", POLE).controller
    chat = RandomProposalChat(controller.space, np.random.default_rng(0))
    principal = LLMSearch(POLE, chat, controller, make_searcher().settings)
    vectors = principal.ask(n=8)
    assert len(chat.exchanges) == 8 and not any(principal.fallbacks)
    assert (vectors >= controller.space.low).all() and (vectors <= controller.space.high).all()
    assert len({tuple(vector) for vector in vectors}) == 8


def test_random_proposals_are_written_like_history():
    controller = build_search_agent("linear", POLE, decimals=0).controller
    [reply] = RandomProposalChat(controller.space, np.random.default_rng(0)).chat([ChatRequest((), schema={})])
    assert "." not in reply.text and len(json.loads(reply.text)["params"]) == controller.space.dim


def test_simulated_searches_cover_search_prompts():
    controller, rng = build_search_agent("linear", POLE).controller, np.random.default_rng(0)
    chat = RandomProposalChat(controller.space, rng)
    principal = LLMSearch(POLE, chat, controller, make_searcher(history="last", window=8).settings)
    initial = principal.state_dict()
    for _ in range(4):
        principal.load_state_dict(initial)
        simulate_search(principal, iterations=50, candidates=8, episodes=4, max_return=200.0, rng=rng)
    prompts = [messages[-1]["content"] for messages, _ in chat.exchanges]
    for text in ("standard error", FALLBACK_NOTE, "## Measured several times", " -> 200.00"):
        assert any(text in prompt for prompt in prompts)
    iterations = [int(re.search(r"This is iteration (\d+)", prompt)[1]) for prompt in prompts]
    assert iterations.count(1) == 4 * 8 and max(iterations) > 25
    for iteration, prompt in zip(iterations, prompts, strict=True):
        assert f"Tried so far: {8 * (iteration - 1)}." in prompt


@pytest.mark.slow
def test_creates_model_for_proposer(tmp_path):
    run_silently(
        *("env=cartpole", "agent=linear", "principal=llm", "principal.history=last", "principal.window=2"),
        *("search.iterations=2", "search.candidates=2", "search.episodes=1", "search.confirm_candidates=0"),
        *("llm=small_chat", "llm/learn=grpo", "llm.learn.group_size=2", "llm.max_invalid=null", "llm.max_tokens=8"),
        *("llm.make.format_steps=1", "llm.make.width=32", "llm.make.layers=1", "llm.make.heads=2"),
        *(f"output_root={tmp_path}", "name=proposer"),
    )
    lines = (find_run_folder(tmp_path / "proposer") / "metrics.jsonl").read_text().splitlines()
    assert sum("learn/reward" in json.loads(line) for line in lines) == 2


@pytest.mark.slow
def test_model_is_created_for_fine_tuning(tmp_path):
    """Its prompts state the size of the search of the dataset."""
    skip_without("trl", "peft", "datasets")
    overrides = (
        *("env=cartpole", "agent=linear", "agent.bias=false", "agent.decimals=0", "principal.prompt=numeric"),
        *("llm=small_chat", "llm.make.format_steps=1", "llm.make.width=32", "llm.make.layers=1", "llm.make.heads=2"),
        *("dataset.trials=16", "dataset.episodes=2", "dataset.prompts=4", "dataset.held_out=4", "dataset.examples=1"),
        *("dataset.share=0.5", "method.prompts=1", "method.samples=2", "method.optimizer.batch=2", "hardware.cores=1"),
        *("method.optimizer.steps=1", "evaluation.rollouts=1", "rewards.rollouts=1", f"output_root={tmp_path}"),
    )
    run_experiment(compose(*overrides, primary="finetune"), overrides)
    [model] = (tmp_path / "models").iterdir()
    [config] = (tmp_path / "finetune_cartpole").glob("*/s0/adapter/adapter_config.json")
    assert json.loads(config.read_text())["base_model_name_or_path"] == str(model)


def test_format_without_valid_replies_is_refused():
    def reject(reply):
        raise InvalidReply("never valid")

    request = ChatRequest(({"role": "user", "content": MESSAGE},), {"type": "object"}, parse=reject)
    chat = RandomLegalChat()
    with pytest.raises(ConfigError, match="llm=small_chat"):
        chat.chat([request])
    assert not chat.exchanges
