"""`llmrl-evaluate` for language-model players: the estimate of requests is an upper bound."""

import json
import os
import signal
import threading
import time

import pytest

from experiments import find_run_folder, run
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
    """Return the exit status and the output, in one line."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    printout = capsys.readouterr()
    return code, " ".join((printout.out + printout.err).split())


@pytest.mark.slow
def test_estimate_bounds_requests(tmp_path, capsys, server):
    model = (
        "llm=openai_compatible",
        f"llm.base_url={server.url}",
        "llm.model=fake",
        "agent.require_legal=false",
        *PRICES,
    )
    run(*TAXI, *model, f"output_root={tmp_path}", f"llm.cache_dir={tmp_path}/cache", "llm.budget.calls=8")
    folder = find_run_folder(tmp_path)
    request_count = len(server.exchanges)
    assert request_count == 6

    code, output = evaluate(capsys, folder, "--policy", "random", "--episodes", 5)
    assert code == 0 and "LLM calls" not in output and "8 episodes" in output and len(server.exchanges) == request_count

    code, output = evaluate(capsys, folder, "--video", "--calls", 100)
    assert code == 0, output
    # Two episodes as the run had, and one for the video, of three steps.
    assert len(server.exchanges) - request_count == 9
    assert (
        "LLM calls │ 9, at most 18 with repairs" in output
        and "2, and 1 that is filmed" in output
        and "about $0.0" in output
    )
    assert json.loads((folder / "evaluation" / "results.json").read_text())["episodes"] == 2
    assert len(list(read_calls(folder / "evaluation" / "llm_calls.jsonl"))) == 9

    # The nine are paid, and the run's budget was eight.
    code, output = evaluate(capsys, folder, "--episodes", 3, "--seed", 7)
    assert code == 3 and "llm.budget.calls=8" in output and "--calls" in output and "is saved" not in output
    assert len(server.exchanges) - request_count == 9
    code, output = evaluate(capsys, folder, "--episodes", 2, "--out", tmp_path / "elsewhere")
    assert code == 0 and len(server.exchanges) - request_count == 9  # from the cache


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_during_model_request_counts_calls(tmp_path, capsys, number):
    hangs = 45.0
    with FakeOpenAIServer(lambda messages: '{"reflection": "x", "action": "north"}', hang=hangs) as server:
        model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake", "agent.require_legal=false")
        run(*TAXI, *model, f"output_root={tmp_path}", f"llm.cache_dir={tmp_path}/cache")
        folder = find_run_folder(tmp_path)
        server.forget()
        server.faults += ["hang"] * 20
        signals = []

        def interrupt():
            while len(server.requests) < 2:
                time.sleep(0.02)
            signals.append(time.monotonic())
            os.kill(os.getpid(), number)

        threading.Thread(target=interrupt, daemon=True).start()
        # Where nobody handles it, it is not to end the process that tests run in.
        previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            handler = signal.getsignal(number)
            code, output = evaluate(capsys, folder, "--seed", 7)
            assert signal.getsignal(number) is handler
        finally:
            signal.signal(signal.SIGTERM, previous_handler)
        assert time.monotonic() - signals[0] < hangs / 2
        assert code == 128 + number and f"stopped by {number.name}" in output
        calls = list(read_calls(folder / "evaluation" / "llm_calls.jsonl"))
        assert [call.get("unsettled") for call in calls] == [True, True]
        server.faults.clear()
        assert evaluate(capsys, folder, "--seed", 7)[0] == 0
