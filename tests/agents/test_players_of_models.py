"""A society whose players are different language models."""

import json
import re

import pytest

from experiments import comparable_metrics, only_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.cli.llm import totals
from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import CHOSEN, CallEstimate
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.plan import costs
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import FILE_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.run.config_hash import config_hash
from llmrl.run.files import read_lines
from models import Echo, ask

SOCIETY = (
    *("env=cleanup", "env.n_agents=3", "env.observe=[text]", "env.mechanism=null", "env.n_envs=1", "env.horizon=4"),
    *(
        "agent=llm_player",
        "play.episodes=2",
        "llm=openai_compatible",
        "llm.max_invalid=null",
    ),
)


def act(messages):
    return json.dumps({"reflection": "I go on", "action": "FORWARD"})


def half(messages):
    """Every other question is answered without an action."""
    return act(messages) if len(messages) % 4 == 0 else "I would rather not say."


def society(root, first, second, *more):
    return (
        *SOCIETY,
        *("agent.action_every=1", "agent.history=10"),
        *("agent.players={llm:1,vllm:2}", f"llm.base_url={first.url}", f"+llm.others.vllm.base_url={second.url}"),
        *("+llm.others.vllm.model=another", f"output_root={root}", *more),
    )


def named(folder):
    return [(call.get("named", "llm"), call["model"]) for call in read_calls(folder / "llm_calls.jsonl")]


def players_asked(server):
    said = [request["messages"][0]["content"] for request in server.requests]
    return {number for number in (1, 2, 3) if any(f"player {number}" in text for text in said)}


@pytest.mark.slow
def test_each_player_is_its_own_model(tmp_path):
    with FakeOpenAIServer(reply=act) as first, FakeOpenAIServer(reply=half, model="another") as second:
        run(*society(tmp_path, first, second))
        whole = only_run_folder(tmp_path)
        assert (players_asked(first), players_asked(second)) == ({1}, {2, 3})
        assert {request["model"] for request in second.requests} == {"another"}
        kinds = named(whole)
        labels = dict(kinds)
        assert len(set(kinds)) == 2 and kinds.count(kinds[0]) < len(kinds)
        last = comparable_metrics(whole)[-1]
        assert last["player/llm/invalid_rate"] == last["player/llm/fallback_rate"] == 0
        assert 0 < last["player/vllm/invalid_rate"] < 1
        spoke = [line for path in whole.glob("episodes/*/replies.jsonl") for line in read_lines(path)]
        assert {(line["agent"], line["model"]) for line in spoke} == {
            (0, labels["llm"]),
            (1, labels["vllm"]),
            (2, labels["vllm"]),
        }
        # A run that stops for its budget, which is that of both, goes on to the same numbers.
        root = tmp_path / "again"
        with pytest.raises(BudgetExhausted, match="calls=11"):
            run(*society(root, first, second, "llm.budget.calls=11", "llm.cache=off"))
        run(*society(root, first, second, "llm.budget.calls=100", "llm.cache=off"))
        spent = [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(whole)]
        again = only_run_folder(root)
        assert [
            {k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(again)
        ] == spent
    # What both said is replayed without either.
    replay = society(tmp_path / "replayed", first, second, "llm=replay", f"llm.calls='{whole}'")
    run(*(word for word in replay if not word.startswith("llm.base_url")))
    replayed = only_run_folder(tmp_path / "replayed")
    results = [json.loads((folder / "results.json").read_text())["per_episode"] for folder in (whole, replayed)]
    assert results[0] == results[1]
    assert {label for _, label in named(replayed)} == {f"replay of {label}" for _, label in kinds}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("agent.players={llm:1,scripted:1}", "2 players, and env=cleanup has 3"),
        ("agent.players=[llm,llm,gpt5o]", r"there is no llm=gpt5o; there are llm \(the chosen one\), claude_haiku"),
        ("agent.players={llm:1,openai_compatible:0,scripted:2}", "greater than 0"),
        ("agent.players={llm:2,small_scorer:1}", "small_scorer"),
        ("agent.players={gpt4o:1,scripted:2}", "nobody asks the model that llm= chooses: set llm=gpt4o, or write llm"),
        (
            "llm=gpt4o llm.temperature=0 agent.players={scripted:2,gpt4o:1}",
            "nobody asks the model that llm= chooses: set llm=scripted, or write llm",
        ),
        ("agent.players={llm:2,none:1}", r"the chosen player \(none\) needs a language model"),
        ("agent.players={llm:2,vllm:1}", r"llm=vllm needs model; set \+llm\.others\.vllm\.model="),
        (
            "agent.players=[llm,llm,llm] +llm.others.gpt4o.temperature=0",
            r"llm\.others\.gpt4o is the model of no player",
        ),
        ("+llm.others.gpt4o.temperature=0", r"llm\.others\.gpt4o is the model of no player"),
        ("agent=random +llm.others.gpt4o.temperature=0", r"llm\.others\.gpt4o is the model of no player"),
        (
            "agent.players={llm:1,gpt4o:2} +llm.others.gpt4o.temprature=0",
            r"llm\.others\.gpt4o has no option 'temprature'",
        ),
        ("agent.players={llm:1,gpt4o:2} +llm.others.gpt4o.max_tokens=0", r"llm\.others\.gpt4o\.max_tokens=0"),
        ("agent.players={llm:1,gpt4o:2} +llm.others.gpt4o.cache=off", r"gpt4o\.cache: all models of a run have one"),
        ("agent.players={llm:1,gpt4o:2} +llm.others.gpt4o.limits.at_once=2", r"gpt4o\.limits has no option 'at_once'"),
        (
            "agent.players={llm:2,gpt4o:1} agent.show_frames=1 +llm.others.gpt4o.model=gpt-3.5-turbo",
            r"agent\.show_frames=1: gpt-3\.5-turbo \(litellm\) takes no pictures",
        ),
    ],
)
def test_what_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.compose(*SOCIETY, *words.split()).plan()


def test_a_plan_says_what_each_costs():
    words = ("llm=gpt4o", "agent.players={llm:1,claude_haiku:1,scripted:1}")
    rows = dict(Experiment.compose(*SOCIETY, *words).plan())
    dollars = [rows[f"  {label}"] for label in ("gpt-4o (litellm)", "anthropic/claude-haiku-5-5 (litellm)")]
    parts = [float(re.findall(r"about \$([\d.]+)", said)[0]) for said in (*dollars, rows["  cost"])]
    assert parts[0] + parts[1] == pytest.approx(parts[2], rel=1e-3) and parts[0] > parts[1] > 0
    assert rows["  scripted rule (not a language model)"].startswith("about $0")


def players_of_two(reply, other, **more):
    return ChatClient(reply, others={"other": (other, RateLimit())}, **more)


@pytest.mark.parametrize("at_once", [(True, True), (True, False), (False, False)])
def test_each_model_is_asked_its_own_questions(at_once):
    """Also where one of them is of this process and answers whole batches."""
    models = [Echo(parallel=each) for each in at_once]
    client = players_of_two(*models)
    asked = [ask(str(i), model="other" if i % 3 else CHOSEN) for i in range(7)]
    assert [reply.text for reply in client.chat(asked)] == list("0123456")
    assert [sorted(model.asked) for model in models] == [list("036"), list("1245")]
    assert client.parallel is all(at_once)


@pytest.mark.parametrize("at_once", [(True, True), (False, False)])
def test_a_budget_is_that_of_all_models(at_once):
    models = [Echo(parallel=each) for each in at_once]
    client = players_of_two(*models, budget=Budget(calls=5))
    with pytest.raises(BudgetExhausted):
        client.chat([ask(str(i), model="other" if i % 2 else CHOSEN) for i in range(8)])
    assert len(models[0].asked) + len(models[1].asked) == client.budget.spent.calls == 5


def test_a_model_that_fails_leaves_the_replies_of_the_other():
    models = Echo(), Echo(fail={"1": LLMError("no such model")})
    client = players_of_two(*models, failures="fall_back")
    first, second = client.chat([ask("0"), ask("1", model="other")])
    assert first.text == "0" and "no such model" in second.error


def test_equal_questions_to_two_models_are_two(tmp_path):
    """Also where the two are one and the same: each has a sample of its own."""
    client = ChatClient(Echo(), Cache(tmp_path), others={"other": (Echo(), RateLimit())})
    client.chat([ask("a"), ask("a", model="other"), ask("a")])
    repeats = sorted(json.loads(path.read_text())["repeat"] for path in tmp_path.rglob("*.json"))
    assert repeats == [0, 1]


def test_totals_of_a_folder_tell_models_apart(tmp_path):
    other = Echo()
    other.label = "another"
    client = players_of_two(Echo(), other, ledger=CallLog(tmp_path / FILE_NAME))
    client.chat([ask("0")])  # by itself: models are listed in the order of their first replies
    client.chat([ask("1", model="other"), ask("2", model="other")])
    _, rows = totals(tmp_path)
    assert [row[1:3] for row in rows] == [["echo", "1"], ["another", "2"], ["echo, another", "3"]]


def test_options_of_players_are_part_of_the_run():
    """What another model is decides results, so it is in the hash; how it is asked is not."""

    def digest(*more):
        return config_hash(Experiment.compose(*SOCIETY, "agent.players={llm:1,gpt4o:2}", *more).config)

    plain = digest()
    assert digest("+llm.others.gpt4o.temperature=0") != plain
    assert digest("+llm.others.gpt4o.timeout=7", "+llm.others.gpt4o.limits.concurrency=2") == plain
    by_name = Experiment.compose(*SOCIETY, "llm=gpt4o", "agent.players={scripted:2,gpt4o:1}").config
    assert by_name["agent"]["players"] == {"scripted": 2, "llm": 1} and list(by_name["llm"]["others"]) == ["scripted"]
    assert Experiment(by_name).config == by_name
    in_a_list = Experiment.compose(*SOCIETY, "llm=gpt4o", "agent.players=[scripted,gpt4o,scripted]").config
    assert in_a_list["agent"]["players"] == ["scripted", "llm", "scripted"]
    config = Experiment.compose(*SOCIETY, "agent.players=[gpt4o,llm,gpt4o]").config
    assert config["llm"]["others"]["gpt4o"]["model"] == "gpt-4o" and "cache" not in config["llm"]["others"]["gpt4o"]
    assert Experiment(config).config == config
    with pytest.raises(ConfigError, match=r"llm\.others\.gpt4o is the model of no player"):
        Experiment.compose(*SOCIETY, "agent.players=[llm,llm,llm]", "+llm.others.gpt4o.temperature=0")


def test_costs_are_those_of_each_share():
    dear, cheap = Echo(input_price=10.0, output_price=10.0, max_tokens=100), Echo(input_price=1.0, output_price=1.0)
    client = ChatClient(dear, others={"cheap": (cheap, RateLimit())})
    estimate = CallEstimate(10, 10, 1000, 1000, shares={CHOSEN: 0.25, "cheap": 0.75})
    assert costs(estimate, client) == (pytest.approx(0.25 * 0.02 + 0.75 * 0.002), None)
