"""Scripted policy search: its prompts, reply formats and progress."""

import json

import numpy as np
import pytest

from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.scripted import UnreadPromptError
from llmrl.principals import scripted_search
from models import make_request, make_scripted_client
from policies import ARM, LAKE, POLE, make_policy_outcome, make_searcher
from shipped import build_search_agent

FORMS = {
    "json": {},
    "lines": {"reply": "lines"},
    "published": {"prompt": "numeric", "rows": "named", "reply": "lines", "first_iteration": 0, "duplicates": "accept"},
    "a part of the history": {"history": "best_and_last", "window": 4, "n_recent": 2},
    "with a hint": {"step_size": 0.3},
}


def climb(principal, value, iterations, n=1):
    """Return the values of all proposals, [iterations, n]."""
    means = []
    for _ in range(iterations):
        vectors = principal.ask(None, n)
        outcomes = [make_policy_outcome(vector, value(vector)) for vector in vectors]
        principal.tell(outcomes)
        means.append([outcome.value for outcome in outcomes])
    assert (
        principal.structured_query.counters
        == dict.fromkeys(("invalid_replies", "repairs", "fallbacks", "trimmed_prompts"), 0)
        or principal.settings.history == "best_and_last"
    )
    return np.array(means)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_climbs_in_all_formats(form):
    """The maximum is 100 at (2, 2, ...); uniform samples have a mean of -10."""
    principal = make_searcher(**FORMS[form])
    means = climb(principal, lambda v: 100 - float(((v - 2) ** 2).sum()), 20, 3)
    assert means[-6:].mean() > 20 and means.max() > 60
    assert all("By rule, not by thought" in reason for reason in principal.reasons)


def test_tables():
    best = np.array([2.0, 0.0, 1.0, 2.0])
    means = climb(make_searcher(LAKE), lambda v: float((v == best).sum()), 25)
    assert means.max() == 4


def test_proposals_in_iteration_differ_deterministically():
    runs = []
    for _ in range(2):
        principal = make_searcher()
        climb(principal, lambda v: float(v.sum()), 6, 5)
        runs.append([tuple(record["vector"]) for record in principal.history.records])
    assert runs[0] == runs[1] and len(set(runs[0])) == 30


def test_unread_prompts_raise():
    for prompt in ("You are the principal of a society", "This is a connection test.", "3 numbers, called params[0]"):
        with pytest.raises(UnreadPromptError):
            scripted_search.reply([{"role": "user", "content": prompt}])


def test_heterogeneous_ranges():
    class MixedController:
        channel = "vector"
        space = ParameterSpace(
            "mixed", (Parameter("params[0]", 0.0, 3.0, "u", "a", 0), Parameter("params[1]", -0.5, 0.25, "u", "b", 2))
        )

    agent = build_search_agent("linear", POLE)
    agent.controller = MixedController()
    principal = make_searcher(agent=agent)
    assert "- params[1]: from -0.5 to 0.25, 2 digits after the point" in principal.build_prompt(None).text
    for vector in np.concatenate([principal.ask() for _ in range(5)]):
        assert np.array_equal(vector, MixedController.space.check(MixedController.space.round_values(vector)))


def test_repair_turn_changes_answer():
    question = {"role": "user", "content": make_searcher().build_prompt(None).text}
    first = scripted_search.reply([question])
    repaired = scripted_search.reply(
        [question, {"role": "assistant", "content": first}, {"role": "user", "content": "no"}]
    )
    assert json.loads(first)["params"] != json.loads(repaired)["params"]
    assert scripted_search.reply([question]) == first


@pytest.mark.parametrize("form", FORMS)
def test_corrupt_numbers_are_far_outside(form):
    """All values and no indices are corrupted, with either sign."""
    settings = FORMS[form]
    [reply] = make_scripted_client(out_of_range=1.0).chat(
        [make_request(make_searcher(**settings).build_prompt(None).text, purpose="search")]
    )
    vector = parse_answer(reply.text, VectorParser([f"params[{i}]" for i in range(8)])).answer
    assert vector.shape == (8,) and (np.abs(vector) >= 1e5).all()
    assert (vector > 0).any() and (vector < 0).any()


WAVES = {
    "ackley": lambda x: (
        -float(-20 * np.exp(-0.2 * np.sqrt(np.mean(x**2))) - np.exp(np.mean(np.cos(2 * np.pi * x))) + 20 + np.e)
    ),
    "rastrigin": lambda x: -float(np.sum(x**2 - 10 * np.cos(2 * np.pi * x) + 10)),
    "parabola with a sine": lambda x: -float(np.mean(x**2 + 5 * np.sin(2 * x))),
}
"""Toy functions, upside down."""


@pytest.mark.parametrize("name", WAVES)
def test_known_functions_through_prompts(name):
    """With two parameters from -6 to 6, 30 requests of 4 proposals get closer to the maximum than 99 % of the space."""
    agent = build_search_agent("linear", ARM, bias=False)
    space = agent.controller.space
    agent.controller.space = ParameterSpace(space.name, space.parameters[:2])
    shift = np.array([0.7, -0.4])
    principal = make_searcher(ARM, agent, prompt="numeric", step_size=1.0)
    means = climb(principal, lambda v: WAVES[name](v - shift), 30, 4)
    box = np.random.default_rng(0).uniform(-6, 6, (4000, 2))
    assert means.max() > np.quantile([WAVES[name](v - shift) for v in box], 0.99)
