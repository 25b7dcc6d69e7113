"""A society whose players are different language models."""

import json
import re

import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from fake_openai_server import FakeOpenAIServer
from llmrl.analysis.llm_calls import read_run_totals
from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import CHOSEN_MODEL, CallEstimate
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.plan import estimate_costs
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.scripted import ScriptedChat
from llmrl.run.config_hash import config_hash
from llmrl.run.files import read_json_lines
from models import EchoProvider, make_client, make_request

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
    """Answer every second prompt without an action."""
    return act(messages) if len(messages) % 4 == 0 else "I would rather not say."


def society(root, first, second, *options):
    return (
        *SOCIETY,
        *("agent.action_interval=1", "agent.history=10"),
        *("agent.players={llm:1,vllm:2}", f"llm.base_url={first.url}", f"+llm.variants.vllm.base_url={second.url}"),
        *("+llm.variants.vllm.model=another", f"output_root={root}", *options),
    )


def read_names(folder):
    return [(call.get("requested_model", "llm"), call["model"]) for call in read_calls(folder / "llm_calls.jsonl")]


def list_players(server):
    prompts = [request["messages"][0]["content"] for request in server.requests]
    return {number for number in (1, 2, 3) if any(f"player {number}" in text for text in prompts)}


@pytest.mark.slow
def test_players_have_separate_models(tmp_path):
    with FakeOpenAIServer(reply=act) as first, FakeOpenAIServer(reply=half, model="another") as second:
        run(*society(tmp_path, first, second))
        reference = find_run_folder(tmp_path)
        assert (list_players(first), list_players(second)) == ({1}, {2, 3})
        assert {request["model"] for request in second.requests} == {"another"}
        kinds = read_names(reference)
        labels = dict(kinds)
        assert len(set(kinds)) == 2 and kinds.count(kinds[0]) < len(kinds)
        last = load_comparable_metrics(reference)[-1]
        assert last["player/llm/invalid_rate"] == last["player/llm/fallback_rate"] == 0
        assert 0 < last["player/vllm/invalid_rate"] < 1
        spoke = [line for path in reference.glob("episodes/*/replies.jsonl") for line in read_json_lines(path)]
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
        comparable = [
            {k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(reference)
        ]
        second_folder = find_run_folder(root)
        assert [
            {k: v for k, v in row.items() if not k.startswith("usage/")}
            for row in load_comparable_metrics(second_folder)
        ] == comparable
    # What both said is replayed without either.
    replay = society(tmp_path / "replayed", first, second, "llm=replay", f"llm.calls='{reference}'")
    run(*(word for word in replay if not word.startswith("llm.base_url")))
    replay_folder = find_run_folder(tmp_path / "replayed")
    results = [
        json.loads((folder / "results.json").read_text())["per_episode"] for folder in (reference, replay_folder)
    ]
    assert results[0] == results[1]
    assert {label for _, label in read_names(replay_folder)} == {f"replay of {label}" for _, label in kinds}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("agent.players={llm:1,scripted:1}", "2.*env=cleanup.*3"),
        ("agent.players=[llm,llm,gpt5o]", "llm=gpt5o.*claude_haiku"),
        ("agent.players={llm:1,openai_compatible:0,scripted:2}", r"agent\.players\.openai_compatible=0"),
        ("agent.players={llm:2,small_scorer:1}", "small_scorer"),
        ("agent.players={gpt4o:1,scripted:2}", "llm=gpt4o"),
        (
            "llm=gpt4o llm.temperature=0 agent.players={scripted:2,gpt4o:1}",
            "llm=scripted",
        ),
        ("agent.players={llm:2,none:1}", r"\(none\).*llm="),
        ("agent.players={llm:2,vllm:1}", r"llm=vllm.*llm\.variants\.vllm\.model"),
        (
            "agent.players=[llm,llm,llm] +llm.variants.gpt4o.temperature=0",
            r"llm\.variants\.gpt4o",
        ),
        ("+llm.variants.gpt4o.temperature=0", r"llm\.variants\.gpt4o"),
        ("agent=random +llm.variants.gpt4o.temperature=0", r"llm\.variants\.gpt4o"),
        (
            "agent.players={llm:1,gpt4o:2} +llm.variants.gpt4o.temprature=0",
            r"llm\.variants\.gpt4o.*'temprature'",
        ),
        ("agent.players={llm:1,gpt4o:2} +llm.variants.gpt4o.max_tokens=0", r"llm\.variants\.gpt4o\.max_tokens=0"),
        ("agent.players={llm:1,gpt4o:2} +llm.variants.gpt4o.cache=off", r"gpt4o\.cache"),
        ("agent.players={llm:1,gpt4o:2} +llm.variants.gpt4o.limits.at_once=2", r"gpt4o\.limits.*'at_once'"),
        (
            "agent.players={llm:2,gpt4o:1} agent.show_frames=1 +llm.variants.gpt4o.model=gpt-3.5-turbo",
            r"agent\.show_frames=1.*3\.5",
        ),
    ],
)
def test_rejects_invalid_models(words, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.compose(*SOCIETY, *words.split()).plan()


def test_plan_lists_model_costs():
    words = ("llm=gpt4o", "agent.players={llm:1,claude_haiku:1,scripted:1}")
    rows = dict(Experiment.compose(*SOCIETY, *words).plan())
    dollars = [rows[f"  {label}"] for label in ("gpt-4o (litellm)", "anthropic/claude-haiku-5-5 (litellm)")]
    parts = [float(re.findall(r"about \$([\d.]+)", cost_text)[0]) for cost_text in (*dollars, rows["  cost"])]
    assert parts[0] + parts[1] == pytest.approx(parts[2], rel=1e-3) and parts[0] > parts[1] > 0
    assert rows[f"  {ScriptedChat.label}"].startswith("about $0")


def make_players(reply, second_model, **options):
    return make_client(reply, additional_models={"other": (second_model, RateLimit())}, **options)


@pytest.mark.parametrize("parallel", [(True, True), (True, False), (False, False)])
def test_models_receive_their_requests(parallel):
    """Include a model in this process that answers batches."""
    models = [EchoProvider(remote=limit) for limit in parallel]
    client = make_players(*models)
    requests = [make_request(str(i), model="other" if i % 3 else CHOSEN_MODEL) for i in range(7)]
    assert [reply.text for reply in client.chat(requests)] == list("0123456")
    assert [sorted(model.asked) for model in models] == [list("036"), list("1245")]


@pytest.mark.parametrize("parallel", [(True, True), (False, False)])
def test_budget_covers_all_models(parallel):
    models = [EchoProvider(remote=limit) for limit in parallel]
    client = make_players(*models, budget=Budget(calls=5))
    with pytest.raises(BudgetExhausted):
        client.chat([make_request(str(i), model="other" if i % 2 else CHOSEN_MODEL) for i in range(8)])
    assert len(models[0].asked) + len(models[1].asked) == client.budget.usage.calls == 5


def test_failing_model_keeps_remaining_replies():
    models = EchoProvider(), EchoProvider(fail={"1": LLMError("no such model")})
    client = make_players(*models, failures="fall_back")
    first, second = client.chat([make_request("0"), make_request("1", model="other")])
    assert first.text == "0" and "no such model" in second.error


def test_equal_questions_to_two_models_are_two(tmp_path):
    """Treat two copies of one model as separate: each has its own sample."""
    client = ChatClient(EchoProvider(), Cache(tmp_path), additional_models={"other": (EchoProvider(), RateLimit())})
    client.chat([make_request("a"), make_request("a", model="other"), make_request("a")])
    repeats = sorted(json.loads(path.read_text())["repeat"] for path in tmp_path.rglob("*.json"))
    assert repeats == [0, 1]


def test_call_totals_name_all_models(tmp_path):
    second_model = EchoProvider()
    second_model.label = "another"
    client = make_players(EchoProvider(), second_model, call_log=CallLog(tmp_path / CALL_LOG_NAME))
    client.chat([make_request("0")])  # by itself: models are listed in the order of their first replies
    client.chat([make_request("1", model="other"), make_request("2", model="other")])
    totals = read_run_totals(tmp_path)
    assert (list(totals.models), totals.calls) == (["echo", "another"], 3)


def test_player_options_change_hash():
    """Include the model of other players in the hash, but not how requests are sent."""

    def digest(*options):
        return config_hash(Experiment.compose(*SOCIETY, "agent.players={llm:1,gpt4o:2}", *options).config)

    plain = digest()
    assert digest("+llm.variants.gpt4o.temperature=0") != plain
    assert digest("+llm.variants.gpt4o.timeout=7", "+llm.variants.gpt4o.limits.concurrency=2") == plain
    mapping_config = Experiment.compose(*SOCIETY, "llm=gpt4o", "agent.players={scripted:2,gpt4o:1}").config
    assert mapping_config["agent"]["players"] == {"scripted": 2, "llm": 1} and list(
        mapping_config["llm"]["variants"]
    ) == ["scripted"]
    assert Experiment(mapping_config).config == mapping_config
    list_config = Experiment.compose(*SOCIETY, "llm=gpt4o", "agent.players=[scripted,gpt4o,scripted]").config
    assert list_config["agent"]["players"] == ["scripted", "llm", "scripted"]
    config = Experiment.compose(*SOCIETY, "agent.players=[gpt4o,llm,gpt4o]").config
    assert config["llm"]["variants"]["gpt4o"]["model"] == "gpt-4o" and "cache" not in config["llm"]["variants"]["gpt4o"]
    assert Experiment(config).config == config
    with pytest.raises(ConfigError, match=r"llm\.variants\.gpt4o"):
        Experiment.compose(*SOCIETY, "agent.players=[llm,llm,llm]", "+llm.variants.gpt4o.temperature=0")


def test_costs_are_split_by_model():
    dear, cheap = (
        EchoProvider(input_price=10.0, output_price=10.0, max_tokens=100),
        EchoProvider(input_price=1.0, output_price=1.0),
    )
    client = ChatClient(dear, additional_models={"cheap": (cheap, RateLimit())})
    estimate = CallEstimate(10, 10, 1000, 1000, fraction_by_model={CHOSEN_MODEL: 0.25, "cheap": 0.75})
    assert estimate_costs(estimate, client) == (pytest.approx(0.25 * 0.02 + 0.75 * 0.002), None)
