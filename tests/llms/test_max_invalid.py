"""Limit on the share of invalid replies, and the summary of invalid replies at the end of a run."""

import json
import re
from dataclasses import replace

import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run
from fake_openai_server import FakeOpenAIServer
from llmrl.analysis.llm_calls import read_run_totals
from llmrl.core.errors import ConfigError, TooManyInvalidReplies
from llmrl.experiment.models import build_model
from llmrl.experiment.parts import check_values
from llmrl.experiment.resources import RunResources
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.structured_query import StructuredQuery
from llmrl.llms.validity import MaxInvalid
from llmrl.run.config_hash import config_hash
from models import EchoProvider, make_client

ROOMS = (
    "env=simple_doorkey", "env.n_envs=2", "agent=student_lstm", "teacher=llm", "teacher.samples=2",
    "learn.rollout_steps=10", "learn.env_steps=60", "learn.evaluate_episodes=2", "checkpoint_seconds=0",
)  # fmt: skip
GAME = (
    "env=escape_room",
    "env.n_envs=4",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
    "design.evaluations=1",
)
SEARCH = ("env=cartpole", "agent=linear", "env.horizon=30", "env.n_envs=1", "search.episodes=2", "hardware.cores=1")
RUBBISH = "llm.malformed=1"


def reply_batch(reply):
    text = reply.text
    if not text.isdigit():
        raise InvalidReply(f"{text!r} is no number")
    return int(text)


def asker(limit=None, repair_turns=0, path=None):
    client = make_client(EchoProvider(), call_log=None if path is None else CallLog(path), max_invalid=limit)
    return StructuredQuery(
        client, "test", reply_batch, lambda fault: Prompt("1" if fault else ""), None, repair_turns
    ), client


def run_state(root):
    folder = find_run_folder(root)
    return json.loads((folder / "status.json").read_text()), folder


class TestTheLimit:
    def test_exceeding_share_raises_after_minimum(self):
        asking, client = asker(MaxInvalid(0.5, 4))
        assert asking.ask([Prompt("x"), Prompt("y"), Prompt("z")]) == [None] * 3  # too few to tell
        with pytest.raises(TooManyInvalidReplies, match=r"4.*4.*llm.max_invalid=null"):
            asking.ask([Prompt("v\x1b[2J")])
        assert client.metrics()["llm/invalid_share"] == 1.0 and client.metrics()["llm/parsed_replies"] == 4

    @pytest.mark.parametrize("finish", ["length", "stop"])
    def test_truncated_replies_suggest_option(self, monkeypatch, finish):
        complete = EchoProvider.complete
        monkeypatch.setattr(
            EchoProvider,
            "complete",
            lambda self, requests: [replace(reply, finish=finish) for reply in complete(self, requests)],
        )
        asking, _ = asker(MaxInvalid(0.5, 1))
        with pytest.raises(TooManyInvalidReplies) as error:
            asking.ask([Prompt("x")])
        assert ("llm.max_tokens" in str(error.value)) == (finish == "length")

    def test_exact_share_is_allowed(self):
        asking, client = asker(MaxInvalid(0.5, 2))
        assert asking.ask([Prompt("x"), Prompt("2")]) == [None, 2]
        with pytest.raises(TooManyInvalidReplies):
            asking.ask([Prompt("x")])
        assert client.metrics()["llm/invalid_share"] == 2 / 3

    def test_repairs_count_toward_share(self):
        """If each question needs a repair turn, half of the replies are invalid."""
        asking, client = asker(MaxInvalid(0.5, 2), repair_turns=1)
        assert asking.ask([Prompt("x")] * 6) == [1] * 6
        assert client.metrics()["llm/invalid_share"] == 0.5

    def test_none_only_counts(self):
        asking, client = asker(None)
        asking.ask([Prompt("x")] * 30)
        assert client.metrics()["llm/invalid_share"] == 1.0

    def test_last_replies_appear_as_plain_text(self):
        asking, _ = asker(MaxInvalid(0.5, 5))
        texts = ["one", "two", "three\x1b[2J", "four" * 200, "five\u202e"]
        with pytest.raises(TooManyInvalidReplies) as error:
            asking.ask([Prompt(text) for text in texts])
        message = str(error.value)
        assert (
            "two" not in message
            and "'three\\x1b[2J'" in message
            and "'five\\u202e'" in message
            and "four" * 60 not in message
        )
        assert all(letter.isprintable() or letter == "\n" for letter in message) and len(message) < 3000

    def test_counts_survive_resume(self):
        asking, client = asker(MaxInvalid(0.5, 6))
        asking.ask([Prompt("x")] * 3)
        second_asker, second_client = asker(MaxInvalid(0.5, 6))
        second_client.load_state_dict(client.state_dict())
        with pytest.raises(TooManyInvalidReplies, match="6 of 6"):
            second_asker.ask([Prompt("y")] * 3)

    @pytest.mark.parametrize("value", ["share=1.5", "share=-1", "min_replies=0", "min_replies=many"])
    def test_invalid_settings(self, value):
        with pytest.raises(ConfigError, match=r"llm\.max_invalid"):
            check_values(compose("env=escape_room", "principal=llm", f"llm.max_invalid.{value}"))

    def test_limit_is_excluded_from_hash(self):
        configs = [compose(*GAME, *words) for words in ((), ("llm.max_invalid=null",), ("llm.max_invalid.share=0.9",))]
        assert len({config_hash(config) for config in configs}) == 1

    def test_trainable_model_has_no_limit(self):
        model = build_model(RunResources(compose("llm=scripted", primary="train")))
        assert model.policies.max_invalid == MaxInvalid(0.5, 10)
        assert "max_invalid" not in compose("env=cartpole", "agent=linear", primary="finetune")["llm"]


class TestRuns:
    """Tests of all families of experiments with a model whose replies are invalid."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("overrides", "n_calls"),
        [
            pytest.param(ROOMS, 16, marks=pytest.mark.long),
            ((*GAME, "principal=llm", "design.steps=9"), 10),
            ((*SEARCH, "principal=llm", "search.iterations=9"), 10),
            pytest.param(
                ("env=taxi", "env.n_envs=3", "env.horizon=9", "agent=llm_player", "play.episodes=3"),
                12,
                marks=pytest.mark.long,
            ),
        ],
        ids=["teacher", "principal", "search", "player"],
    )
    def test_run_continues_with_larger_limit(self, tmp_path, overrides, n_calls):
        command = (*overrides, RUBBISH, "llm.cache=readwrite", f"output_root={tmp_path}")
        for _ in range(2):  # the second time, mostly out of the cache
            with pytest.raises(TooManyInvalidReplies, match=r"llm.max_invalid.*\n  '"):
                run(*command)
            status, folder = run_state(tmp_path)
            assert status["state"] == "failed" and "invalid" in status["error"]
        n_charged = list(read_calls(folder / CALL_LOG_NAME))[-1]["spent"]["calls"]
        assert 10 <= n_charged <= n_calls and list((folder / "checkpoints").iterdir())
        run(*command, "llm.max_invalid=null")
        status, second_status = run_state(tmp_path)
        assert status["state"] == "finished" and second_status == folder
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["llm_invalid_share"] == 1.0 and summary["llm_judged_replies"] > 10
        last = [row for row in load_comparable_metrics(folder) if "llm/calls" in row][-1]
        assert last["llm/invalid_share"] == 1.0 and last["llm/parsed_replies"] == last["llm/invalid_replies"]
        if "teacher=llm" in overrides:
            assert json.loads((folder / "plans.json").read_text())["plans"] == {}
            assert last["teacher/unknown"] > 0
        if "search.iterations=9" in overrides:
            lines = [json.loads(line) for line in (folder / "proposals.jsonl").read_text().splitlines()]
            assert all(line["fallback"] for line in lines if line["iteration"]) and len(lines) == 9


class TestTheClosingTable:
    def test_short_run_shows_invalid_share(self, tmp_path, capsys):
        command = (*GAME, "principal=llm", "llm=scripted", "design.steps=2", RUBBISH, f"output_root={tmp_path}")
        run(*command)
        output = capsys.readouterr().out
        assert run_state(tmp_path)[0]["state"] == "finished"
        assert "NO REPLY" in output
        assert re.search(r"llm invalid share +│ 1 ", output) and re.search(r"llm judged replies +│ 4 ", output)
        run(*command)
        assert "NO REPLY" in capsys.readouterr().out  # of a run that is finished already

    def test_valid_replies_print_no_warning(self, tmp_path, capsys):
        run(*GAME, "principal=llm", "llm=scripted", "design.steps=2", f"output_root={tmp_path}")
        output = capsys.readouterr().out
        assert re.search(r"llm invalid share +│ 0 ", output) and "WARNING" not in output

    def test_run_with_no_requests_prints_no_warning(self, tmp_path, capsys):
        run(*GAME, "principal=random", "design.steps=1", f"output_root={tmp_path}")
        assert "invalid" not in capsys.readouterr().out

    def test_status_reports_limit(self, tmp_path, capsys):
        from llmrl.cli.sweep import main
        from llmrl.display.sweeps import print_sweep
        from llmrl.sweeps.backends.protocol import Job, JobOutcome

        overrides = (*GAME, "principal=llm", "llm=scripted", "design.steps=2", RUBBISH, f"output_root={tmp_path}")
        run(*overrides)
        capsys.readouterr()
        folder = find_run_folder(tmp_path)
        job = Job(compose(*overrides), list(overrides), None, 1, list(overrides))
        print_sweep([JobOutcome(job, folder, "finished", result=1.0)])
        assert "VALID:" in " ".join(capsys.readouterr().out.split())
        with pytest.raises(SystemExit):
            main(["status", str(tmp_path)])
        assert "VALID:" in " ".join(capsys.readouterr().out.split())


def test_verdicts_are_distinguishable(tmp_path):
    """Totals and readers agree for repeated questions, batches and calls without a parsed reply."""
    path = tmp_path / CALL_LOG_NAME
    asking, client = asker(path=path)
    for texts in (["x", "3"], ["x", "x", "4"]):
        asking.ask([Prompt(text) for text in texts])
    calls = list(read_calls(path))
    # Those of a batch stand in the order in which they arrived.
    assert [sorted((call["reply"], call["valid"]) for call in batch) for batch in (calls[:2], calls[2:])] == [
        [("3", True), ("x", False)],
        [("4", True), ("x", False), ("x", False)],
    ]
    assert all(bool(call["parse_error"]) != call["valid"] for call in calls)
    total = read_run_totals(tmp_path)
    assert (total.calls, total.validated, total.invalid) == (5, 5, 3) and client.validity.invalid == 3


def test_an_evaluation_only_counts(tmp_path, capsys):
    from llmrl.cli.evaluate import build_parser, evaluate
    from llmrl.display.results import print_evaluation

    game = ("env=taxi", "env.n_envs=3", "env.horizon=4", "agent=llm_player", "play.episodes=3", RUBBISH)
    with pytest.raises(TooManyInvalidReplies):
        run(*game, f"output_root={tmp_path}", "checkpoint_seconds=0")
    evaluation = evaluate(build_parser().parse_args([str(find_run_folder(tmp_path)), "--episodes", "3"]))
    assert evaluation["llm_invalid_share"] == 1.0 and evaluation["llm_judged_replies"] >= 18  # some moves are forced
    print_evaluation(evaluation)
    assert "NO REPLY" in capsys.readouterr().out


def test_silent_model_is_reported(tmp_path, capsys):
    with FakeOpenAIServer(lambda messages: "") as server:
        server.faults += ["400-echo"] * 50
        model = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=m")
        model = (*model, "llm.failures=fall_back", "llm.retry.retries=0")
        run(*GAME, "principal=llm", "design.steps=2", *model, f"output_root={tmp_path}")
    assert re.search("WARNING: .* 2 calls", capsys.readouterr().out)
