"""`llmrl-llm`, and the messages of `llmrl-train` about models and costs."""

import re

import pytest

from experiments import run
from fake_openai_server import FakeOpenAIServer
from llmrl.cli.llm import main
from llmrl.llms.scripted import ScriptedChat


def call(capsys, *argv):
    """Return the exit status and the output, in one line."""
    code = 0
    try:
        main(argv)
    except SystemExit as stop:
        code = stop.code
    printout = capsys.readouterr()
    return code, " ".join((printout.out + printout.err).split())


def server_options(server, *overrides):
    return ("check", "llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model", *overrides)


def test_check_of_server(capsys):
    with FakeOpenAIServer(lambda messages: '{"number": 7, "word": "blue"}') as server:
        code, text = call(capsys, *server_options(server, "llm.input_price=1", "llm.output_price=2"))
    assert code == 0 and len(server.requests) == 1
    for part in ("fake-model at http://127.", "accepted and followed", "11 in, 7 out", "$0.000025", " s ", "context"):
        assert part in text, part


def test_check_of_server_ignoring_schemas(capsys):
    with FakeOpenAIServer(lambda messages: '{"number": 1}') as server:
        code, text = call(capsys, *server_options(server))
    assert code == 1 and "ignored" in text and "llm.structured=false" in text
    assert re.search(r"number 1 \D* 7", text)


def test_check_of_invalid_reply(capsys):
    with FakeOpenAIServer(lambda messages: "seven") as server:
        code, text = call(capsys, *server_options(server))
    assert code == 1 and "unknown" in text and "llm.structured=false" not in text


def test_check_with_refused_key_sends_no_second_request(capsys):
    with FakeOpenAIServer(lambda messages: '{"number": 7, "word": "blue"}') as server:
        server.faults.append("401")
        code, text = call(capsys, *server_options(server))
    assert code == 1 and len(server.requests) == 1 and "llm.structured=false" not in text


def test_check_of_server_lacking_schemas(capsys):
    class Simple(FakeOpenAIServer):
        def _begin(self, body):
            self.faults += ["400-echo"] * ("response_format" in body)
            return super()._begin(body)

    with Simple(lambda messages: "seven") as server:
        code, text = call(capsys, *server_options(server))
    assert code == 1 and "refused" in text and "llm.structured=false" in text
    assert "JSON" in text and "cost │ unknown" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("llm=gpt4o",), "OPENAI_API_KEY"),
        (("llm=claude_haiku",), "ANTHROPIC_API_KEY"),
        (("llm=openai_compatible", "llm.base_url=http://127.0.0.1:9/v1"), "no answer"),
        (("llm=none",), "llm=<option>"),
        (("llm=gpt5",), "gpt4o"),
        (("llm=replay",), "llm.calls=<value>"),
        (("llm=gpt4o", "llm.modle=x"), "modle"),
    ],
)
def test_check_reports_missing_parts(capsys, monkeypatch, argv, message):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    code, text = call(capsys, "check", *argv)
    assert code == 1 and message in text and "Traceback" not in text, text


def test_check_of_offline_model(capsys):
    code, text = call(capsys, "check", "llm=scripted")
    assert code == 0 and ScriptedChat.label in text


@pytest.mark.slow
def test_dry_run_estimates_cost(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    common = ("env=escape_room", "principal=llm", "dry_run=true", f"output_root={tmp_path}")
    run(*common, "llm=gpt4o", "design.steps=20", "llm.budget.usd=3")
    text = " ".join(capsys.readouterr().out.split())
    assert "20, at most 40 " in text and "cost │ about $0." in text and "at most $" in text
    assert "OPENAI_API_KEY" in text, "a plan needs no key"
    assert "budget │ $3" in text
    run(*common, "llm=gpt4o", "llm.input_price=null", "llm.budget.usd=null")
    assert re.search(r"cost │ unknown.*llm.input_price", " ".join(capsys.readouterr().out.split()))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_estimate_is_close_to_usage(capsys, tmp_path):
    import re

    from experiments import find_run_folder, load_comparable_metrics

    common = (
        "env=escape_room",
        "env.n_envs=2",
        "principal=llm",
        "design.steps=30",
        "design.validate_episodes=2",
        "design.adapt_rounds=0",
        "design.confirm_steps=0",
        "design.evaluations=0",
    )
    run(*common, "dry_run=true")
    tokens = re.search(r"prompt tokens *│ about ([\d,]+)", capsys.readouterr().out)
    run(*common, f"output_root={tmp_path}")
    used = load_comparable_metrics(find_run_folder(tmp_path))[-1]["llm/prompt_tokens"]
    assert 0.8 < int(tokens.group(1).replace(",", "")) / used < 1.25
