"""principal=llm with the parameters of a policy: prompts, accepted replies and estimated costs."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from experiments import compose, list_search_overrides
from fake_openai_server import FakeOpenAIServer
from llmrl.agents.search_agent import TabularAgent
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.spaces import Channel
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.provider import estimate_tokens
from llmrl.principals.llm_search import LLMSearch
from models import EchoProvider, connect_client, make_scripted_client
from policies import ARM, LAKE, POLE, make_policy_outcome, make_searcher
from shipped import build_llm_principal, build_search_agent
from societies import make_toy_spec

TEN = replace(POLE, observation={"vector": Channel((4,), "float32")})
"""A game like CartPole: a linear policy has ten numbers."""
MLP = build_search_agent("mlp_policy", ARM, hidden=[3])
GOLDEN = Path(__file__).parent / "golden"
PAPER_OPTIONS = {"rows": "named", "reply": "lines", "first_iteration": 0, "prompt_iterations": 400}


def with_history(principal, n=3, per_iteration=1):
    """Return a principal after `n` iterations of `per_iteration` proposals with returns 10, 20, ..."""
    rng = np.random.default_rng(len(principal.history.records))
    for i in range(n):
        samples = rng.normal(0, 3, (per_iteration, principal.space.dim))
        vectors = principal.space.round_values(samples)
        principal.tell([make_policy_outcome(v, 10.0 * (i + 1) + k, length=7.0) for k, v in enumerate(vectors)])
        principal.iteration += 1
    return principal


def check_snapshot(name, text):
    """Compare with a golden file. After an intended change, LLMRL_UPDATE_GOLDEN=1 rewrites it; review the diff."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("LLMRL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class TestPrompt:
    @pytest.mark.parametrize(
        ("name", "make"),
        [
            ("described", lambda: make_searcher(step_size=1.0, optimum=200.0)),
            (
                "described_numbers",
                lambda: make_searcher(ARM, MLP, observations=True),
            ),
            ("described_table", lambda: make_searcher(LAKE, optimum=0.74)),
            ("numeric", lambda: make_searcher(prompt="numeric", step_size=0.5, duplicates="accept")),
            (
                "numeric_published",
                lambda: make_searcher(prompt="numeric", optimum=500.0, step_size=1.0, **PAPER_OPTIONS),
            ),
            ("numeric_table", lambda: make_searcher(LAKE, prompt="numeric", **PAPER_OPTIONS)),
        ],
    )
    def test_snapshot(self, name, make):
        principal = make()
        principal.on_search_start(100, 20)
        check_snapshot(name, with_history(principal).build_prompt(None).text)

    @pytest.mark.parametrize("treatment", ["props", "props_main", "props_plus"])
    def test_paper_treatment_snapshots(self, treatment):
        settings = {**compose(*list_search_overrides("cartpole", treatment))["principal"]}
        del settings["_target_"]
        principal = make_searcher(**settings)
        principal.on_search_start(400, 20)
        with_history(principal, 5)
        principal.tell([make_policy_outcome(principal.history.records[1]["vector"], 25.0)])
        check_snapshot(treatment, principal.build_prompt(None).text)

    def test_multiple_proposals_snapshots(self):
        principal = make_searcher(prompt="numeric", reply="lines")
        check_snapshot("second_of_three", with_history(principal, 1, 3).build_prompt(None, 2, 3).text)

    def test_numbers_only_prompt(self):
        text = make_searcher(prompt="numeric").build_prompt(None).text
        for word in ("pole", "left", "cart", "policy", "reward", "episode", "angle", "weight"):
            assert word not in text.lower()

    def test_hints_are_optional(self):
        bare = make_searcher().build_prompt(None).text
        assert "highest value" not in bare and "change numbers by" not in bare
        assert "highest value there can be is about -5." in make_searcher(optimum=-5.0).build_prompt(None).text
        assert "change numbers by about 0.1 at a time" in make_searcher(step_size=0.1).build_prompt(None).text

    def test_integers_have_no_step_size(self):
        text = make_searcher(LAKE, step_size=1.0).build_prompt(None).text
        assert "Each is a whole number from 0 to 2." in text
        assert "change numbers by" not in text and "negative" not in text

    @pytest.mark.parametrize("prompt", ["numeric", "described"])
    @pytest.mark.parametrize("rows", ["compact", "named"])
    def test_prefix_is_byte_stable(self, prompt, rows):
        """A prompt with the whole history is the previous one up to its last row, plus a row and the last lines."""
        principal = make_searcher(prompt=prompt, rows=rows, step_size=1.0, optimum=9.0)
        principal.on_search_start(50, 20)
        texts = [with_history(principal, 1).build_prompt(None).text for _ in range(12)]
        for earlier, after in pairwise(texts):
            fixed = earlier[: earlier.index("\n## Now\n")]
            assert after.startswith(fixed) and len(after) - len(fixed) < 500

    def test_only_last_lines_change_with_history(self):
        principal = make_searcher(history="best_and_last", window=2, n_recent=2)
        texts = [with_history(principal, 1).build_prompt(None).text for _ in range(9)]
        assert len({text[: text.index("\n[")] for text in texts}) == 1

    def test_iterations_are_counted_per_question(self):
        principal = make_searcher(first_iteration=0)
        principal.on_search_start(30, 5)
        assert "This is iteration 0 of 30." in principal.build_prompt(None).text
        assert "as the mean of 5 runs" in principal.build_prompt(None).text
        principal.ask()
        assert "This is iteration 1 of 30." in principal.build_prompt(None).text
        assert "of 400." in make_searcher(prompt_iterations=400).build_prompt(None).text
        assert "This is iteration 1." in make_searcher().build_prompt(None).text

    def test_warmup_vectors_are_no_iterations(self):
        principal = make_searcher()
        principal.tell([make_policy_outcome(np.full(8, 0.5 * i), i) for i in range(4)])
        text = principal.build_prompt(None).text
        assert "Tried so far: 4. This is iteration 1" in text and text.count(" -> ") == 4

    def test_best_and_last(self):
        principal = make_searcher(history="best_and_last", window=2, n_recent=3, sliding_history=True, advice=False)
        for value in (5, 90, 3, 80, 4, 70, 1, 2, 6):
            principal.tell([make_policy_outcome(np.full(8, value / 100), value)])
        text = principal.build_prompt(None).text
        assert [float(line.split("-> ")[1]) for line in text.splitlines() if " -> " in line] == [90, 80, 1, 2, 6]
        assert "Shown are the 3 newest proposals and the 2 best of the others." in text

    def test_newest_grows_and_shrinks(self):
        """A prompt extends the previous one, except at every third iteration, when the window is truncated."""
        principal, line_counts, is_prefix = make_searcher(history="last", window=3), [], []
        previous = ""
        for _ in range(16):
            text = with_history(principal, 1).build_prompt(None).text
            rows = [line for line in text.splitlines() if " -> " in line]
            is_prefix.append(text.startswith(previous))
            previous = text[: text.index("\n## Now\n")]
            line_counts.append(len(rows))
        assert line_counts == [1, 2, 3, 4, 5, *[3, 4, 5] * 3, 3, 4] and is_prefix == [
            n != 3 or i < 3 for i, n in enumerate(line_counts)
        ]
        assert "Shown are at least the 3 newest proposals." in text

    def test_observations_are_optional(self):
        line = "-> 10.00 (standard error 1.32, length 7)"
        assert line in with_history(make_searcher(observations=True), 1).build_prompt(None).text
        assert "length" not in with_history(make_searcher(prompt="numeric"), 1).build_prompt(None).text

    def test_the_schema_holds_the_numbers(self):
        assert make_searcher().structured_query.schema["required"] == ["reasoning", "params"]
        assert make_searcher(reply="lines").structured_query.schema is None

    def test_unlabeled_policy_lists_numbers(self):
        class Plain:
            channel, space = "vector", build_search_agent("linear", POLE).controller.space

            def act(self, observation, parameters):
                raise NotImplementedError

        text = build_llm_principal(POLE, make_scripted_client(), controller=Plain()).build_prompt(None).text
        assert "- params[1]: weight of position on 1 (right)" in text

    def test_user_prompt(self, tmp_path):
        (tmp_path / "search").mkdir()
        (tmp_path / "search" / "mine.j2").write_text(
            '{% extends "ours/numeric.j2" %}{% block task %}Guess!{% endblock %}'
        )
        text = make_searcher(prompt_folder=tmp_path, prompt="mine").build_prompt(None).text
        assert text.startswith("Guess!") and "8 numbers, called params[0]" in text


class TestAdvice:
    def test_advice_on_action_invariant_changes(self):
        """Changes that the prompt describes as ineffective change no action.

        This holds for a linear policy, a network and a table.
        """
        rng = np.random.default_rng(0)
        observations = rng.normal(size=(50, 3))
        for agent, last in (
            (build_search_agent("linear", POLE), 0),
            (build_search_agent("mlp_policy", POLE, hidden=[4]), 16),
        ):
            controller = agent.controller
            theta = rng.normal(0, 2, controller.space.dim)
            assert "So nothing changes where" in make_searcher(agent=agent).build_prompt(None).text
            acts = controller.act(observations, np.tile(theta, (50, 1)))
            assert 0 < acts.mean() < 1
            scaled, shifted, biased, wrong = (theta.copy() for _ in range(4))
            scaled[last:] *= 3.0
            shifted[last : last + 2] += 0.7
            biased[-2:] -= 5.0
            wrong[last] += 5.0
            for equivalent in (scaled, shifted, biased):
                assert (controller.act(observations, np.tile(equivalent, (50, 1))) == acts).all()
            assert (controller.act(observations, np.tile(wrong, (50, 1))) != acts).any()
        assert f"params[{last}] to params[25] are multiplied" in make_searcher(agent=agent).build_prompt(None).text
        assert "add" not in make_searcher(ARM, build_search_agent("linear", ARM)).controller.invariances

    def test_no_scaling_advice_on_tables(self):
        assert "multiplied" not in make_searcher(LAKE).build_prompt(None).text

    def test_advice_on_measuring_repeatedly(self):
        repeat_notice = "Numbers may be proposed again"
        with_noise, common, strict = make_searcher(), make_searcher(), make_searcher(duplicates="reask")
        for principal, has_notice in ((with_noise, False), (common, True), (strict, False)):
            principal.on_search_start(10, 20, has_notice)
        assert (
            repeat_notice in with_noise.build_prompt(None).text
            and "Never propose" not in with_noise.build_prompt(None).text
        )
        assert (
            repeat_notice not in common.build_prompt(None).text and repeat_notice not in strict.build_prompt(None).text
        )
        assert "Never propose numbers that were tried already." in strict.build_prompt(None).text

    def test_two_samples_have_no_standard_error(self):
        for n, has_error in ((2, False), (3, True)):
            principal = make_searcher()
            principal.tell([make_policy_outcome(np.zeros(8), 1.0, n)])
            assert ("(standard error" in principal.build_prompt(None).text) == has_error


class TestReplies:
    GOOD = '{"reasoning": "up", "params": [1, 2, 3, 4, 5, 6, -1, 0.5]}'

    def ask(self, reply, n=1, **settings):
        with FakeOpenAIServer(reply if callable(reply) else lambda messages: reply) as server:
            principal = make_searcher(llm=connect_client(server), **settings)
            vectors = principal.ask(None, n)
        return principal, vectors, [request["messages"] for request in server.requests]

    def test_valid_at_first_turn(self):
        principal, vectors, _ = self.ask(self.GOOD)
        assert vectors.tolist() == [[1, 2, 3, 4, 5, 6, -1, 0.5]] and principal.reasons == ["up"]

    def test_repair_turn_shows_failed_answer(self):
        bad = "params[0]: 1; params[1]: 2"
        principal, _, (first, second) = self.ask(lambda m: bad if len(m) == 1 else self.GOOD)
        assert second[0] == first[0] and second[1] == {"role": "assistant", "content": bad}
        assert "no number for params[2], params[3]" in second[2]["content"] and "from -6 to 6" in second[2]["content"]
        assert (
            principal.structured_query.counters["invalid_replies"]
            == principal.structured_query.counters["repairs"]
            == 1
        )

    def test_decimals_round(self):
        _, vectors, _ = self.ask("[1.04, 2.06, 0, 0, 0, 0, -0.04, 0]")
        assert vectors.tolist() == [[1.0, 2.1, 0, 0, 0, 0, 0, 0]] and not np.signbit(vectors).any()

    @pytest.mark.parametrize(
        ("policy", "first", "invalid", "n_moves"), [("reask", 0.0, 2, 0), ("clamp", 6.0, 0, 2), ("accept", 9.3, 0, 0)]
    )
    def test_out_of_bounds_numbers(self, policy, first, invalid, n_moves):
        reply = "[9.26, -7, 0, 0, 0, 0, 0, 0]"
        principal, vectors, _ = self.ask(reply, out_of_range=policy)
        metrics = principal.tell([make_policy_outcome(vectors[0], 1.0)])
        assert vectors[0, 0] == first and metrics["llm/invalid_replies"] == invalid
        assert metrics["llm/moved_numbers"] == n_moves

    def test_duplicates_are_measured_or_rejected(self):
        principal, vectors, _ = self.ask(self.GOOD)
        principal.tell([make_policy_outcome(vectors[0], 1.0)])
        assert principal.parse_reply(self.GOOD).vector.tolist() == vectors[0].tolist()
        strict = make_searcher(duplicates="reask")
        strict.tell([make_policy_outcome(vectors[0], 1.0)])
        with pytest.raises(InvalidReply, match="already"):
            strict.parse_reply(self.GOOD)

    def test_duplicates_after_rounding_raise(self):
        principal = make_searcher(duplicates="reask")
        principal.tell([make_policy_outcome([1, 2, 3, 4, 5, 6, -1, 0.5], 1.0)])
        with pytest.raises(InvalidReply, match="already"):
            principal.parse_reply("[1.01, 2.01, 3, 4, 5, 6, -1, 0.5]")

    def test_repetitions_are_counted(self):
        principal, vectors, _ = self.ask("no")
        assert principal.tell([make_policy_outcome(vectors[0], 1.0)])["llm/repeated_proposals"] == 0
        with FakeOpenAIServer(lambda messages: "no") as server:
            principal.llm = principal.structured_query.llm = connect_client(server)
            vectors = principal.ask()
        metrics = principal.tell([make_policy_outcome(vectors[0], 1.0)])
        assert metrics["llm/repeated_proposals"] == 1 and metrics["llm/fallbacks"] == 2

    def test_equal_proposals_in_step_are_counted(self):
        with FakeOpenAIServer(lambda messages: '{"params": [1, 2, 3, 4, 5, 6, 1, 2]}') as server:
            principal = make_searcher(llm=connect_client(server), duplicates="accept")
            principal.ask(n=3)
        assert principal.counters["repeated_proposals"] == 2

    def test_lucky_episode_is_not_repeated(self):
        with FakeOpenAIServer(lambda messages: "no") as server:
            principal = make_searcher(llm=connect_client(server))
            for x, value, n in ((0.1, 9.0, 1), (0.2, 3.0, 20), (0.3, 2.0, 20)):
                principal.tell([make_policy_outcome(np.full(8, x), value, n)])
            assert principal.ask().tolist() == [[0.2] * 8]

    @pytest.mark.parametrize(("fallback", "value"), [("best", 0.2), ("last", 0.3)])
    def test_fallback_proposals(self, fallback, value):
        with FakeOpenAIServer(lambda messages: "no") as server:
            principal = make_searcher(llm=connect_client(server), fallback=fallback)
            assert principal.ask().tolist() == [[0.0] * 8]
            for x, y in ((0.1, 1.0), (0.2, 3.0), (0.3, 2.0)):
                principal.tell([make_policy_outcome(np.full(8, x), y)])
            assert principal.ask().tolist() == [[value] * 8]

    def test_fallback_can_stop_run(self):
        with pytest.raises(LLMError, match=r"1.*principal.fallback=best"):
            self.ask("no", fallback="stop")

    def test_multiple_questions(self):
        def reply(messages):
            k = int(messages[0]["content"].split("this is number ")[1][0])
            return str([k, 0, 0, 0, 0, 0, 0, 0])

        _, vectors, requests = self.ask(reply, 3)
        assert vectors[:, 0].tolist() == [1, 2, 3] and len(requests) == 3

    def test_integers(self):
        with FakeOpenAIServer(lambda messages: "params[0]: 2, params[1]: 0, params[2]: 1, params[3]: 1") as server:
            principal = make_searcher(LAKE, llm=connect_client(server), reply="lines")
            assert principal.ask().tolist() == [[2, 0, 1, 1]]
        with pytest.raises(InvalidReply, match=r"params\[1\]=3 .*\[0, 2\]"):
            principal.parse_reply("[0, 3, 0, 0]")


def test_partial_history_saves_tokens():
    """A partial history takes a fifth of the tokens.

    Compared are 400 iterations after 20 random vectors: the best 20 and the last 10 with descriptions, as a treatment
    shows them, and all of them by name as published. Prompts are rendered at every fortieth iteration, and grow evenly
    in between.
    """
    moments, total = range(0, 401, 40), []
    for treatment in ("short_history", "props"):
        settings = {**compose(*list_search_overrides("cartpole", treatment))["principal"]}
        assert settings.pop("_target_").endswith("llm_principal")
        principal, tokens = make_searcher(TEN, build_search_agent("linear", TEN), **settings), []
        principal.on_search_start(400, 20)
        with_history(principal, 20)
        for moment in moments:
            tokens.append(estimate_tokens(principal.build_prompt(None).text))
            with_history(principal, 40)
            principal.iteration = moment + 40
        total.append(np.interp(np.arange(400), moments, tokens).sum())
    assert total[0] < total[1] / 5 and total[1] > 5e6


@pytest.mark.parametrize("settings", [{}, {"history": "best_and_last", "window": 3, "n_recent": 2}])
def test_estimate_approximates_prompt(settings):
    """Estimates of calls are exact, those of prompt tokens within 20 %; prompts contain the vectors of the warm-up."""
    principal = make_searcher(**settings)
    principal.on_search_start(12, 20)
    estimate = principal.estimate(12, 2, n_earlier_outcomes=5)
    rng = np.random.default_rng(0)
    principal.tell([make_policy_outcome(v, 1.0) for v in principal.space.round_values(rng.normal(0, 3, (5, 8)))])
    for i in range(12):
        principal.tell([make_policy_outcome(vector, 100.0 + i) for vector in principal.ask(None, 2)])
    used = principal.llm.metrics()
    assert estimate.calls == used["llm/calls"] == 24
    assert estimate.prompt_tokens == pytest.approx(used["llm/prompt_tokens"], rel=0.2)
    assert principal.estimate(12, 2, n_earlier_outcomes=5) == estimate, "an estimate changes nothing"


class TestRepeatedMeasurements:
    """Tests of a vector with the returns 122, 152.2 and 148.6, and another vector between them."""

    def rows(self, **settings):
        principal = make_searcher(**settings)
        for x, value in ((0.1, 122.0), (0.2, 145.0), (0.1, 152.2), (0.1, 148.6)):
            principal.tell([make_policy_outcome(np.full(8, x), value, 20)])
        return [
            line.split("-> ")[-1].split("f(params): ")[-1]
            for line in principal.build_prompt(None).text.splitlines()
            if line.startswith(("[0.", "params[0]: 0."))
        ]

    def test_best_history_merges_measurements(self):
        assert self.rows(history="best", window=1, advice=False) == ["145.00"]
        rows = self.rows(history="best_and_last", window=1, n_recent=1, advice=False)
        assert rows == ["145.00", "140.93 (mean of 3 measurements)"]
        [_, row] = self.rows(history="best", observations=True)
        assert row.startswith("140.93 (mean of 3 measurements, standard error ")

    @pytest.mark.parametrize("form", ["compact", "named"])
    def test_full_history_appends_mean(self, form):
        assert [row.split(" (")[0] for row in self.rows(rows=form)] == ["122.00", "145.00", "152.20", "148.60"]
        principal = make_searcher(rows=form)
        for x, value in ((0.1, 122.0), (0.2, 145.0), (0.1, 152.2), (0.1, 148.6)):
            principal.tell([make_policy_outcome(np.full(8, x), value, 20)])
        means = principal.build_prompt(None).text.split("## Measured several times\n")[1]
        assert ": 3 times, mean 140.93, values spread by 16.5\n" in means and means.count("\n- ") == 0
        assert "Best so far: " in means and "with 145.00, measured once." in means

    def test_paper_prompt_keeps_rows(self):
        settings = {**compose(*list_search_overrides("cartpole", "props"))["principal"]}
        del settings["_target_"]
        assert self.rows(**settings) == ["122.00", "145.00", "152.20", "148.60"]

    @pytest.mark.parametrize("case", [("cartpole", "props"), ("cartpole", "props_main"), ("maze", "props_plus")])
    def test_paper_treatments_match_budget(self, case):
        config = compose(*list_search_overrides(*case))
        assert config["principal"]["measurements"] == "separate" and config["search"]["confirm_candidates"] == 0


def test_restart_asks_equal_question():
    principal = with_history(make_searcher(), 4)
    restored = make_searcher()
    restored.load_state_dict(principal.state_dict())
    assert (
        restored.build_prompt(None).text == principal.build_prompt(None).text
        and restored.proposed_vectors == principal.proposed_vectors
    )
    assert np.array_equal(restored.ask(), principal.ask())


def test_long_history_is_truncated_with_notice():
    model = EchoProvider(max_tokens=50)
    principal = with_history(make_searcher(llm=ChatClient(model)), 8)
    model.context_window = model.count_tokens([{"content": principal.build_prompt(None).text}]) + 10
    text = principal.build_prompt(None).text
    assert text.count(" -> ") < 8 and "There is room for" in text.split("## Now")[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out_of_range": "accept"}, "principal.out_of_range=accept"),
        ({"prompt": "numeric"}, "principal.prompt=numeric"),
    ],
)
def test_policy_options_raise_for_mechanisms(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_llm_principal(make_toy_spec(), make_scripted_client(), **settings)


def test_shared_options_work_for_mechanisms():
    hinted = (
        build_llm_principal(make_toy_spec(), make_scripted_client(), step_size=0.5, optimum=10.0)
        .build_prompt(None)
        .text
    )
    assert "The highest payoff there can be is about 10;" in hinted and "change numbers by about 0.5." in hinted
    with FakeOpenAIServer(lambda messages: '{"x0": 9, "x1": 2}') as server:
        principal = build_llm_principal(
            make_toy_spec(), connect_client(server), out_of_range="clamp", duplicates="reask"
        )
        assert principal.ask().tolist() == [[3.0, 2.0]] and principal.counters["moved_numbers"] == 1


def test_mechanism_prompts_differ_from_policy_prompts():
    with pytest.raises(ConfigError, match=r"prompt=cleanup.*described, numeric"):
        make_searcher(prompt="cleanup")
    with pytest.raises(ConfigError, match="no mechanism"):
        build_llm_principal(POLE, make_scripted_client())
    assert isinstance(make_searcher(LAKE, TabularAgent(LAKE)), LLMSearch)


@pytest.mark.parametrize(
    ("spec", "settings", "warned"),
    [(LAKE, {}, True), (LAKE, {"prompt": "numeric"}, False), (POLE, {}, False)],
    ids=["described, no text", "numeric", "described, a text"],
)
def test_unused_description_warns(spec, settings, warned, caplog):
    make_searcher(spec, **settings)
    assert ("principal.prompt=described" in caplog.text) == warned
