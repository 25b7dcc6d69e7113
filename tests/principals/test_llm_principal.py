import json
import os
from pathlib import Path

import numpy as np
import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.llms.client import ChatClient
from llmrl.llms.structured import InvalidReply
from llmrl.principals.llm import LLMPrincipal
from models import Echo, connected, scripted
from societies import CLEANUP, ESCAPE_ROOM, GENERIC, HARVEST, outcome, spec, toy

GOLDEN = Path(__file__).parent / "golden"
SOCIETIES = {"cleanup": CLEANUP, "harvest": HARVEST, "escape_room": ESCAPE_ROOM, "toy": GENERIC}


def told(society, vectors, n=2, **kwargs):
    """A principal that was told some outcomes, in contexts 0, 1, 2, 0, ... where there are any."""
    principal = LLMPrincipal(society, scripted(), **kwargs)
    for i, vector in enumerate(vectors):
        context = i % len(society.contexts) if society.contexts else None
        principal.tell([outcome(society, np.array(vector, dtype=float), context, n=n)])
    return principal


@pytest.mark.parametrize("moment", ["first", "later"])
@pytest.mark.parametrize("name", SOCIETIES)
def test_prompts_are_as_reviewed(name, moment):
    """Set LLMRL_UPDATE_GOLDEN=1 to rewrite the files after a deliberate change; then read the diff."""
    society = SOCIETIES[name]
    d = society.mechanism.dim
    vectors = [] if moment == "first" else [np.full(d, 0.25), np.linspace(0, 1, d), np.full(d, 1 / 3), np.zeros(d)]
    prompt = told(society, vectors).question(society.contexts[0] if society.contexts else None).text
    path = GOLDEN / f"{name}_{moment}.txt"
    if os.environ.get("LLMRL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(prompt)
    assert prompt == path.read_text()


@pytest.mark.parametrize("name", SOCIETIES)
def test_every_number_is_explained(name):
    society = SOCIETIES[name]
    prompt = told(society, []).question(society.contexts[0] if society.contexts else None).text
    for p in society.mechanism.parameters:
        assert f"- {p.name}: from {p.low:g} to {p.high:g} ({p.unit}): {p.description}" in prompt
        assert f'"{p.name}": <number>' in prompt


def test_payoffs_keep_their_fractions():
    principal = LLMPrincipal(CLEANUP, scripted())
    principal.tell([outcome(CLEANUP, np.array([1 / 3, 0.0, 3.0]), value=-0.4375)])
    assert "Generation 1: eat=0.3333, clean=0, other=3 -> payoff -0.4375;" in principal.question(None).text


class TestHistory:
    VECTORS = [[-1.0, -1.0], [2.0, 2.0], [1.0, 1.0], [0.0, 0.0], [1.5, 1.5], [3.0, 3.0]]

    def generations(self, society=None, context=None, **kwargs):
        principal = told(society or toy(), self.VECTORS, **kwargs)
        lines = [line for line in principal.question(context).text.splitlines() if line.startswith("Generation ")]
        return [int(line.split()[1].rstrip(":")) for line in lines]

    def test_all_last_best(self):
        assert self.generations() == [1, 2, 3, 4, 5, 6]
        assert self.generations(history="last", window=2) == [5, 6]
        # The best vector is (1.8, 1.8): the nearest are generations 2 and 5.
        assert self.generations(history="best", window=2) == [2, 5]

    def test_windows_are_per_context(self):
        society = toy(contexts=("a", "b"))
        assert self.generations(society, "a", history="last", window=1) == [5, 6]

    def test_selection_is_announced_only_when_something_is_left_out(self):
        assert "Shown are the 2 newest" in told(toy(), self.VECTORS, history="last", window=2).question(None).text
        assert "Shown are" not in told(toy(), self.VECTORS, history="last", window=6).question(None).text

    def test_observations_can_be_left_out(self):
        line = "level at 25/50/75/100 % of the episode: 4, 9, 14, 19; moves: 19; base reward of each agent:"
        assert line in told(toy(), self.VECTORS).question(None).text
        bare = told(toy(), self.VECTORS, observations=False).question(None).text
        assert "moves" not in bare and "base reward of each agent" not in bare and "payoff" in bare

    @pytest.mark.parametrize(
        ("history", "expected", "words"),
        [
            ("all", [2, 5, 6], "the best and the newest"),
            ("best", [2, 3, 5], "the best"),
            ("last", [4, 5, 6], "the newest"),
        ],
    )
    def test_as_much_as_the_context_window_takes(self, history, expected, words):
        """Of six records, whose best are generations 2, 5 and 3, three fit."""
        model = Echo(max_tokens=100)
        principal = LLMPrincipal(toy(), ChatClient(model), history=history)
        for vector in self.VECTORS:
            principal.tell([outcome(toy(), np.array(vector), n=2)])
        records = principal.history.select(history, 50)
        prompts = [principal._render(None, records, n).text for n in range(7)]
        tokens = [model.count_tokens([{"role": "user", "content": prompt}]) for prompt in prompts]
        assert tokens == sorted(tokens)
        model.context_window = tokens[3] + 100
        prompt = principal.question(None).text
        shown = [line.split()[1].rstrip(":") for line in prompt.splitlines() if line.startswith("Generation ")]
        assert [int(n) for n in shown] == expected
        assert f"There is room for 3 of the 6 proposals: {words} of them are shown." in prompt
        assert "Proposals made so far: 6" in prompt
        assert principal.tell([outcome(toy(), np.zeros(2))])["llm/trimmed_prompts"] == 1

    def test_short_episodes(self):
        principal = told(toy(), [])
        result = outcome(toy(), np.zeros(2))
        result.trajectories["level"] = np.array([5.0, 7.0])
        principal.tell([result])
        assert "level at 25/50/75/100 % of the episode: 5, 5, 7, 7" in principal.question(None).text


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"reasoning": "r", "eat": 1, "clean": 0.5, "other": 0}', [1, 0.5, 0]),
            ('```json\n{"other": 0, "clean": 0.5, "eat": 1}\n```', [1, 0.5, 0]),
            ("It costs $5, so I take $1, 0.5, 0$", [1, 0.5, 0]),
            ('{"eat": "much"} or rather $1, 0.5, 0$', [1, 0.5, 0]),
        ],
    )
    def test_valid(self, text, expected):
        assert told(CLEANUP, []).parse(text).tolist() == expected

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no complete JSON object.*no list of numbers"),
            ('{"eat": 1, "clean": 0.5}', "'other' is missing"),
            ('{"eat": 1, "clean": 4, "other": -1}', r"clean=4 is outside \[0, 3\].*other=-1 is outside"),
            ("$1, 4, 0$", "clean=4 is outside"),
            ("$10%, 50%, 0%$", "percentages"),
        ],
    )
    def test_invalid(self, text, message):
        with pytest.raises(InvalidReply, match=message):
            told(CLEANUP, []).parse(text)

    def test_names_need_not_be_identifiers(self):
        names = ("rate 1", "class", "model_dump", "_x")
        society = spec(ParameterSpace("odd", tuple(Parameter(n, 0.0, 1.0, "u", "d") for n in names)))
        principal = LLMPrincipal(society, scripted())
        assert list(principal.asker.schema["properties"]) == ["reasoning", *names]
        assert principal.parse(json.dumps(dict.fromkeys(names, 0.5))).tolist() == [0.5] * 4


class TestConversation:
    """Against a server of our own, through the client that serves every real one."""

    GOOD = '{"reasoning": "", "x0": 1.0, "x1": 2.0}'

    def principal(self, server, **kwargs):
        return LLMPrincipal(toy(), connected(server), **kwargs)

    def counters(self, principal):
        metrics = principal.tell([outcome(toy(), np.zeros(2))])
        return [metrics[f"llm/{name}"] for name in ("invalid_replies", "repairs", "fallbacks")]

    def test_valid_at_once(self):
        with FakeOpenAIServer(lambda messages: self.GOOD) as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 2.0]
        [request] = server.requests
        assert request["response_format"]["json_schema"]["schema"]["required"] == ["reasoning", "x0", "x1"]
        assert self.counters(principal) == [0, 0, 0]

    def test_repair_shows_what_was_wrong(self):
        bad = '{"x0": 9.0, "x1": 2.0}'
        with FakeOpenAIServer(lambda messages: bad if len(messages) == 1 else self.GOOD) as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 2.0]
        first, second = (request["messages"] for request in server.requests)
        assert second[:1] == first and second[1] == {"role": "assistant", "content": bad}
        assert "x0=9 is outside [-1, 3] (units)" in second[2]["content"]
        assert self.counters(principal) == [1, 1, 0]

    def test_fallback_is_the_middle_and_later_the_best(self):
        with FakeOpenAIServer(lambda messages: "") as server:
            principal = self.principal(server)
            assert principal.ask()[0].tolist() == [1.0, 1.0]
            principal.tell([outcome(toy(), np.array([2.0, 2.0]))])
            principal.tell([outcome(toy(), np.array([0.0, 0.0]))])
            assert principal.ask()[0].tolist() == [2.0, 2.0]
        assert server.requests[1]["messages"][1]["content"] == "(empty reply)"
        assert self.counters(principal) == [4, 0, 2]

    def test_no_repair_turns(self):
        with FakeOpenAIServer(lambda messages: "no") as server:
            principal = self.principal(server, repair_turns=0)
            principal.ask()[0]
        assert len(server.requests) == 1 and self.counters(principal) == [1, 0, 1]

    def test_an_outage_is_an_error_not_a_fallback(self):
        with FakeOpenAIServer() as server:
            server.faults += ["503"]
            principal = self.principal(server)
            with pytest.raises(LLMError, match="503"):
                principal.ask()[0]
        assert self.counters(principal) == [0, 0, 0]

    def test_replies_are_never_templates(self):
        with FakeOpenAIServer(lambda messages: "{{ 7 * 7 }} {% raise %}") as server:
            self.principal(server).ask()[0]
        assert server.requests[1]["messages"][1]["content"] == "{{ 7 * 7 }} {% raise %}"


def test_fallback_is_per_context():
    society = toy(contexts=("a", "b"))
    principal = LLMPrincipal(society, scripted(empty=1.0))
    principal.tell([outcome(society, np.array([2.0, 2.0]), context=0)])
    assert principal.ask(0)[0].tolist() == [2.0, 2.0]
    assert principal.ask(1)[0].tolist() == [1.0, 1.0]


def test_refusals():
    with pytest.raises(ConfigError, match=r"llm=none is none.*gpt4o.*scripted"):
        LLMPrincipal(toy(), None)
    with pytest.raises(ConfigError, match=r"principal\.prompt=haiku does not exist; there are .*cleanup.*generic"):
        LLMPrincipal(toy(), scripted(), prompt="haiku")
    with pytest.raises(ConfigError, match="'reasoning'"):
        LLMPrincipal(spec(ParameterSpace("m", (Parameter("reasoning", 0, 1, "u", "d"),))), scripted())


class TestScripted:
    @pytest.mark.parametrize("name", SOCIETIES)
    def test_reads_bounds_and_best_from_the_prompt(self, name):
        society = SOCIETIES[name]
        principal = LLMPrincipal(society, scripted())
        payoffs = []
        for i in range(40):
            context = i % len(society.contexts) if society.contexts else None
            vector = principal.ask(context)[0]
            result = outcome(society, vector, context)
            principal.tell([result])
            payoffs.append(result.value)
        assert principal.asker.counters == dict.fromkeys(
            ("invalid_replies", "repairs", "fallbacks", "trimmed_prompts"), 0
        )
        assert np.mean(payoffs[-10:]) > np.mean(payoffs[:10])

    def test_starts_with_a_spread(self):
        principal = LLMPrincipal(CLEANUP, scripted())
        asked = []
        for _ in range(5):
            asked.append(principal.ask()[0].tolist())
            principal.tell([outcome(CLEANUP, np.array(asked[-1]))])
        assert asked == [[1.5, 1.5, 1.5], [0, 0, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3]]

    def test_bounds_need_not_be_round(self):
        society = toy(low=-1 / 3, high=2 / 3)
        principal = LLMPrincipal(society, scripted())
        for _ in range(30):
            principal.tell([outcome(society, principal.ask()[0])])
        assert principal.asker.counters["invalid_replies"] == 0

    def test_other_questions_are_refused(self):
        with pytest.raises(LLMError, match="no rule for this question"):
            scripted().chat([ChatRequest(({"role": "user", "content": "What is love?"},))])
