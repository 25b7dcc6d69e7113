import json
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from experiments import find_run_folder, run
from llmrl.core.errors import ConfigError, LLMError
from llmrl.llms.call_log import read_calls
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.object_parser import parse_object
from llmrl.llms.scripted import REFUSAL
from llmrl.llms.structured import json_schema
from models import make_request, make_scripted_client
from shipped import build_llm_principal
from societies import CLEANUP, make_outcome, make_toy_spec

QUESTION = build_llm_principal(CLEANUP, make_scripted_client()).build_prompt(None).text


def replies(n, seed=0, **shares):
    return [reply.text for reply in make_scripted_client(seed, **shares).chat([player_request()] * n)]


def player_request():
    return make_request(QUESTION, purpose="principal")


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("malformed", lambda text: "<...>" in text and len(text) > 20),
        ("out_of_range", lambda text: json.loads(text)["eat"] >= 1e5),
        ("empty", lambda text: text == ""),
        ("truncated", lambda text: text.startswith("{") and not text.endswith("}")),
        ("refusal", lambda text: text == REFUSAL),
    ],
)
def test_faults_make_reply_invalid(fault, sign):
    [text] = replies(1, **{fault: 1.0})
    assert sign(text)
    principal = build_llm_principal(CLEANUP, make_scripted_client(**{fault: 1.0}))
    principal.ask()[0]
    assert (
        principal.structured_query.counters["invalid_replies"] == 2
        and principal.structured_query.counters["fallbacks"] == 1
    )


@pytest.mark.slow
def test_fault_shares():
    texts = replies(500, empty=0.2, refusal=0.1)
    assert texts.count("") / 500 == pytest.approx(0.2, abs=0.05)
    assert texts.count(REFUSAL) / 500 == pytest.approx(0.1, abs=0.04)


def test_repeated_question_has_equal_fault():
    assert replies(50, empty=0.5) == replies(50, empty=0.5) != replies(50, seed=1, empty=0.5)


def test_fault_shares_exceeding_1_raise():
    with pytest.raises(ConfigError, match="at most 1"):
        make_scripted_client(empty=0.6, refusal=0.6)


def test_truncated_reply_has_finish_reason():
    assert make_scripted_client(truncated=1.0).chat([player_request()])[0].finish == "length"


def test_sampling_experiments_accept_rules():
    """The temperature has no effect, and the limit on tokens is respected."""
    plain, cold = (
        make_scripted_client(**options).chat([player_request()])[0] for options in ({}, {"temperature": 0.0})
    )
    assert plain.text == cold.text and plain.finish == "stop"
    [short] = make_scripted_client(max_tokens=10).chat([player_request()])
    assert plain.text.startswith(short.text) and short.finish == "length" and 5 <= estimate_tokens(short.text) <= 12


def test_rules_are_free():
    client = make_scripted_client()
    client.chat([player_request()])
    assert client.metrics()["llm/cost"] == 0.0 and client.metrics()["llm/prompt_tokens"] > 500


def test_unknown_questions_raise():
    with pytest.raises(LLMError, match="no rule"):
        make_scripted_client().chat([make_request("What is love?")])


class Move(BaseModel):
    reflection: str
    action: Literal["left", "right", "stay"]


class Plan(BaseModel):
    steps: list[Move] = Field(min_length=2, max_length=4)
    confidence: float = Field(ge=0.5, lt=0.75)
    count: int = Field(gt=3, le=5)
    small: int = Field(le=-2)
    sure: bool
    reason: str | None
    version: Literal[2]


def test_structured_questions_get_valid_replies():
    requests = [make_request(f"Step {i}", schema=json_schema(Plan)) for i in range(200)]
    plans = [parse_object(reply.text, Plan) for reply in make_scripted_client().chat(requests)]
    assert {len(plan.steps) for plan in plans} == {2, 3, 4}
    assert {step.action for plan in plans for step in plan.steps} == {"left", "right", "stay"}
    assert {plan.count for plan in plans} == {4, 5} and {plan.reason is None for plan in plans} == {True, False}


def test_repeats_are_reproducible_draws():
    def answers():
        requests = [make_request("Where to?", schema=json_schema(Move))] * 30
        return [parse_object(reply.text, Move).action for reply in make_scripted_client().chat(requests)]

    assert answers() == answers() and len(set(answers())) == 3


def test_principal_learns_despite_faults():
    principal = build_llm_principal(
        make_toy_spec(), make_scripted_client(malformed=0.3, out_of_range=0.1, truncated=0.1)
    )
    values = []
    for _ in range(60):
        result = make_outcome(make_toy_spec(), principal.ask()[0])
        principal.tell([result])
        values.append(result.value)
    counters = principal.structured_query.counters
    assert counters["repairs"] > 5 and counters["fallbacks"] > 5
    assert counters["invalid_replies"] == counters["repairs"] + 2 * counters["fallbacks"]
    assert np.mean(values[-10:]) > np.mean(values[:10])


@pytest.mark.slow
def test_outputs_mark_rule_model(tmp_path, capsys):
    """The label occurs in the status, the summary, the call log and the output."""
    run(
        "env=escape_room",
        "env.n_envs=2",
        "principal=llm",
        "llm.malformed=0.5",
        "design.evaluations=1",
        "design.steps=4",
        "design.adapt_rounds=0",
        "design.validate_episodes=2",
        f"output_root={tmp_path}",
    )
    folder, label = find_run_folder(tmp_path), "scripted rule (not a language model)"
    assert json.loads((folder / "status.json").read_text())["llm"] == label
    assert json.loads((folder / "summary.json").read_text())["llm"] == label
    assert {call["model"] for call in read_calls(folder / "llm_calls.jsonl")} == {label}
    assert label in " ".join(capsys.readouterr().out.split())
