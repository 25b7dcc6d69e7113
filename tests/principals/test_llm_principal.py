import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatRequest, Pretraining, PrincipalBriefing
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, Parameter, ParameterSpace
from llmrl.core.welfare_measures import OBJECTIVES
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from models import EchoProvider, connect_client, make_scripted_client
from shipped import build_llm_principal
from societies import (
    CLEANUP,
    CLEANUP_LEGISLATIVE,
    ESCAPE_ROOM,
    GENERIC,
    HARVEST,
    HARVEST_LEGISLATIVE,
    TAX_ECONOMY,
    make_outcome,
    make_spec,
    make_toy_spec,
)
from some import mark_long_except

GOLDEN = Path(__file__).parent / "golden"
WELFARE_DESCRIPTIONS = {"equality": 0.25, "sustainability": 12.5, "spending": 3.00004, "peace": 7.0}
LENIENT = make_env("escape_room", n_envs=1, min_agents_per_lever=3, stay_penalty=False).spec
SOCIETIES = {
    "cleanup": CLEANUP,
    "cleanup_legislative": CLEANUP_LEGISLATIVE,
    "harvest": HARVEST,
    "harvest_legislative": HARVEST_LEGISLATIVE,
    "escape_room": ESCAPE_ROOM,
    "escape_room_lenient": LENIENT,
    "tax_economy": TAX_ECONOMY,
    "toy": GENERIC,
}


def result(society, vector, context=None, **kwargs):
    return replace(
        make_outcome(society, np.array(vector, dtype=float), context, **kwargs), welfare=WELFARE_DESCRIPTIONS
    )


def principal_after(society, vectors, n=2, batch_size=1, **kwargs):
    """Return a principal that received some outcomes, `batch_size` per generation.

    Their contexts are 0, 1, 2, 0, ... if the game has contexts.
    """
    principal = build_llm_principal(society, make_scripted_client(), **kwargs)
    for i in range(0, len(vectors), batch_size):
        context = i // batch_size % len(society.contexts) if society.contexts else None
        principal.tell([result(society, vector, context, n=n) for vector in vectors[i : i + batch_size]])
    return principal


def check_snapshot(name, text):
    """Compare with a golden file. After an intended change, LLMRL_UPDATE_GOLDEN=1 rewrites it; review the diff."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("LLMRL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def vectors_for(society):
    d = society.mechanism.dim
    return [np.full(d, 0.25), np.linspace(0, 1, d), np.full(d, 1 / 3), np.zeros(d)]


@pytest.mark.parametrize("moment", ["first", "later"])
@pytest.mark.parametrize("name", SOCIETIES)
def test_prompt_snapshots(name, moment):
    society = SOCIETIES[name]
    principal = principal_after(society, [] if moment == "first" else vectors_for(society))
    check_snapshot(f"{name}_{moment}", principal.build_prompt(society.contexts[0] if society.contexts else None).text)


def test_multiple_proposals_prompt_snapshot():
    principal = principal_after(
        ESCAPE_ROOM,
        [v for v in vectors_for(ESCAPE_ROOM) for _ in range(2)],
        batch_size=3,
        measurements="separate",
    )
    check_snapshot("escape_room_second_of_three", principal.build_prompt(ESCAPE_ROOM.contexts[0], 2, 3).text)


def test_cost_aware_prompt_snapshot():
    society = replace(CLEANUP, objective=OBJECTIVES["equality_productivity"], spending_cost=0.1)
    seeing = {**society.observation, "mechanism": Channel((3,), "float32")}
    society = replace(society, observation=seeing)
    check_snapshot("cleanup_charged", principal_after(society, vectors_for(society)).build_prompt(None).text)


def test_payoff_definition():
    """The prompt defines each objective, with and without costs of payments."""
    sections = []
    for name, objective in OBJECTIVES.items():
        for cost in (0.0, 0.025):
            text = (
                principal_after(replace(make_toy_spec(), objective=objective, spending_cost=cost), [])
                .build_prompt(None)
                .text
            )
            section = text.split("## Your payoff\n")[1].split("\n\n## ")[0]
            assert "\n" not in section
            sections.append(f"{name}, spending_cost {cost}: {section}\n")
    check_snapshot("payoffs", "\n".join(sections))


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", SOCIETIES)
def test_prompts_state_objective(name, objective):
    definition = OBJECTIVES[objective]
    society = replace(SOCIETIES[name], objective=definition)
    sentence = definition.format_payoff(society.n_agents)
    assert sentence.startswith("Your payoff is ") and sentence.endswith(".")
    text = principal_after(society, []).build_prompt(society.contexts[0] if society.contexts else None).text
    assert text.count(sentence) == text.count("Your payoff is ") == 1


def test_agents_observe_parameters():
    observable = replace(
        make_toy_spec(), observation={**make_toy_spec().observation, "mechanism": Channel((2,), "float32")}
    )
    assert "They also see the numbers themselves." in principal_after(observable, []).build_prompt(None).text
    assert "They do not see the numbers themselves." in principal_after(make_toy_spec(), []).build_prompt(None).text


@pytest.mark.parametrize("name", SOCIETIES)
def test_parameters_are_explained(name):
    society = SOCIETIES[name]
    prompt = principal_after(society, []).build_prompt(society.contexts[0] if society.contexts else None).text
    for p in society.mechanism.parameters:
        assert f"- {p.name}: from {p.low:g} to {p.high:g} ({p.unit}): {p.description}" in prompt
        assert f'"{p.name}": <number>' in prompt


def test_payoffs_keep_fractions():
    principal = build_llm_principal(CLEANUP, make_scripted_client())
    principal.tell([make_outcome(CLEANUP, np.array([1 / 3, 0.0, 3.0]), value=-0.4375)])
    assert "Generation 1: eat=0.3333, clean=0, other=3 -> payoff -0.4375;" in principal.build_prompt(None).text


@pytest.mark.slow
@settings(max_examples=20)
@given(st.floats(0.01, 10), st.sampled_from([-1, 1]))
def test_small_payoffs_keep_precision(size, sign):
    """Payoffs of Clean Up are between 0.01 and 10 and are shown with a relative error of at most 0.0005."""
    principal = build_llm_principal(CLEANUP, make_scripted_client())
    principal.tell([result(CLEANUP, [1.0, 2.0, 3.0], value=sign * size)])
    line = next(line for line in principal.build_prompt(None).text.splitlines() if line.startswith("Generation 1"))
    assert float(line.split(" -> payoff ")[1].split(";")[0]) == pytest.approx(sign * size, rel=5e-4)


class TestHistory:
    VECTORS = [[-1.0, -1.0], [2.0, 2.0], [1.0, 1.0], [0.0, 0.0], [1.5, 1.5], [3.0, 3.0]]

    def lines(self, principal, context=None):
        return [line for line in principal.build_prompt(context).text.splitlines() if line.startswith("Generation ")]

    def generations(self, society=None, context=None, **kwargs):
        lines = self.lines(principal_after(society or make_toy_spec(), self.VECTORS, **kwargs), context)
        return [int(line.split()[1].rstrip(":,")) for line in lines]

    def test_all_last_best(self):
        assert self.generations() == [1, 2, 3, 4, 5, 6]
        assert self.generations(history="last", window=2) == [5, 6]
        # The best vector is (1.8, 1.8): the nearest are generations 2 and 5.
        assert self.generations(history="best", window=2) == [2, 5]

    def test_windows_are_per_context(self):
        society = make_toy_spec(contexts=("a", "b"))
        assert self.generations(society, "a", history="last", window=1) == [5, 6]

    def test_context_selection_is_announced(self):
        society = make_toy_spec(contexts=("a", "b"))
        vectors = [*self.VECTORS, *(np.array(self.VECTORS) - 0.5)]
        text = principal_after(society, vectors, history="last", window=1).build_prompt("b").text
        assert "Shown are at least the 1 newest proposals of each context." in text

    def test_generation_records_have_unique_ids(self):
        """A window or a truncation removes some of the three proposals of a generation."""
        principal = principal_after(make_toy_spec(), self.VECTORS, batch_size=3)
        assert principal.history.n_generations == 2 and len(principal.history.records) == 6
        assert [line.split(":")[0] for line in self.lines(principal)[3:]] == [
            f"Generation 2, proposal {i}" for i in (1, 2, 3)
        ]
        for policy in ("all", "best", "last"):
            selected = principal.history.select(policy, 4)
            for n in range(len(selected) + 1):
                assert len(principal.history.trim(selected, policy, n)) == n
        assert "This is generation 3." in principal.build_prompt(None).text

    def test_ids_survive_checkpoint(self):
        principal = principal_after(make_toy_spec(), self.VECTORS, batch_size=3)
        restored = build_llm_principal(make_toy_spec(), make_scripted_client())
        restored.load_state_dict(principal.state_dict())
        for principal_ in (principal, restored):
            principal_.tell([result(make_toy_spec(), [0.0, 0.0])])
        assert restored.build_prompt(None).text == principal.build_prompt(None).text
        assert restored.history.records[-1]["generation"] == 3

    def test_welfare_next_to_payoff(self):
        """Rows show the welfare if payoffs are no sums over agents and steps, and the spending if it is charged for."""
        minimum = replace(make_toy_spec(), objective=OBJECTIVES["minimum"])
        line = self.lines(principal_after(minimum, self.VECTORS))[0]
        assert "; equality: 0.25; sustainability: 12.5; base reward of each agent: " in line and "spending" not in line
        with_cost = principal_after(replace(minimum, spending_cost=0.5), self.VECTORS)
        assert "; sustainability: 12.5; spending: 3; base reward" in self.lines(with_cost)[0]
        assert "spending (what your numbers paid out beyond what they took" in with_cost.build_prompt(None).text
        assert "equality" not in principal_after(minimum, self.VECTORS, observations=False).build_prompt(None).text
        added = self.lines(principal_after(make_toy_spec(), self.VECTORS))[0]
        assert "equality" not in added and "; base reward of an agent: " in added

    def test_selection_notice_requires_omission(self):
        excerpt = principal_after(make_toy_spec(), self.VECTORS, history="last", window=2).build_prompt(None).text
        assert "Shown are at least the 2 newest" in excerpt
        assert (
            "Shown are"
            not in principal_after(make_toy_spec(), self.VECTORS, history="last", window=6).build_prompt(None).text
        )

    def test_observations_are_optional(self):
        line = "level at 25/50/75/100 % of the episode: 4, 9, 14, 19; moves: 19; base reward of an agent: "
        assert line in principal_after(make_toy_spec(), self.VECTORS).build_prompt(None).text
        bare = principal_after(make_toy_spec(), self.VECTORS, observations=False).build_prompt(None).text
        assert "moves" not in bare and "base reward of" not in bare and "payoff" in bare

    @pytest.mark.parametrize(
        ("history", "generations", "words"),
        [
            ("all", [2, 5, 6], "the best and the newest"),
            ("best", [2, 3, 5], "the best"),
            ("last", [4, 5, 6], "the newest"),
        ],
    )
    def test_history_fills_context_window(self, history, generations, words):
        """The prompt contains as many of six records as fit; the best generations are 2, 5 and 3."""
        model = EchoProvider(max_tokens=100)
        principal = build_llm_principal(make_toy_spec(), ChatClient(model), history=history)
        for vector in self.VECTORS:
            principal.tell([make_outcome(make_toy_spec(), np.array(vector), n=2)])
        records = principal.history.select(history, 50)
        prompts = [principal._render_with_records(None, records, n).text for n in range(len(records) + 1)]
        tokens = [model.count_tokens([{"role": "user", "content": prompt}]) for prompt in prompts]
        fits = len(generations)
        assert tokens[: fits + 2] == sorted(tokens[: fits + 2])
        model.context_window = tokens[fits] + 100
        prompt = principal.build_prompt(None).text
        rows = [line.split()[1].rstrip(":") for line in prompt.splitlines() if line.startswith("Generation ")]
        assert [int(n) for n in rows] == generations
        assert f"There is room for {fits} of the 6 proposals: {words} of them are shown." in prompt
        assert "Proposals made so far: 6" in prompt
        assert principal.tell([make_outcome(make_toy_spec(), np.zeros(2))])["llm/trimmed_prompts"] == 1

    def test_short_episodes(self):
        principal = principal_after(make_toy_spec(), [])
        result = make_outcome(make_toy_spec(), np.zeros(2))
        result.trajectories["level"] = np.array([5.0, 7.0])
        principal.tell([result])
        assert "level at 25/50/75/100 % of the episode: 5, 5, 7, 7" in principal.build_prompt(None).text


class TestRepeatedMeasurements:
    """Tests of repeated vectors, which have a row with the mean over all measurements."""

    LUCKY, GOOD, FAIR = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]

    def principal(self, **kwargs):
        """Return a principal with payoffs 122, 152.2 and 148.6 of `LUCKY`, 145 of `GOOD` and 120 of `FAIR`."""
        principal = build_llm_principal(make_toy_spec(), make_scripted_client(), **kwargs)
        for vector, value in (
            *((self.LUCKY, 122.0), (self.GOOD, 145.0), (self.LUCKY, 152.2)),
            *((self.FAIR, 120.0), (self.LUCKY, 148.6)),
        ):
            principal.tell([result(make_toy_spec(), vector, value=value, n=4)])
        return principal

    def rows(self, principal, context=None):
        lines = [line for line in principal.build_prompt(context).text.splitlines() if line.startswith("Generation ")]
        return [(line[: line.index(";")], line) for line in lines]

    def test_best_are_distinct_vectors(self):
        principal = self.principal(history="best", window=2)
        [(second, _), (first, line)] = self.rows(principal)
        assert second.startswith("Generation 2: x0=0, x1=1 -> payoff 145 (standard error")
        mean = "Generation 5: x0=1, x1=0 -> payoff 140.9 (mean of 3 measurements, in generations 1, 3, 5, that"
        assert first.startswith(mean) and "deviation of 16.5)" in line and "over 12 episodes" in line
        assert "Shown are the 2 best proposals." in principal.build_prompt(None).text
        assert principal.history.find_best_vector(None).tolist() == self.GOOD

    @pytest.mark.parametrize("history", ["all", "last"])
    def test_rows_precede_means(self, history):
        text = self.principal(history=history).build_prompt(None).text
        rows = [line for line in text.splitlines() if line.startswith("Generation ")]
        payoffs = [row.split("payoff ")[1].split(" (")[0] for row in rows]
        assert payoffs == ["122", "145", "152.2", "120", "148.6"]
        means = text[text.rindex("Generation 5") :]
        spread = "standard deviation between generations 16.5, standard error 9.524\n"
        assert f"- x0=1, x1=0: 3 times (12 episodes), mean payoff 140.9, {spread}" in means
        assert "Best mean so far: x0=0, x1=1 with 145 (standard error 16.5), measured once." in means

    def test_standard_errors_need_repetitions(self):
        """The noise is pooled over vectors; without two repetitions it is that of the briefing, if known."""
        principal = build_llm_principal(make_toy_spec(), make_scripted_client())
        for vector, value in ((self.LUCKY, 120.0), (self.GOOD, 145.0), (self.LUCKY, 160.0)):
            principal.tell([result(make_toy_spec(), vector, value=value, n=2)])
        assert principal.history.payoff_noise is None and "standard error" not in self.means(principal)
        principal.brief(PrincipalBriefing(6, 2, 2, 1, True, noise=30.0))
        assert "with 145 (standard error 30), measured once" in self.means(principal)
        assert "same numbers differed by a standard deviation of 30; the" in principal.build_prompt(None).text
        principal.tell([result(make_toy_spec(), self.GOOD, value=105.0, n=2)])
        assert principal.history.payoff_noise == pytest.approx(np.sqrt((800 + 800) / 2))
        assert self.means(principal).count("2 times (4 episodes)") == 2
        assert self.means(principal).count("standard error 20") == 3

    def means(self, principal):
        return principal.build_prompt(None).text.split("Tried more than once")[1].split("## Your answer")[0]

    @pytest.mark.parametrize(
        ("societies", "episodes", "shown"), [(1, 2, False), (1, 3, True), (2, 4, False), (3, 6, True)]
    )
    def test_standard_error_needs_three_values(self, societies, episodes, shown):
        """The error is computed over episodes for one society and over societies for several."""
        principal = build_llm_principal(make_toy_spec(), make_scripted_client())
        principal.tell([replace(result(make_toy_spec(), self.GOOD, n=episodes), n_units=societies, standard_error=4.0)])
        assert ("(standard error 4 over" in principal.build_prompt(None).text) == shown

    def test_repeated_societies(self):
        principal = build_llm_principal(make_toy_spec(), make_scripted_client())
        for _ in range(2):
            principal.tell([replace(result(make_toy_spec(), self.GOOD, n=6), n_units=3)])
        assert "2 times (12 episodes, 6 societies), mean payoff" in principal.build_prompt(None).text

    @pytest.mark.parametrize(("history", "n"), [("best_and_last", 3), ("best", 3)])
    def test_rows_are_unique(self, history, n):
        vectors = [row.split(": ")[1].split(" ->")[0] for row, _ in self.rows(self.principal(history=history))]
        assert len(vectors) == len(set(vectors)) == n

    def test_all_is_all(self):
        text = self.principal().build_prompt(None).text
        assert "Proposals made so far: 5" in text and "Shown are" not in text and "There is room" not in text

    def test_separate_measurement_rows(self):
        principal = self.principal(history="best", window=3, measurements="separate")
        assert [row.split("payoff ")[1].split(" (")[0] for row, _ in self.rows(principal)] == ["145", "152.2", "148.6"]
        assert "mean of" not in principal.build_prompt(None).text
        assert principal.history.find_best_vector(None).tolist() == self.GOOD, "proposals do not depend on prompts"

    def test_observations_are_averaged(self):
        principal = build_llm_principal(make_toy_spec(), make_scripted_client(), history="best")
        for n, moves in ((1, 10.0), (3, 30.0)):
            outcome = result(make_toy_spec(), self.GOOD, value=2.0 * n, n=n)
            outcome.summaries["moves"] = moves
            outcome.trajectories["level"] = np.full(20, moves)
            principal.tell([outcome])
        [(_, line)] = self.rows(principal)
        assert "-> payoff 5 " in line and "; moves: 25;" in line
        assert "level at 25/50/75/100 % of the episode: 25, 25, 25, 25" in line and "an agent: 5 to 5" in line

    def test_repeated_luck_is_deduplicated(self):
        """Equal proposals of a step share their games; means are weighted by numbers of episodes."""
        principal = build_llm_principal(make_toy_spec(), make_scripted_client(), history="best")
        outcomes = [replace(result(make_toy_spec(), self.GOOD, value=10.0, n=2), draw="step 0") for _ in range(2)]
        principal.tell(outcomes)
        principal.tell([replace(result(make_toy_spec(), self.GOOD, value=1.0, n=4), draw="step 1")])
        [(row, _)] = self.rows(principal)
        notice = "(mean of 2 measurements, in generations 1, 2, that differ by a standard deviation of 6.364)"
        assert f"-> payoff 4 {notice} (standard error" in row

    def test_contexts_are_separate(self):
        society = make_toy_spec(contexts=("a", "b"))
        principal = build_llm_principal(society, make_scripted_client(), history="best")
        for context, value in ((0, 1.0), (1, 5.0), (0, 2.0)):
            principal.tell([result(society, self.GOOD, context, value=value)])
        assert [row.split("payoff ")[1].split(" (")[0].split(";")[0] for row, _ in self.rows(principal, "a")] == [
            "5",
            "1.5",
        ]


class TestPromptContent:
    def test_run_description(self):
        principal = principal_after(ESCAPE_ROOM, [])
        assert "This is generation 1." in principal.build_prompt("lever_0_works").text
        baselines = {"lever_0_works": -5.0, "lever_1_works": 0.25}
        principal.brief(PrincipalBriefing(40, 20, 64, 1, True, baselines))
        text = principal.build_prompt("lever_0_works").text
        assert "This is generation 1 of 40." in text and "begin it with the same weights" in text
        assert "there are 20 training rounds" in text and "64 episodes are evaluated" in text
        assert "with nothing set: [context: lever_0_works] payoff -5; [context: lever_1_works] payoff 0.25." in text
        assert "It says nothing of the learning" in text
        principal.brief(PrincipalBriefing(40, 20, 64, 4, False))
        text = principal.build_prompt("lever_0_works").text
        assert "keep what they have learned" in text and "governs 4 societies" in text and "nothing set" not in text
        assert "It says nothing of the learning" not in text
        principal.brief(PrincipalBriefing(40, 20, 2, 1, True, games=8, updates=0, confirmations=8))
        text = principal.build_prompt("lever_0_works").text
        assert "they play 20 episodes in each of 8 games side by side, which they may remember" in text
        assert "not trained" in text and "reinforcement" not in text and "learn to live" not in text
        principal.brief(PrincipalBriefing(40, 0, 2, 1, True, updates=0, confirmations=8))
        text = principal.build_prompt("lever_0_works").text
        assert "round" not in text and "same weights" not in text and "2 episodes are evaluated" in text
        assert "Lines have no standard error, as there" in text and "are measured again, 8 times in all" in text

    def test_two_episodes_have_no_standard_error(self):
        for n, has_error in ((2, False), (3, True)):
            assert (
                "(standard error" in principal_after(make_toy_spec(), [[0.0, 0.0]], n=n).build_prompt(None).text
            ) == has_error

    def test_training_summary(self):
        principal = principal_after(make_toy_spec(), [])
        principal.tell([replace(result(make_toy_spec(), [0.0, 0.0], value=3.0), training_objectives=(-12.5, 2.75))])
        assert "-> payoff 3; training: -12.5 to 2.75;" in principal.build_prompt(None).text

    def test_notes_survive_checkpoint(self):
        with FakeOpenAIServer(lambda messages: "no idea") as server:
            principal, restored = (build_llm_principal(make_toy_spec(), connect_client(server)) for _ in range(2))
            [vector] = principal.ask()
            restored.load_state_dict(principal.state_dict())
            for principal_ in (principal, restored):
                principal_.tell([result(make_toy_spec(), vector)])
                principal_.llm.close()
            assert restored.build_prompt(None).text == principal.build_prompt(None).text
            assert "not a proposal of yours" in restored.build_prompt(None).text

    def test_escape_room_hint_is_optional(self):
        hint = "a few must stand at the right lever"
        assert hint not in principal_after(ESCAPE_ROOM, []).build_prompt("lever_0_works").text
        assert (
            hint in principal_after(ESCAPE_ROOM, [], prompt="escape_room_explained").build_prompt("lever_0_works").text
        )

    def test_lever_context_can_be_hidden(self):
        """Names do not refer to levers and are permuted by the seed."""
        rooms = make_env("escape_room", n_envs=1, name_lever=False).spec
        assert (
            sorted(rooms.contexts) == ["room_0", "room_1", "room_2"]
            and rooms.principal_metrics == ESCAPE_ROOM.principal_metrics
        )
        assert len({make_env("escape_room", Seeds(i), n_envs=1, name_lever=False).spec.contexts for i in range(8)}) > 1
        text = principal_after(rooms, []).build_prompt("room_1").text
        assert "Its name does not say which" in text and "_works" not in text

    def test_tax_semantics(self):
        text = principal_after(HARVEST, []).build_prompt(None).text
        assert "A rate of 0.25 takes the whole of an apple, and a higher one more" in text

    def test_corrections_are_disclosed(self):
        replies = iter(["no idea", "none", json.dumps({"x0": 7, "x1": 0.5})])
        with FakeOpenAIServer(lambda messages: next(replies)) as server:
            principal = build_llm_principal(make_toy_spec(), connect_client(server), out_of_range="clamp")
            for notice in ("not a proposal of yours", "put at the nearest end"):
                [vector] = principal.ask()
                principal.tell([result(make_toy_spec(), vector)])
                newest = [x for x in principal.build_prompt(None).text.splitlines() if x.startswith("Generation ")][-1]
                assert notice in newest
            principal.llm.close()

    def test_only_question_suffix_changes(self):
        """The provider's cache can reuse the prompt up to the newest row."""
        vectors = [[i / 50] * 5 for i in range(30)]
        earlier, after = (
            principal_after(ESCAPE_ROOM, vectors[:n]).build_prompt("lever_1_works").text for n in (29, 30)
        )
        shared = next(i for i, (a, b) in enumerate(zip(earlier, after, strict=False)) if a != b)
        assert shared > 0.95 * earlier.index("Proposals made so far")


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ('{"reasoning": "r", "eat": 1, "clean": 0.5, "other": 0}', [1, 0.5, 0]),
            ('```json\n{"other": 0, "clean": 0.5, "eat": 1}\n```', [1, 0.5, 0]),
            ("It costs $5, so I take $1, 0.5, 0$", [1, 0.5, 0]),
            ('{"eat": "much"} or rather $1, 0.5, 0$', [1, 0.5, 0]),
        ],
    )
    def test_valid(self, text, answer):
        assert principal_after(CLEANUP, []).parse_reply(text).vector.tolist() == answer

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "empty: .* 3 numbers"),
            ('{"eat": 1, "clean": 0.5}', "no number .*other"),
            ('{"eat": 1, "clean": 4, "other": -1}', r"clean=4 .*\[0, 3\].*other=-1 "),
            ("$1, 4, 0$", "clean=4 "),
            ("$10%, 50%, 0%$", " 3 numbers"),  # of what, is not known
        ],
    )
    def test_invalid(self, text, message):
        with pytest.raises(InvalidReply, match=message):
            principal_after(CLEANUP, []).parse_reply(text)

    def test_names_need_not_be_identifiers(self):
        names = ("rate 1", "class", "model_dump", "_x")
        society = make_spec(ParameterSpace("odd", tuple(Parameter(n, 0.0, 1.0, "u", "d") for n in names)))
        principal = build_llm_principal(society, make_scripted_client())
        assert list(principal.structured_query.schema["properties"]) == ["reasoning", *names]
        assert principal.parse_reply(json.dumps(dict.fromkeys(names, 0.5))).vector.tolist() == [0.5] * 4


class TestConversation:
    """Tests with a local server and the client of hosted models."""

    GOOD = '{"reasoning": "", "x0": 1.0, "x1": 2.0}'

    def principal(self, server, **kwargs):
        return build_llm_principal(make_toy_spec(), connect_client(server), **kwargs)

    def counters(self, principal):
        metrics = principal.tell([make_outcome(make_toy_spec(), np.zeros(2))])
        return [metrics[f"llm/{name}"] for name in ("invalid_replies", "repairs", "fallbacks")]

    def test_valid_at_first_turn(self):
        with FakeOpenAIServer(lambda messages: self.GOOD) as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 2.0]
        [request] = server.requests
        assert request["response_format"]["json_schema"]["schema"]["required"] == ["reasoning", "x0", "x1"]
        assert self.counters(principal) == [0, 0, 0]

    def test_repair_shows_error(self):
        bad = '{"x0": 9.0, "x1": 2.0}'
        with FakeOpenAIServer(lambda messages: bad if len(messages) == 1 else self.GOOD) as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 2.0]
        first, second = (request["messages"] for request in server.requests)
        assert second[:1] == first and second[1] == {"role": "assistant", "content": bad}
        assert "x0=9 is outside [-1, 3] (units)" in second[2]["content"]
        assert self.counters(principal) == [1, 1, 0]

    def test_fallback_is_middle_or_best(self):
        with FakeOpenAIServer(lambda messages: "") as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 1.0]
            principal.tell([make_outcome(make_toy_spec(), np.array([2.0, 2.0]))])
            principal.tell([make_outcome(make_toy_spec(), np.array([0.0, 0.0]))])
            assert principal.ask()[0].tolist() == [2.0, 2.0]
        assert server.requests[1]["messages"][1]["content"] == "(empty reply)"
        assert self.counters(principal) == [4, 0, 2]

    def test_no_repair_turns(self):
        with FakeOpenAIServer(lambda messages: "no") as server:
            principal = self.principal(server, repair_turns=0)
            principal.ask()[0]
        assert len(server.requests) == 1 and self.counters(principal) == [1, 0, 1]

    def test_connection_error_skips_fallback(self):
        with FakeOpenAIServer() as server:
            server.faults += ["503"]
            principal = self.principal(server)
            with pytest.raises(LLMError, match="503"):
                principal.ask()[0]
        assert self.counters(principal) == [0, 0, 0]

    def test_replies_are_not_templates(self):
        with FakeOpenAIServer(lambda messages: "{{ 7 * 7 }} {% raise %}") as server:
            self.principal(server).ask()[0]
        assert server.requests[1]["messages"][1]["content"] == "{{ 7 * 7 }} {% raise %}"


class TestMultipleProposals:
    def test_questions_state_index(self):
        with FakeOpenAIServer(lambda messages: TestConversation.GOOD) as server:
            principal = build_llm_principal(make_toy_spec(), connect_client(server))
            assert principal.ask(n=3).shape == (3, 2)
            principal.ask()
        questions = [request["messages"][0]["content"] for request in server.requests]
        numbers = sorted(text.split("this is number ")[1].split(":")[0] for text in questions[:3])
        assert numbers == ["1 of 3", "2 of 3", "3 of 3"]
        assert "side by side" not in questions[3]

    def test_fallbacks_are_counted_per_proposal(self):
        def reply(messages):
            return "no" if "this is number 2" in messages[0]["content"] else TestConversation.GOOD

        with FakeOpenAIServer(reply) as server:
            principal = build_llm_principal(make_toy_spec(), connect_client(server))
            assert principal.ask(n=3).tolist() == [[1.0, 2.0], [1.0, 1.0], [1.0, 2.0]]
        assert (
            principal.structured_query.counters["fallbacks"] == 1
            and principal.structured_query.counters["invalid_replies"] == 2
        )

    @pytest.mark.parametrize("kwargs", [{}, {"history": "last", "window": 3}])
    def test_estimate_approximates_prompt(self, kwargs):
        """Estimates of calls are exact, those of prompt tokens within 20 %."""
        principal = build_llm_principal(ESCAPE_ROOM, make_scripted_client(), **kwargs)
        estimate = principal.estimate(steps=6, n=3)
        for i in range(6):
            context = i % 3
            principal.tell([result(ESCAPE_ROOM, vector, context, n=2) for vector in principal.ask(context, 3)])
        used = principal.llm.metrics()
        assert estimate.calls == used["llm/calls"] == 18 and estimate.max_calls == 36
        assert estimate.prompt_tokens == pytest.approx(used["llm/prompt_tokens"], rel=0.2)


def test_fallback_is_per_context():
    society = make_toy_spec(contexts=("a", "b"))
    principal = build_llm_principal(society, make_scripted_client(empty=1.0))
    principal.tell([make_outcome(society, np.array([2.0, 2.0]), context=0)])
    assert principal.ask(0)[0].tolist() == [2.0, 2.0]
    assert principal.ask(1)[0].tolist() == [1.0, 1.0]


def test_refusals():
    with pytest.raises(ConfigError, match=r"llm=none.*gpt4o.*scripted"):
        build_llm_principal(make_toy_spec(), None)
    with pytest.raises(ConfigError, match=r"principal\.prompt=haiku.*cleanup.*generic"):
        build_llm_principal(make_toy_spec(), make_scripted_client(), prompt="haiku")
    with pytest.raises(ConfigError, match="'reasoning'"):
        build_llm_principal(
            make_spec(ParameterSpace("m", (Parameter("reasoning", 0, 1, "u", "d"),))), make_scripted_client()
        )


class TestRules:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", mark_long_except(["cleanup", "escape_room_lenient", "tax_economy"], SOCIETIES))
    def test_reads_bounds_from_prompt(self, name):
        society = SOCIETIES[name]
        principal = build_llm_principal(society, make_scripted_client())
        payoffs = []
        for i in range(60):
            context = i % len(society.contexts) if society.contexts else None
            vector = principal.ask(context)[0]
            result = make_outcome(society, vector, context)
            principal.tell([result])
            payoffs.append(result.value)
        assert principal.structured_query.counters == dict.fromkeys(
            ("invalid_replies", "repairs", "fallbacks", "trimmed_prompts"), 0
        )
        assert np.mean(payoffs[-10:]) > np.mean(payoffs[:10])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "society", [make_toy_spec(), make_toy_spec(d=1), ESCAPE_ROOM], ids=["two", "one", "escape room"]
    )
    def test_generation_proposals_differ(self, society):
        """In all phases of the search; equal histories give equal proposals."""
        context = 0 if society.contexts else None
        principals = [build_llm_principal(society, make_scripted_client()) for _ in range(2)]
        for _ in range(5):
            vectors, repeated = (principal.ask(context, 7) for principal in principals)
            assert len(np.unique(vectors, axis=0)) == 7
            np.testing.assert_array_equal(vectors, repeated)
            for principal in principals:
                principal.tell([result(society, vector, context) for vector in vectors])

    def test_proposals_differ_at_bound(self):
        """The best value is at the upper bound, where half of all changes end."""
        principal = build_llm_principal(make_toy_spec(d=1), make_scripted_client())
        for _ in range(6):
            vectors = principal.ask(n=7)
            assert len(np.unique(vectors)) == 7
            principal.tell([result(make_toy_spec(d=1), vector, value=float(vector[0])) for vector in vectors])

    def test_learns_with_parallel_proposals(self):
        principal, means = build_llm_principal(make_toy_spec(), make_scripted_client()), []
        for _ in range(12):
            outcomes = [result(make_toy_spec(), vector) for vector in principal.ask(n=4)]
            principal.tell(outcomes)
            means.append(np.mean([outcome.value for outcome in outcomes]))
        assert np.mean(means[-3:]) > np.mean(means[:3]) + 1

    def test_bounds_need_not_be_round(self):
        society = make_toy_spec(low=-1 / 3, high=2 / 3)
        principal = build_llm_principal(society, make_scripted_client())
        for _ in range(30):
            principal.tell([make_outcome(society, principal.ask()[0])])
        assert principal.structured_query.counters["invalid_replies"] == 0

    def test_unknown_questions_raise(self):
        with pytest.raises(LLMError, match="no rule"):
            make_scripted_client().chat([ChatRequest(({"role": "user", "content": "What is love?"},))])


@pytest.mark.parametrize(
    ("pretraining", "words"),
    [
        (
            Pretraining(256000, (0.0, 0.0, 0.0), (1.5, 3.0, 0.0)),
            "trained for 256,000 steps of the game, in episodes under many different numbers: eat from 0 to 1.5, "
            "clean from 0 to 3, other from 0 to 0.",
        ),
        (Pretraining(1000), "trained for 1,000 steps of the game without any of these numbers."),
        (Pretraining(1000, (0.0,), (1.0,)), "trained for 1,000 steps of the game."),  # of another mechanism
    ],
)
def test_agent_pretraining_is_described(pretraining, words):
    principal = build_llm_principal(CLEANUP, make_scripted_client())
    principal.brief(PrincipalBriefing(8, 2, 2, 1, True, pretraining=pretraining))
    assert f"Before the first generation the agents were {words}" in principal.build_prompt(None).text
    principal.brief(PrincipalBriefing(8, 2, 2, 1, True))
    assert "Before the first generation" not in principal.build_prompt(None).text


class TestBoundedHistory:
    @pytest.mark.parametrize(
        "society", mark_long_except([ESCAPE_ROOM], [CLEANUP, ESCAPE_ROOM]), ids=["cleanup", "escape_room"]
    )
    def test_question_length_is_bounded(self, society):
        principal = build_llm_principal(society, make_scripted_client(), history_tokens=4000)
        rng = np.random.default_rng(0)
        texts = []
        for step in range(320):
            vector = principal.space.low + rng.random(principal.space.dim) * (
                principal.space.high - principal.space.low
            )
            context = step % len(society.contexts) if society.contexts else None
            outcome = result(society, vector, context, n=3)
            principal.tell([replace(outcome, value=float(rng.normal()))])
            texts.append(principal.build_prompt(society.contexts[0] if society.contexts else None).text)
        tokens = np.array([len(text) / 4 for text in texts])
        assert tokens[160:].max() < tokens[0] + 4000 * 1.5
        # Of two questions in a row the beginning is the same in most cases.
        shared = [_shared(a, b) for a, b in itertools.pairwise(texts)]
        assert np.mean(np.array(shared[160:]) / (4 * tokens[160:-1])) > 0.7

    def test_omissions_are_summarized(self):
        principal = build_llm_principal(CLEANUP, make_scripted_client(), history_tokens=1)
        for i in range(100):
            outcome = result(CLEANUP, [0.01 * i, 0.5, 0.5], n=3)
            principal.tell([replace(outcome, value=float(i))])
        text = principal.build_prompt(None).text
        assert "Of the payoffs of all 100 proposals a tenth is below 9.9, half is below 49.5" in text
        n_rows = text.count("-> payoff")
        assert 12 <= n_rows <= 16 and "-> payoff 99" in text

    def test_small_history_is_complete(self):
        unbounded, bounded = (
            principal_after(CLEANUP, vectors_for(CLEANUP) * 3, history_tokens=n) for n in (None, 8000)
        )
        assert unbounded.build_prompt(None).text == bounded.build_prompt(None).text

    def test_restart_asks_equal_question(self):
        principal = build_llm_principal(CLEANUP, make_scripted_client(), history_tokens=1500)
        for i in range(60):
            principal.tell([replace(result(CLEANUP, [0.01 * i, 0.5, 0.5], n=3), value=float(i % 7))])
        text = principal.build_prompt(None).text
        restored = build_llm_principal(CLEANUP, make_scripted_client(), history_tokens=1500)
        restored.load_state_dict(principal.state_dict())
        assert restored.build_prompt(None).text == text


def _shared(first, second):
    """Return the length of the common prefix of two texts."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
