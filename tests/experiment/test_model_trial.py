"""`llmrl-llm trial`: a model tried in every family, against a server that answers in the manner of many models."""

import json

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.cli.llm import main, tried
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.experiment.dictated_reply_checks import contains_values, controls_of, outcomes
from llmrl.experiment.model_trial import NUMBERS, REPLAY, redacted
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from styles import STYLES, Styled

PRICES = ("llm.input_price=1", "llm.output_price=4")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A trial against a server whose key is `secret`: its folder, the server's address, and what it was asked."""
    folder, styled = tmp_path_factory.mktemp("trial"), Styled(bad=0.05)
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeOpenAIServer(styled, key="sk-secret-of-the-trial-0123456789", usage=styled.usage, model="styled") as server,
    ):
        patch.chdir(folder)
        patch.setenv("TRIAL_KEY", "sk-secret-of-the-trial-0123456789")
        options = (
            "llm=openai_compatible",
            f"llm.base_url={server.url}",
            "llm.model=styled",
            "llm.api_key_env=TRIAL_KEY",
        )
        main(["trial", *options, *PRICES, "budget=5", "--out", "styled"])
        asked = len(server.requests)
        main(["trial", *options, *PRICES, "budget=5", "--out", "styled"])
        assert len(server.requests) == asked, "what is there already is not asked again"
        yield folder, server.url, asked


@pytest.mark.slow
def test_every_family_is_read(page):
    folder, _, asked = page
    numbers = json.loads((folder / "styled" / NUMBERS).read_text())
    assert list(numbers) == ["principal", "search", "teacher", "player"]
    assert sum(each["replies"] for each in numbers.values()) + 48 == asked
    for each in numbers.values():
        assert not each["ended"] and all(sum(x.values()) == 6 for x in each["controls"].values())
        assert each["controls"]["json"].get("right", 0) >= 4 and each["controls"]["json"].get("parsing_error", 0) <= 1
        assert each["cost"] == pytest.approx((each["prompt_tokens"] + 4 * each["completion_tokens"]) / 1e6)
    sums = {name: sum(each[name] or 0 for each in numbers.values()) for name in ("invalid", "judged", "fallbacks")}
    assert sums["invalid"] <= 0.15 * sums["judged"] and sums["fallbacks"] <= 1
    assert numbers["principal"]["cached_tokens"] > 0.5 * numbers["principal"]["prompt_tokens"]
    text = (folder / "styled" / "trial.md").read_text()
    assert "| dictated in JSON, parsing errors | " in text and "$" in text


@pytest.mark.slow
def test_others_can_run_it_again_without_key_or_address(page, tmp_path, monkeypatch):
    folder, url, _ = page
    kept = folder / "styled" / REPLAY
    said = "".join(path.read_text() for path in kept.rglob("*") if path.is_file())
    assert url not in said and "secret" not in said and '"http://redacted"' in said
    monkeypatch.chdir(tmp_path)
    tried(["llm=replay", f"llm.calls={kept}"], tmp_path / "again")
    first, again = (json.loads((path / NUMBERS).read_text()) for path in (folder / "styled", tmp_path / "again"))
    for family, each in first.items():
        for name in ("replies", "invalid", "fallbacks", "controls", "prompt_tokens", "completion_tokens", "cost"):
            assert again[family][name] == (each[name] if name == "controls" else pytest.approx(each[name])), (
                family,
                name,
            )


@pytest.mark.slow
def test_money_is_held_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    styled = Styled(bad=0.0)
    with FakeOpenAIServer(styled, usage=styled.usage, model="styled") as server:
        options = ["llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=styled", *PRICES]
        with pytest.raises(ConfigError, match="say what the trial may cost"):
            tried(options, tmp_path / "free")
        assert not server.requests
        page, _, _ = tried([*options, "budget=0.04", "families=principal"], tmp_path / "little")
        assert 0 < len(server.requests) < 12 and "the money was used up" in page.read_text()
        assert json.loads((page.parent / NUMBERS).read_text())["principal"]["cost"] <= 0.04


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llm=scripted", "families=poet"], "there are principal, search, teacher, player"),
        (["llm=scripted", "budget=much"], "a number of US dollars"),
        (["llm=scripted", "budget=-1"], "0 or more"),
        (["llm=none"], "needs a language model"),
    ],
)
def test_what_cannot_be_tried(words, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        tried(words, tmp_path)


class Saying(Provider):
    """Says what a function makes of the dictated answer."""

    label = "a model"

    def __init__(self, say):
        super().__init__()
        self.say = say

    @property
    def identity(self):
        return {}

    def complete(self, requests):
        return [ChatReply(self.say(request.messages[-1]["content"].splitlines()[-1])) for request in requests]


def requests():
    question = ChoiceParser(("left", "right", "stay"))
    schema = {"type": "object", "properties": {"action": {"enum": ["left", "right", "stay"]}}, "required": ["action"]}
    return [
        ChatRequest(
            ({"role": "user", "content": f"Where to, {i}?"},),
            schema,
            read=lambda reply: parse_answer(reply.text, question).answer,
        )
        for i in range(5)
    ]


def test_outcome_of_a_dictated_answer():
    controls = controls_of(requests(), 3)
    assert len(controls) == len({control.request.messages[0]["content"][:12] for control in controls}) == 3
    assert [control.form for control in controls] == ["json", "prose", "json"]
    assert [control.request.schema is None for control in controls] == [False, True, False]
    for say, outcome in (
        (str, "right"),
        (lambda text: "I would rather not say.", "noncompliance"),
        (lambda text: f"I would never answer {json.loads(text)['action']}.", "parsing_error"),
    ):
        assert [each[0] for each in outcomes(ChatClient(Saying(say)), controls)] == [outcome] * 3
    others = {"left": "right", "right": "stay", "stay": "left"}
    said = outcomes(
        ChatClient(Saying(lambda text: json.dumps({"action": others[json.loads(text)["action"]]}))), controls
    )
    assert [each[0] for each in said] == ["noncompliance"] * 3


@pytest.mark.parametrize(
    ("text", "answer", "contained"),
    [
        ("I pay 2.50 for cleaning and nothing (0) for the rest.", {"clean": 2.5, "eat": 0}, True),
        ("I pay 2.5 for cleaning.", {"clean": 2.5, "eat": 0}, False),
        ("Go to the RED key.", {"plan": [{"skill": "go to", "object": "red key"}]}, True),
        ("x is 12.5", {"x": 2.5}, False),
        ("x is -2.5", {"x": 2.5}, False),
    ],
)
def test_values_of_an_answer_in_a_text(text, answer, contained):
    assert contains_values(text, answer) is contained


def test_a_redacted_call_has_the_hash_of_what_is_left():
    call = {
        "hash": "x", "time": 1.0, "spent": {}, "model": "m at http://10.0.0.1/v1", "stream": 0, "repeat": 1,
        "identity": {"model": "m", "base_url": "http://10.0.0.1/v1"}, "messages": [], "schema": None, "reply": "hello",
    }  # fmt: skip
    plain = redacted(call)
    assert plain["model"] == "m at http://redacted" and plain["identity"]["base_url"] == "http://redacted"
    assert len(plain["hash"]) == 64 and not {"time", "spent"} & plain.keys()
    assert redacted(call | {"place": "here"})["hash"] != plain["hash"]


@pytest.mark.parametrize("style", STYLES)
def test_every_manner_is_understood(style):
    [control, *_] = controls_of(requests(), 1)
    import random

    def reply(messages):
        text = messages[-1]["content"].splitlines()[-1]
        return STYLES[style](text, random.Random(0))

    from llmrl.llms.openai_compatible import OpenAICompatibleChat

    with FakeOpenAIServer(reply) as server:
        client = ChatClient(OpenAICompatibleChat(server.url, "fake-model"))
        assert [each[0] for each in outcomes(client, [control])] == ["right"]
        client.close()
