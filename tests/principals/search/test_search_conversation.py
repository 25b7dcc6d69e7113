"""A search told turn by turn: what each question holds, when a new conversation begins, and that nothing is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_llm_searcher import check_snapshot, with_history

from experiments import compose, silent_run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.llms.client import ChatClient
from models import Echo, connected
from policies import LAKE, returned, searcher

GOOD = '{"reasoning": "up", "params": [1, 2, 3, 4, 5, 6, -1, %s]}'


def search(reply, steps, **options):
    """Return the searcher after `steps` questions, and the messages of all requests."""
    replies = iter(reply) if not callable(reply) else None
    with FakeOpenAIServer(reply if callable(reply) else lambda messages: next(replies)) as server:
        principal = searcher(llm=connected(server), **options)
        principal.on_search_start(20, 5)
        for i in range(steps):
            principal.tell([returned(vector, 10.0 * i, episodes=5) for vector in principal.ask()])
        return principal, [request["messages"] for request in server.requests]


def contents(messages):
    return [message["content"] for message in messages]


def test_question_extends_previous_question():
    _, questions = search([GOOD % (k / 10) for k in range(4)], 4, turns=10)
    for k, (earlier, after) in enumerate(pairwise(questions)):
        assert after[: len(earlier)] == earlier
        assert [message["role"] for message in after[len(earlier) :]] == ["assistant", "user"]
        assert after[-2]["content"] == GOOD % (k / 10)
    assert "What came of your answer:\n[1, 2, 3, 4, 5, 6, -1, 0.2] -> 20.00" in questions[3][-1]["content"]
    assert "This is iteration 4 of 20." in questions[3][-1]["content"]


def test_turn_snapshot():
    _, questions = search([GOOD % (k / 10) for k in range(3)], 3, turns=10)
    check_snapshot("turn", questions[-1][-1]["content"])


def test_turn_limit_restarts_with_table():
    _, questions = search(lambda messages: GOOD % (len(messages) / 10), 7, turns=3)
    assert [len(messages) for messages in questions] == [1, 3, 5, 1, 3, 5, 1]
    table = questions[3][0]["content"].partition("## What was tried")[2]
    assert table.count(" -> ") == 3  # nothing is lost
    assert "Tried so far: 6." in questions[6][0]["content"]


@settings(max_examples=30)
@given(turns=st.integers(1, 6), steps=st.integers(1, 12), seed=st.integers(0, 5))
def test_rows_appear_exactly_for_all_lengths(turns, steps, seed):
    """Each row appears once in the first question's table and the turns after it, with the scripted searcher."""
    principal = searcher(LAKE, turns=turns)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        principal.tell([returned(vector, float(rng.normal())) for vector in principal.ask()])
    question = principal.question(None)
    text = question.text if hasattr(question, "text") else "\n".join(contents(question.messages))
    rows = [line for line in text.splitlines() if line.startswith("[") and " -> " in line]
    assert len(rows) == len(principal.history.records) == steps


def test_repair_leaves_only_valid_reply():
    _, questions = search(["no idea", GOOD % 0.5, GOOD % 0.7], 2, turns=5)
    first, repair, second = questions
    assert len(repair) == 3 and second[0] == first[0]
    assert second[1]["content"] == GOOD % 0.5 and "no idea" not in str(second)


def test_replacement_is_marked():
    _, questions = search(["no idea", "none", GOOD % 0.7], 2, turns=5, repair_turns=1)
    assert "not a proposal of yours" in questions[-1][-1]["content"]
    _, questions = search(["no idea", "none", GOOD % 0.7], 2, turns=5, repair_turns=1, advice=False)
    assert "not a proposal of yours" in questions[-1][-1]["content"]


def test_overflow_restarts_conversation():
    model = Echo(max_tokens=50)
    principal = with_history(searcher(llm=ChatClient(model), turns=50), 2)
    principal.ask()
    principal.tell([returned(np.ones(8), 5.0)])
    assert hasattr(principal.question(None), "messages")
    prompt_tokens = model.count_tokens([{"content": principal.question(None).messages[0]["content"]}])
    model.context_window = prompt_tokens + 60
    assert not hasattr(principal.question(None), "messages")


def test_restart_continues_conversation():
    principal, restored = searcher(turns=5), searcher(turns=5)
    for k in range(3):
        principal.tell([returned(vector, float(k)) for vector in principal.ask()])
    restored.load_state_dict(principal.state_dict())
    assert restored.question(None) == principal.question(None)
    assert np.array_equal(restored.ask(), principal.ask())


def test_estimate_approximates_prompt():
    principal = searcher(turns=6)
    principal.on_search_start(14, 20)
    estimate = principal.estimate(14, 1)
    for i in range(14):
        principal.tell([returned(vector, 100.0 + i) for vector in principal.ask()])
    used = principal.llm.metrics()
    assert estimate.calls == used["llm/calls"] == 14
    assert estimate.prompt_tokens == pytest.approx(used["llm/prompt_tokens"], rel=0.2)


def test_conversation_has_single_proposal_per_turn(tmp_path):
    overrides = ("env=cartpole", "agent=linear", "principal=llm", "principal.turns=4", f"output_root={tmp_path}")
    assert compose(*overrides)["principal"]["turns"] == 4
    small = ("search.iterations=3", "search.episodes=1", "search.race=0", "search.evaluate_episodes=2")
    with pytest.raises(ConfigError, match="one vector"):
        silent_run(*overrides, *small, "search.candidates=2")
    silent_run(*overrides, *small)
    silent_run(*overrides, *small, "search.candidates=2", "principal.joint_prompt=true")
