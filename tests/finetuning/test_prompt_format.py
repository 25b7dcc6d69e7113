"""Prompts and replies of training equal those of the proposer, with correct results of proposals."""

import json

import numpy as np
import pytest

import shipped
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply, Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace
from llmrl.finetuning.prompt_format import PromptFormat
from llmrl.finetuning.proposer_evaluation import EvaluatedTask, summarize_differences, summarize_measures
from llmrl.finetuning.rewards import ReplyEvaluator, ReturnScale
from llmrl.finetuning.trials import ParameterTrial, ProposalExample
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.provider import Provider
from shipped import build_llm_principal

SPEC = EnvSpec("game", 1, 1, {}, 2, ("a", "b"), 100)


class Controller:
    """Controller with three parameters from -6 to 6 with one decimal."""

    channel = "vector"

    def __init__(self, n=3, decimals=1):
        parameters = tuple(Parameter(f"params[{i}]", -6.0, 6.0, "", f"number {i}", decimals) for i in range(n))
        self.space = ParameterSpace("policy", parameters)


class WindowedModel(Provider):
    """Model without replies whose context window is measured in characters."""

    label = "windowed"
    identity = {"model": "windowed"}

    def __init__(self, window):
        super().__init__(context_window=window, max_tokens=0)

    def count_tokens(self, messages):
        return sum(len(message["content"]) for message in messages)

    def complete(self, requests):
        raise AssertionError


def make_format(room=100_000, controller=None, **options):
    llm = ChatClient(WindowedModel(room))
    options = {"prompt": "numeric", "duplicates": "accept"} | options
    proposer = build_llm_principal(SPEC, llm, controller=controller or Controller(), **options)
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
            "first_iteration": 0,
            "prompt_iterations": 400,
            "step_size": 1.0,
            "optimum": 100.0,
        },
        {"history": "best_and_last", "window": 2, "n_recent": 1},
        {"history": "last", "window": 2},
        {"history": "last", "window": 4, "sliding_history": True},
    ],
)
def test_question_matches_search_prompt(options):
    """Runs a search with the same proposals, one vector per iteration."""
    prompt_format = make_format(**options)
    single = example(6)
    question = prompt_format.make_prompt(single)
    search = make_format(**options).proposer
    search._apply_fallback = lambda *_: None
    for trial in single.trials:
        error = float(trial.returns.std(ddof=1) / np.sqrt(2))
        search.tell([Outcome(trial.vector, trial.value, trial.returns, error)])
        search.iteration += 1
    assert question.text == search.build_prompt(None).text
    assert search.build_prompt(None).hash == question.template_hash
    rows = sum(" -> " in line or "f(params): " in line for line in question.text.splitlines())
    n_shown = {"last": options.get("window"), "best_and_last": 3}.get(options.get("history"), 6)
    assert len(question.shown_trials) == n_shown and rows >= n_shown
    for trial in question.shown_trials:
        assert f"{trial.value:.2f}" in question.text
    assert (
        prompt_format.make_prompt(single).text == question.text and not prompt_format.proposer.history.records
    )  # nothing is left behind


def test_long_question_drops_trials():
    question = make_format().make_prompt(example(12))
    assert len(question.shown_trials) == 12
    short = make_format(room=len(question.text) - 40).make_prompt(example(12))
    assert 0 < len(short.shown_trials) < 12 and f"There is room for {len(short.shown_trials)} of the 12" in short.text
    rows = [line for line in short.text.splitlines() if " -> " in line]
    assert len(rows) == len(short.shown_trials)
    for trial, row in zip(short.shown_trials, rows, strict=True):
        assert row == f"[{', '.join(f'{x:g}' for x in trial.vector)}] -> {trial.value:.2f}"
    best = max(short.example.trials, key=lambda trial: trial.value)
    assert best in short.shown_trials
    rows = [line for line in question.text.splitlines() if " -> " in line]
    bare = len(question.text) - sum(len(row) + 1 for row in rows)
    notice = " There is room for 0 of the 12 proposals: the best and the newest of them are shown."
    with pytest.raises(ConfigError, match="history"):
        make_format(room=bare + len(notice) + 5).make_prompt(example(12))


@pytest.mark.parametrize("form", ["json", "lines"])
@pytest.mark.parametrize("decimals", [0, 1, None])
def test_replies_parse_like_search(form, decimals):
    prompt_format = make_format(controller=Controller(decimals=decimals), reply=form)
    vectors = np.random.default_rng(0).uniform(-6, 6, (50, 3))
    for vector in prompt_format.space.round_values(vectors):
        text = prompt_format.format_reply(vector, 'because of "x": [1, 2]')
        assert np.array_equal(prompt_format.parse_reply(text), vector)
        assert np.array_equal(prompt_format.to_evaluated_vector(prompt_format.parse_reply(text)), vector)
    better = ParameterTrial(np.array([1.0, -2.0, 0.0]), np.array([900.0]))
    question = prompt_format.make_prompt(example(3, better))
    assert np.array_equal(prompt_format.parse_reply(prompt_format.make_target_reply(question)), better.vector)
    assert prompt_format.make_target_reply(prompt_format.make_prompt(example(3))) is None
    if form == "json":
        reply = json.loads(prompt_format.make_target_reply(question))
        assert f"{max(t.value for t in question.shown_trials):.2f}" in reply["reasoning"] and reply["params"] == [
            1,
            -2,
            0,
        ]


def test_extreme_numbers_follow_search():
    text = '{"reasoning": "", "params": [7, 0.04, -1]}'
    for policy, usable in (("reask", None), ("clamp", [6, 0, -1]), ("accept", [7, 0, -1])):
        prompt_format = make_format(out_of_range=policy)
        vector = prompt_format.parse_reply(text)
        assert vector.tolist() == [7, 0.04, -1] and not prompt_format.is_in_bounds(vector)
        is_usable = prompt_format.to_evaluated_vector(vector)
        assert (is_usable is None) if usable is None else is_usable.tolist() == usable
    for invalid in ("", "no idea", '{"params": [1, 2]}', '{"params": [1, 2, "x"]}', "params[0]: 1; params[1]: 2"):
        with pytest.raises(InvalidReply):
            make_format().parse_reply(invalid)


def test_untunable_proposers_raise():
    with pytest.raises(ConfigError, match=r"principal\.observations=true"):
        make_format(observations=True)


class TargetEvaluator:
    """Evaluator that returns minus the distance from (1, 1, 1) and records requests."""

    def __init__(self):
        self.calls = []

    def __call__(self, vectors, seeds):
        self.calls.append((vectors.copy(), seeds.copy()))
        return np.tile(-np.abs(vectors - 1.0).sum(1)[:, None], (1, len(seeds)))


def test_judge_shares_seeds_across_unique_vectors():
    prompt_format, plays = make_format(), TargetEvaluator()
    evaluator = ReplyEvaluator(prompt_format, plays, 4, Seeds(0))
    prompts = [prompt_format.make_prompt(example(3, seed=seed)) for seed in (0, 0, 0, 0, 1)]
    repeated_vector = prompts[0].shown_trials[1].vector
    replies = [
        prompt_format.format_reply(repeated_vector, ""),
        prompt_format.format_reply(np.ones(3), ""),
        "nothing",
        "params: [1, 1, 9]",
        prompt_format.format_reply(np.ones(3), "!"),
    ]
    first = evaluator(prompts, replies, "step 1")
    ((vectors, seeds),) = plays.calls
    assert len(vectors) == 2 and len(seeds) == 4
    assert [attempt.vector is not None for attempt in first] == [True, True, False, True, True]
    assert [attempt.is_in_bounds for attempt in first] == [True, True, False, False, True]
    assert [attempt.is_repeated for attempt in first] == [True, False, False, False, False]
    assert [len(attempt.returns) for attempt in first] == [4, 4, 0, 0, 4]
    assert first[1].value == first[4].value == 0.0
    assert first[0].value == pytest.approx(-np.abs(repeated_vector - 1).sum()) and first[2].error
    assert np.array_equal(first[0].history_values, [trial.value for trial in prompts[0].shown_trials])
    assert evaluator(prompts, replies, "step 1") is first and len(plays.calls) == 1
    evaluator(prompts, replies, "step 2")
    assert set(plays.calls[1][1]).isdisjoint(seeds)
    assert ReplyEvaluator(prompt_format, plays, 4, Seeds(0))(prompts, replies, "step 1")[0].value == first[0].value
    assert np.array_equal(plays.calls[2][1], seeds)
    rates = evaluator.metrics()
    assert (rates["train/valid_rate"], rates["train/in_bounds_rate"], rates["train/repeat_rate"]) == (0.8, 0.6, 0.2)
    assert rates["train/skipped_groups"] == 1.0  # each question is another object, a group of its own


def test_unreadable_group_has_zero_advantage():
    prompt_format, plays = make_format(), TargetEvaluator()
    evaluator = ReplyEvaluator(prompt_format, plays, 4, Seeds(0))
    first, second = (prompt_format.make_prompt(example(3, seed=seed)) for seed in (0, 1))
    odd = ['{"params": ["\\ud800"]}', "[" * 5000, f"params[0]: {'9' * 5000}x"]
    prompts = [first] * 3 + [second] * 3
    attempts = evaluator(prompts, [*odd, *odd[:2], prompt_format.format_reply(np.ones(3), "")], "step 1")
    assert evaluator.metrics()["train/skipped_groups"] == 1.0
    scale = ReturnScale(-10.0, 0.0)
    assert {shipped.build_rewards()(attempt, scale) for attempt in attempts[:3]} == {0.0}, (
        "equal rewards are no advantage"
    )


def evaluated_task(prompt_format, prompts):
    evaluator = ReplyEvaluator(prompt_format, TargetEvaluator(), 2, Seeds(0))
    return EvaluatedTask("game", prompts, evaluator, shipped.build_rewards(), ReturnScale(-10.0, 0.0))


def test_measures_and_baselines():
    prompt_format = make_format()
    prompts = [prompt_format.make_prompt(example(3, seed=seed)) for seed in range(20)]
    task = evaluated_task(prompt_format, prompts)
    measures = task.measure_replies([prompt_format.format_reply(np.ones(3), "")] * 15 + ["?"] * 5)
    table = summarize_measures(measures)
    assert table["valid_rate"]["mean"] == 0.75 and table["valid_rate"]["n"] == 20
    assert table["score"]["mean"] == 0.75 and table["return"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 15}
    references = task.measure_baselines(Seeds(1))
    best = [max(question.shown_trials, key=lambda trial: trial.value).vector for question in prompts]
    assert np.allclose(references["incumbent"]["return"], [-np.abs(vector - 1).sum() for vector in best])
    assert references["incumbent"]["repeat_rate"].all() and references["random"]["in_bounds_rate"].all()
    assert not references["random"]["repeat_rate"].any()
    gain = summarize_differences(measures, references["random"])
    assert gain["return"]["n"] == 15 and gain["return"]["low"] > 0
    assert gain["valid_rate"]["mean"] == -0.25
    empty = summarize_measures(evaluated_task(prompt_format, prompts[:2]).measure_replies(["?", "?"]))
    assert empty["return"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert empty["score"]["mean"] == 0.0 and empty["valid_rate"]["high"] < 1


def test_model_receives_prompts_unchanged():
    class Says(WindowedModel):
        def complete(self, requests):
            self.seen = requests
            return [ChatReply("params: [1, 2, 3]") for _ in requests]

    prompt_format = make_format()
    provider = Says(100_000)
    provider.remote = False
    prompts = [prompt_format.make_prompt(example(3, seed=seed)) for seed in range(3)]
    replies = ChatClient(provider).chat(evaluated_task(prompt_format, prompts).requests())
    assert [reply.text for reply in replies] == ["params: [1, 2, 3]"] * 3
    for request, question in zip(provider.seen, prompts, strict=True):
        assert request.messages == question.messages and request.prompt == "search/numeric"
        assert request.parse(ChatReply("params: [1, 2, 3]")).tolist() == [1, 2, 3]
        with pytest.raises(InvalidReply):
            request.parse(ChatReply("hm"))
