"""`llmrl-evaluate` of players that ask a language model: it says what it will ask, and asks no more."""

import json
import os
import signal
import threading
import time

import pytest

from experiments import only_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.cli.evaluate import main
from llmrl.llms.call_log import read_calls

TAXI = ("env=taxi", "env.horizon=3", "env.n_envs=4", "play.episodes=2", "play.records=0", "agent=llm_player")
PRICES = ("llm.input_price=1", "llm.output_price=2")


@pytest.fixture
def server():
    with FakeOpenAIServer(lambda messages: '{"reflection": "x", "action": "north"}') as server:
        yield server


def evaluate(capsys, *arguments):
    """Exit status, and what was printed, in one line."""
    code = 0
    try:
        main([str(each) for each in arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.slow
def test_no_more_is_asked_than_was_said(tmp_path, capsys, server):
    model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake", "agent.legal_only=false", *PRICES)
    run(*TAXI, *model, f"output_root={tmp_path}", f"llm.cache_dir={tmp_path}/cache", "llm.budget.calls=8")
    folder = only_run_folder(tmp_path)
    played = len(server.exchanges)
    assert played == 6

    code, said = evaluate(capsys, folder, "--policy", "random", "--episodes", 5)
    assert code == 0 and "LLM calls" not in said and "8 episodes" in said and len(server.exchanges) == played

    code, said = evaluate(capsys, folder, "--video", "--calls", 100)
    assert code == 0, said
    # Two episodes as the run had, and one for the video, of three steps.
    assert len(server.exchanges) - played == 9
    assert (
        "LLM calls │ 9, at most 18 with repairs" in said and "2, and 1 that is filmed" in said and "about $0.0" in said
    )
    assert json.loads((folder / "evaluation" / "results.json").read_text())["episodes"] == 2
    assert len(list(read_calls(folder / "evaluation" / "llm_calls.jsonl"))) == 9

    # The nine are paid, and the run's budget was eight.
    code, said = evaluate(capsys, folder, "--episodes", 3, "--seed", 7)
    assert code == 3 and "llm.budget.calls=8" in said and "--calls" in said and "Everything is saved" not in said
    assert len(server.exchanges) - played == 9
    code, said = evaluate(capsys, folder, "--episodes", 2, "--out", tmp_path / "elsewhere")
    assert code == 0 and len(server.exchanges) - played == 9  # from the cache


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_while_its_model_hangs_it_ends_and_counts_what_was_sent(tmp_path, capsys, number):
    hangs = 45.0
    with FakeOpenAIServer(lambda messages: '{"reflection": "x", "action": "north"}', hang=hangs) as server:
        model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake", "agent.legal_only=false")
        run(*TAXI, *model, f"output_root={tmp_path}", f"llm.cache_dir={tmp_path}/cache")
        folder = only_run_folder(tmp_path)
        server.forget()
        server.faults += ["hang"] * 20
        signalled = []

        def interrupt():
            while len(server.requests) < 2:
                time.sleep(0.02)
            signalled.append(time.monotonic())
            os.kill(os.getpid(), number)

        threading.Thread(target=interrupt, daemon=True).start()
        # Where nobody handles it, it is not to end the process that tests run in.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            handler = signal.getsignal(number)
            code, said = evaluate(capsys, folder, "--seed", 7)
            assert signal.getsignal(number) is handler
        finally:
            signal.signal(signal.SIGTERM, before)
        assert time.monotonic() - signalled[0] < hangs / 2
        assert code == 128 + number and f"stopped by {number.name}; nothing of it is written" in said
        calls = list(read_calls(folder / "evaluation" / "llm_calls.jsonl"))
        assert [call.get("unsettled") for call in calls] == [True, True]
        server.faults.clear()
        assert evaluate(capsys, folder, "--seed", 7)[0] == 0
