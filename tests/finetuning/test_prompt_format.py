"""Prompts and replies are those of the proposer itself, and what came of replies is told truly."""

import json

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply, Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace
from llmrl.finetuning.prompt_format import PromptFormat
from llmrl.finetuning.proposal_examples import ProposalExample
from llmrl.finetuning.proposer_evaluation import baselines, chat_requests, difference, measure, summarize
from llmrl.finetuning.reward_function import RewardFunction
from llmrl.finetuning.rewards import Rewards, Scale
from llmrl.finetuning.trials import ParameterTrial
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.llms.structured import InvalidReply
from llmrl.principals.llm_factory import llm_principal

SPEC = EnvSpec("game", 1, 1, {}, 2, ("a", "b"), 100)


class Controller:
    """Three numbers from -6 to 6 with one digit after the point."""

    channel = "vector"

    def __init__(self, n=3, decimals=1):
        parameters = tuple(Parameter(f"params[{i}]", -6.0, 6.0, "", f"number {i}", decimals) for i in range(n))
        self.space = ParameterSpace("policy", parameters)


class Windowed(Provider):
    """Answers nothing, but knows how long its window is, in characters."""

    label = "windowed"
    identity = {"model": "windowed"}

    def __init__(self, window):
        super().__init__(context_window=window, max_tokens=0)

    def count_tokens(self, messages):
        return sum(len(message["content"]) for message in messages)

    def complete(self, requests):
        raise AssertionError


def questions(room=100_000, controller=None, **options):
    llm = ChatClient(Windowed(room))
    options = {"prompt": "numeric", "duplicates": "accept"} | options
    proposer = llm_principal(SPEC, llm, controller=controller or Controller(), **options)
    proposer.on_search_start(100, 2)
    return PromptFormat(proposer)


def trials(n, seed=0, d=3):
    rng = np.random.default_rng(seed)
    return tuple(
        ParameterTrial(np.round(rng.uniform(-6, 6, d), 1), rng.normal(size=2).round(2) * 100) for _ in range(n)
    )


def example(n, target=None, **options):
    return ProposalExample(0, trials(n, **options), target)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prompt": "described"},
        {
            "rows": "named",
            "reply": "lines",
            "count_from": 0,
            "told_iterations": 400,
            "step_size": 1.0,
            "optimum": 100.0,
        },
        {"history": "best_and_last", "window": 2, "newest": 1},
        {"history": "last", "window": 2},
    ],
)
def test_a_question_is_the_one_a_search_would_ask(options):
    """A search in which the same was proposed, one vector an iteration."""
    made = questions(**options)
    one = example(6)
    question = made.ask(one)
    search = questions(**options).proposer
    search._valid = lambda *_: None
    for trial in one.history:
        error = float(trial.returns.std(ddof=1) / np.sqrt(2))
        search.tell([Outcome(trial.vector, trial.value, trial.returns, error)])
        search.iteration += 1
    assert question.text == search.question(None).text
    assert search.question(None).hash == question.hash
    rows = sum(" -> " in line or "f(params): " in line for line in question.text.splitlines())
    expected = {"last": 2, "best_and_last": 3}.get(options.get("history"), 6)
    assert len(question.shown) == expected and rows >= expected
    for trial in question.shown:
        assert f"{trial.value:.2f}" in question.text
    assert made.ask(one).text == question.text and not made.proposer.history.records  # nothing is left behind


def test_a_question_that_is_too_long_leaves_trials_out_and_cuts_none():
    whole = questions().ask(example(12))
    assert len(whole.shown) == 12
    short = questions(room=len(whole.text) - 40).ask(example(12))
    assert 0 < len(short.shown) < 12 and f"There is room for {len(short.shown)} of the 12" in short.text
    rows = [line for line in short.text.splitlines() if " -> " in line]
    assert len(rows) == len(short.shown)
    for trial, row in zip(short.shown, rows, strict=True):
        assert row == f"[{', '.join(f'{x:g}' for x in trial.vector)}] -> {trial.value:.2f}"
    best = max(short.example.history, key=lambda trial: trial.value)
    assert best in short.shown
    rows = [line for line in whole.text.splitlines() if " -> " in line]
    bare = len(whole.text) - sum(len(row) + 1 for row in rows)
    told = " There is room for 0 of the 12 proposals: the best and the newest of them are shown."
    with pytest.raises(ConfigError, match="only without any history"):
        questions(room=bare + len(told) + 5).ask(example(12))


@pytest.mark.parametrize("form", ["json", "lines"])
@pytest.mark.parametrize("decimals", [0, 1, None])
def test_replies_are_read_as_what_was_written(form, decimals):
    made = questions(controller=Controller(decimals=decimals), reply=form)
    vectors = np.random.default_rng(0).uniform(-6, 6, (50, 3))
    for vector in made.space.rounded(vectors):
        text = made.write(vector, 'because of "x": [1, 2]')
        assert np.array_equal(made.read(text), vector)
        assert np.array_equal(made.usable(made.read(text)), vector)
    better = ParameterTrial(np.array([1.0, -2.0, 0.0]), np.array([900.0]))
    asked = made.ask(example(3, better))
    assert np.array_equal(made.read(made.reply(asked)), better.vector)
    assert made.reply(made.ask(example(3))) is None
    if form == "json":
        said = json.loads(made.reply(asked))
        assert f"{max(t.value for t in asked.shown):.2f}" in said["reasoning"] and said["params"] == [1, -2, 0]


def test_numbers_out_of_bounds_are_read_and_then_treated_as_the_search_would():
    text = '{"reasoning": "", "params": [7, 0.04, -1]}'
    for policy, usable in (("reask", None), ("clamp", [6, 0, -1]), ("accept", [7, 0, -1])):
        made = questions(out_of_range=policy)
        vector = made.read(text)
        assert vector.tolist() == [7, 0.04, -1] and not made.inside(vector)
        found = made.usable(vector)
        assert (found is None) if usable is None else found.tolist() == usable
    for invalid in ("", "no idea", '{"params": [1, 2]}', '{"params": [1, 2, "x"]}', "params[0]: 1; params[1]: 2"):
        with pytest.raises(InvalidReply):
            questions().read(invalid)


def test_proposers_that_cannot_be_tuned_are_refused():
    with pytest.raises(ConfigError, match=r"principal\.one_prompt_per_batch=true"):
        questions(one_prompt_per_batch=True)
    with pytest.raises(ConfigError, match=r"principal\.observations=true"):
        questions(observations=True)
    for name in ("turns", "episode_steps"):
        with pytest.raises(ConfigError, match=rf"principal\.{name}=5"):
            questions(**{name: 5})


class Plays:
    """Returns minus the distance from (1, 1, 1), and remembers what it was asked for."""

    def __init__(self):
        self.calls = []

    def __call__(self, vectors, seeds):
        self.calls.append((vectors.copy(), seeds.copy()))
        return np.tile(-np.abs(vectors - 1.0).sum(1)[:, None], (1, len(seeds)))


def test_replies_are_judged_together_under_equal_luck_and_each_vector_once():
    made, plays = questions(), Plays()
    judge = RewardFunction(made, plays, 4, Seeds(0))
    asked = [made.ask(example(3, seed=seed)) for seed in (0, 0, 0, 0, 1)]
    known = asked[0].shown[1].vector
    replies = [
        made.write(known, ""),
        made.write(np.ones(3), ""),
        "nothing",
        "params: [1, 1, 9]",
        made.write(np.ones(3), "!"),
    ]
    first = judge(asked, replies, "step 1")
    ((vectors, seeds),) = plays.calls
    assert len(vectors) == 2 and len(seeds) == 4
    assert [a.vector is not None for a in first] == [True, True, False, True, True]
    assert [a.inside for a in first] == [True, True, False, False, True]
    assert [a.repeats for a in first] == [True, False, False, False, False]
    assert [len(a.returns) for a in first] == [4, 4, 0, 0, 4]
    assert first[1].value == first[4].value == 0.0
    assert first[0].value == pytest.approx(-np.abs(known - 1).sum()) and first[2].fault
    assert np.array_equal(first[0].history, [trial.value for trial in asked[0].shown])
    assert judge(asked, replies, "step 1") is first and len(plays.calls) == 1
    judge(asked, replies, "step 2")
    assert set(plays.calls[1][1]).isdisjoint(seeds)
    assert RewardFunction(made, plays, 4, Seeds(0))(asked, replies, "step 1")[0].value == first[0].value
    assert np.array_equal(plays.calls[2][1], seeds)
    rates = judge.metrics()
    assert (rates["train/valid_rate"], rates["train/inside_rate"], rates["train/repeat_rate"]) == (0.8, 0.6, 0.2)
    assert rates["train/unread_groups"] == 1.0  # each question is another object, a group of its own


def test_a_group_that_cannot_be_read_is_counted_and_teaches_nothing():
    made, plays = questions(), Plays()
    judge = RewardFunction(made, plays, 4, Seeds(0))
    first, second = (made.ask(example(3, seed=seed)) for seed in (0, 1))
    odd = ['{"params": ["\\ud800"]}', "[" * 5000, f"params[0]: {'9' * 5000}x"]
    asked = [first] * 3 + [second] * 3
    attempts = judge(asked, [*odd, *odd[:2], made.write(np.ones(3), "")], "step 1")
    assert judge.metrics()["train/unread_groups"] == 1.0
    scale = Scale(-10.0, 0.0)
    assert {Rewards()(attempt, scale) for attempt in attempts[:3]} == {0.0}, "equal rewards are no advantage"


def test_measures_and_baselines():
    made = questions()
    judge, rewards, scale = RewardFunction(made, Plays(), 2, Seeds(0)), Rewards(), Scale(-10.0, 0.0)
    asked = [made.ask(example(3, seed=seed)) for seed in range(20)]
    measured = measure(judge(asked, [made.write(np.ones(3), "")] * 15 + ["?"] * 5, "evaluation"), rewards, scale)
    table = summarize(measured)
    assert table["valid_rate"]["mean"] == 0.75 and table["valid_rate"]["n"] == 20
    assert table["score"]["mean"] == 0.75 and table["return"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 15}
    without = baselines(judge, asked, rewards, scale, Seeds(1))
    best = [max(question.shown, key=lambda trial: trial.value).vector for question in asked]
    assert np.allclose(without["incumbent"]["return"], [-np.abs(vector - 1).sum() for vector in best])
    assert without["incumbent"]["repeat_rate"].all() and without["random"]["inside_rate"].all()
    assert not without["random"]["repeat_rate"].any()
    gained = difference(measured, without["random"])
    assert gained["return"]["n"] == 15 and gained["return"]["low"] > 0
    assert gained["valid_rate"]["mean"] == -0.25
    nothing = summarize(measure(judge(asked[:2], ["?", "?"], "evaluation"), rewards, scale))
    assert nothing["return"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert nothing["score"]["mean"] == 0.0 and nothing["valid_rate"]["high"] < 1


def test_the_model_is_asked_with_the_questions_as_they_are():
    class Says(Windowed):
        def complete(self, requests):
            self.seen = requests
            return [ChatReply("params: [1, 2, 3]") for _ in requests]

    made = questions()
    provider = Says(100_000)
    provider.parallel = False
    asked = [made.ask(example(3, seed=seed)) for seed in range(3)]
    replies = ChatClient(provider).chat(chat_requests(made, asked))
    assert [reply.text for reply in replies] == ["params: [1, 2, 3]"] * 3
    for request, question in zip(provider.seen, asked, strict=True):
        assert request.messages == question.messages and request.prompt == "search/numeric"
        assert request.read(ChatReply("params: [1, 2, 3]")).tolist() == [1, 2, 3]
        with pytest.raises(InvalidReply):
            request.read(ChatReply("hm"))
