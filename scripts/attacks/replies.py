"""Robustness of reply parsers to malformed and slow-to-parse replies, and handling of invalid replies in runs.

    python scripts/attacks/replies.py [words of an attack's name]

Runs are executed in this process (`run_and_print`). Models are HTTP servers on 127.0.0.1, or the scripted model.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack import attack, main

ROOMS = (
    "env=simple_doorkey", "env.n_envs=2", "agent=student_lstm", "teacher=llm", "teacher.samples=2",
    "learn.rollout_steps=10", "learn.env_steps=60", "learn.evaluate_episodes=2", "checkpoint_seconds=0",
)  # fmt: skip
GAME = ("env=escape_room", "env.n_envs=4", "design.adapt_rounds=1", "design.validate_episodes=4", "principal=llm")
SEARCH = (
    "env=cartpole", "agent=linear", "env.horizon=30", "env.n_envs=1", "search.episodes=2", "hardware.cores=1",
    "principal=llm",
)  # fmt: skip
PLAY = ("env=taxi", "env.n_envs=3", "env.horizon=6", "agent=llm_player", "play.episodes=3")
HUGE = "9" * 6000


class Server:
    """Chat server that replies with a fixed text, or with a function of the last message."""

    def __init__(self, text: str | Callable[[str], str]) -> None:
        get_text = text if callable(text) else lambda message: text
        self.n_requests = 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.n_requests += 1
                reply = {"content": get_text(body["messages"][-1]["content"])}
                usage = {"prompt_tokens": 5, "completion_tokens": 5}
                response = json.dumps({"choices": [{"message": reply, "finish_reason": "stop"}], "usage": usage})
                self.send_response(200)
                self.send_header("content-length", str(len(response)))
                self.end_headers()
                self.wfile.write(response.encode())

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def model(self) -> tuple[str, ...]:
        address = f"http://127.0.0.1:{self.http.server_port}/v1"
        return ("llm=openai_compatible", f"llm.base_url={address}", "llm.api_key_env=null", "llm.model=fake")

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


def compose(*overrides: str) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        config = hydra_compose("train", overrides=["design.references=0", *overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return plain


def run_experiment(folder: Path, *overrides: str) -> tuple[str, str]:
    """Run an experiment.

    Returns:
        `finished` and the output, or the name of the exception and its message.
    """
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.run_job import run_and_print

    output = io.StringIO()
    arguments = [*overrides, f"output_root={folder}"]
    try:
        with contextlib.redirect_stdout(output):
            run_and_print(Experiment(compose(*arguments), arguments))
    except Exception as error:  # the type of the error is part of the observation
        return type(error).__name__, str(error)
    return "finished", output.getvalue()


def find_run_folder(root: Path) -> Path:
    [folder] = {path.parent for path in root.rglob("config.yaml")}
    return folder


def read_run_calls(root: Path) -> list[dict[str, Any]]:
    from llmrl.llms.call_log import read_calls

    return list(read_calls(find_run_folder(root) / "llm_calls.jsonl"))


def check_encoding(root: Path) -> bool:
    """Check that all text files of a run are UTF-8 without surrogates, escaped or not; return True.

    Raises:
        UnicodeError: a file is not valid.
    """
    for path in find_run_folder(root).rglob("*.json*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                json.dumps(json.loads(line), ensure_ascii=False).encode()
    return True


MALFORMED_REPLIES = {
    "lone surrogates in JSON escapes": '{"reflection": "\\ud800", "action": "\\udc00", "plan": "\\ud800"}',
    "a number of 6,000 digits": f'{{"action": {HUGE}, "params": [{HUGE}], "plan": {HUGE}, "reflection": ""}}',
    "6,000 digits in a string": f'{{"action": "{HUGE}", "params": ["{HUGE}"], "plan": ["{HUGE}"], "reflection": "x"}}',
    "100,000 brackets": '{"action": ' + "[" * 100_000,
    "900 closed brackets": '{"reflection": "x", "action": ' + "[" * 900 + "]" * 900 + "}",
    "exponents beyond the range of floats": '{"action": 1e999999, "params": [1e999999, -1e999999], "reflection": "x"}',
    "NUL and escape characters": '{"reflection": "\\u0000\\u001b[2J", "action": "\\u0000"}\x00\x1b[2J',
}  # fmt: skip


def make_malformed_reply_trial(text: str) -> Callable[[Path], tuple[bool, str]]:
    """Return a trial that sends an invalid reply to a principal, a search, a player and a teacher."""

    def trial(folder: Path) -> tuple[bool, str]:
        outcomes = []
        with Server(text) as server:
            for name, overrides in (("design", GAME), ("search", SEARCH), ("play", PLAY), ("learn", ROOMS)):
                size_options = {"design": "design.steps=1", "search": "search.iterations=1", "play": "play.episodes=1"}
                extra = [size_options[name]] if name in size_options else ["learn.env_steps=20"]
                command = (*overrides, *extra, *server.model, "llm.max_invalid=null")
                outcome, message = run_experiment(folder / name, *command)
                outcomes.append(outcome if outcome == "finished" else f"{name}: {outcome} {message[:60]}")
                if outcome == "finished":
                    calls = read_run_calls(folder / name)
                    outcomes += (
                        [] if calls and all(call["valid"] is False for call in calls) else [f"{name}: not logged"]
                    )
                    check_encoding(folder / name)
        return set(outcomes) == {"finished"}, ", ".join(sorted(set(outcomes)))

    return trial


for _name, _text in MALFORMED_REPLIES.items():
    attack(f"{_name}, to a principal, a search, a player and a teacher", "invalid replies, all runs finish")(
        make_malformed_reply_trial(_text)
    )


@attack("lone surrogates in the reflection and the lesson of a valid reply", "removed in memory, requests and files")
def _(folder: Path) -> tuple[bool, str]:
    valid_reply = json.dumps({"reflection": "\ud800", "action": 0, "lesson": "keep \udfff"})
    with Server(valid_reply) as server:
        game = ("env=cartpole", "env.n_envs=1", "env.horizon=4", "agent=llm_player", "agent.lessons=1")
        outcome, message = run_experiment(folder, *game, "play.episodes=3", *server.model)
    valid = [call["valid"] for call in read_run_calls(folder)]
    passed = outcome == "finished" and all(valid) and check_encoding(folder)
    return passed, f"{outcome} {message[:60] if outcome != 'finished' else ''}"


@attack("a lone surrogate in the reasoning of a valid proposal", "removed in proposals.jsonl")
def _(folder: Path) -> tuple[bool, str]:
    with Server(json.dumps({"reasoning": "\ud800", "params": list(range(10))})) as server:
        outcome, message = run_experiment(folder, *SEARCH, *server.model, "search.iterations=2")
    passed = outcome == "finished" and check_encoding(folder)
    return passed, f"{outcome} {message[:60] if outcome != 'finished' else ''}"


def list_parsers() -> dict[str, Callable[[str], object]]:
    from llmrl.agents.llm_player.answer_format import DiscreteAnswerFormat, parse_player_reply
    from llmrl.agents.llm_player.lessons import parse_lesson
    from llmrl.llms.reading.answer_parser import parse_answer
    from llmrl.llms.reading.vector_parser import VectorParser
    from llmrl.teachers.plans import Skill, parse_reply

    choices = DiscreteAnswerFormat((("left", ""), ("right", "")))
    skills = (Skill("go to", True, ""), Skill("explore", False, ""))
    return {
        "numbers": lambda text: parse_answer(text, VectorParser([f"params[{i}]" for i in range(4)])),
        "names": lambda text: parse_answer(text, VectorParser(["eat", "clean", "other"])),
        "plan": lambda text: parse_reply(text, skills, ("key",)),
        "action": lambda text: parse_player_reply(text, choices, None, True),
        "lesson": parse_lesson,
    }


def make_parse_time_trial(text: str) -> Callable[[Path], tuple[bool, str]]:
    """Return a trial that measures the CPU time of all parsers."""

    def trial(folder: Path) -> tuple[bool, str]:
        from llmrl.llms.invalid_reply import InvalidReply

        max_seconds, slowest = 0.0, ""
        for name, parse in list_parsers().items():
            start = time.process_time()
            with contextlib.suppress(InvalidReply):
                parse(text)
            seconds = time.process_time() - start
            max_seconds, slowest = max((max_seconds, slowest), (seconds, name))
        return max_seconds < 1.0, f"at most {max_seconds:.2f} CPU s ({slowest})"

    return trial


SLOW = {
    "29,000 digits and a letter": "params[0]: " + "1" * 29_000 + "x",
    "a list of 29,000 digits and a letter": "[" + "1" * 29_000 + "x]",
    "29,000 digits after a point": "params[0]: 1." + "1" * 29_000 + "x",
    "5,000 unclosed think tags": "<think>" * 5000,
    "20 MB of opening braces": '{"a":' * 4_000_000,
    "400 open lists before 14,000 numbers": '{"params":[' * 400 + "1," * 14_000,
    "10,000 unclosed strings": '{"a":"' * 10_000,
    "2,000 rows of a table": "params[0]: 1; f(params): 2\n" * 2000 + " " * 9000,
    "1,000 spaces between tokens": ("params" + " " * 1000 + "[") * 30,
}
for _name, _text in SLOW.items():
    attack(_name, "parsed or invalid within one second")(make_parse_time_trial(_text))


@attack("a cached reply with a lone surrogate", "removed when the cache is read")
def _(folder: Path) -> tuple[bool, str]:
    with Server("nothing") as server:
        first = run_experiment(folder, *GAME, *server.model, "design.steps=1")
        for path in (folder / "llm_cache").rglob("*.json"):
            entry = json.loads(path.read_text())
            entry["reply"]["text"] = ["\ud800 lone"]
            path.write_text(json.dumps(entry))
        second = run_experiment(folder, *GAME, *server.model, "design.steps=1", "rerun=true")
    message = second[1][:60] if second[0] != "finished" else ""
    return first[0] == second[0] == "finished", f"{first[0]}, then {second[0]} {message}"


@attack("the process is killed while it parses a paid reply", "the reply is in the log")
def _(folder: Path) -> tuple[bool, str]:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom llmrl.llms.by_name import chat_model\n"
        "from llmrl.llms.structured_query import StructuredQuery\nfrom llmrl.llms.prompts import Prompt\n"
        "client = chat_model('openai_compatible', base_url=sys.argv[1], model='fake', call_log=Path(sys.argv[2]))\n"
        "query = StructuredQuery(client, 't', lambda text: os.kill(os.getpid(), 9), lambda f: Prompt(f), None, 0)\n"
        "query.ask([Prompt('q')])\n"
    )
    from llmrl.llms.call_log import CallLog, read_calls

    log = folder / "calls.jsonl"
    with Server("paid for") as server:
        url = server.model[1].partition("=")[2]
        process = subprocess.run([sys.executable, "-c", program, url, str(log)], capture_output=True)
    calls = list(read_calls(log)) if log.exists() else []
    logged_replies = [call["reply"] for call in calls if "reply" in call]
    passed = logged_replies == ["paid for"] and CallLog(log).earlier_usage.calls == 1
    return passed, f"exit {process.returncode}, log: {logged_replies}"


def make_invalid_model_trial(*overrides: str) -> Callable[[Path], tuple[bool, str]]:
    """Return a trial with a model without valid replies.

    The run must fail, fail again without further calls, and finish without a limit of invalid replies.
    """

    def trial(folder: Path) -> tuple[bool, str]:
        with Server("I would rather talk about \x1b[2J the weather \u202e.") as server:
            command = (*overrides, *server.model)
            first, message = run_experiment(folder, *command)
            n_paid = server.n_requests
            second, _ = run_experiment(folder, *command)
            is_free = server.n_requests == n_paid
            unlimited, output = run_experiment(folder, *command, "llm.max_invalid=null")
        is_quoted = "weather" in message and "\x1b" not in message and "\u202e" not in message
        has_warning = "NO REPLY OF THE MODEL WAS VALID" in output
        passed = (
            first == second == "TooManyInvalidReplies"
            and is_quoted
            and is_free
            and unlimited == "finished"
            and has_warning
        )
        return (
            passed,
            f"{first} after {n_paid} calls, then {second} {'without' if is_free else 'WITH'} calls, then {unlimited}",
        )

    return trial


_EXPECTED = "the run fails with the invalid reply, and can be resumed"
attack("a teacher without valid replies", _EXPECTED)(make_invalid_model_trial(*ROOMS))
attack("a principal without valid replies", _EXPECTED)(make_invalid_model_trial(*GAME, "design.steps=8"))
attack("a search without valid replies", _EXPECTED)(make_invalid_model_trial(*SEARCH, "search.iterations=8"))
attack("a player without valid replies", _EXPECTED)(make_invalid_model_trial(*PLAY))


@attack(
    "a teacher without valid replies, without a limit", "no fallback in plans.json or the state; repeated questions"
)
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        outcome, _ = run_experiment(folder, *ROOMS, *server.model, "llm.max_invalid=null", "learn.env_steps=200")
        n_requests = server.n_requests
    run = find_run_folder(folder)
    plans = json.loads((run / "plans.json").read_text())["plans"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "teacher/requested_states" in row][-1]
    n_states, n_requested = last["teacher/states"], last["teacher/requested_states"]
    return (
        outcome == "finished" and plans == {} and n_requested > n_states,
        f"plans.json {plans}, {n_states:.0f} states, requested {n_requested:.0f} times, {n_requests} calls",
    )


@attack("a teacher with invalid replies, then valid ones", "valid plans replace the fallback")
def _(folder: Path) -> tuple[bool, str]:
    valid_reply = json.dumps({"reasoning": "", "plan": [{"skill": "explore", "object": ""}]})
    n_invalid = {"remaining": 16}

    def get_reply(message: str) -> str:
        n_invalid["remaining"] -= 1
        return "?" if n_invalid["remaining"] >= 0 else valid_reply

    with Server(get_reply) as server:
        outcome, _ = run_experiment(folder, *ROOMS, *server.model, "llm.max_invalid=null", "learn.env_steps=200")
    plans = json.loads((find_run_folder(folder) / "plans.json").read_text())["plans"]
    return outcome == "finished" and len(plans) > 0, f"{outcome}, {len(plans)} states have plans"


@attack("three invalid replies", "finished, with a warning in the final table")
def _(folder: Path) -> tuple[bool, str]:
    outcome, output = run_experiment(folder, *GAME, "llm=scripted", "llm.malformed=1", "design.steps=2")
    return (
        outcome == "finished" and "NO REPLY OF THE MODEL WAS VALID" in output,
        f"{outcome}, warning: {'WARNING' in output}",
    )


@attack("every second reply invalid, always repaired", "finished: half of the replies may be invalid")
def _(folder: Path) -> tuple[bool, str]:
    counter = {"n": 0}

    def get_reply(message: str) -> str:
        counter["n"] += 1
        return "?" if counter["n"] % 2 else '{"reflection": "x", "action": 0}'

    with Server(get_reply) as server:
        game = ("env=cartpole", "env.n_envs=1", "env.horizon=8", "agent=llm_player", "play.episodes=2")
        outcome, text = run_experiment(folder, *game, *server.model, "llm.limits.concurrency=1")
    validity = [call["valid"] for call in read_run_calls(folder)]
    return (
        outcome == "finished",
        f"{outcome}, {validity.count(False)} of {len(validity)} invalid {text[:80] if outcome != 'finished' else ''}",
    )


@attack("invalid replies before and after a resume", "the share includes replies before the checkpoint")
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        limit = "llm.max_invalid.min_replies=14"
        size_options = (*GAME, *server.model, limit, "design.steps=20", "checkpoint_seconds=0")
        first, message = run_experiment(folder, *size_options, "llm.budget.calls=9")
        second, message = run_experiment(folder, *size_options)
    passed = (first, second) == ("BudgetExhausted", "TooManyInvalidReplies") and "14 of 14" in message
    return passed, f"{first}, {second}: {message[:40]}"


@attack("the limit as an override", "the same run folder")
def _(folder: Path) -> tuple[bool, str]:
    for extra in ("llm.max_invalid=null", "llm.max_invalid.share=0.9", "llm.max_invalid.min_replies=3"):
        run_experiment(folder, *GAME, "llm=scripted", "design.steps=1", extra)
    folders = {path.parent for path in folder.rglob("config.yaml")}
    return len(folders) == 1, f"{len(folders)} folder(s)"


@attack("a replay of a run with invalid replies", "equal replies, validity and outcome")
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        run_experiment(folder / "a", *GAME, *server.model, "design.steps=2")
    calls = find_run_folder(folder / "a")
    outcome, message = run_experiment(folder / "b", *GAME, "llm=replay", f"llm.calls='{calls}'", "design.steps=2")
    replayed = [[(c["reply"], c["valid"]) for c in read_run_calls(folder / name)] for name in "ab"]
    passed = outcome == "finished" and replayed[0] == replayed[1]
    return passed, f"{outcome}, {len(replayed[1])} parsed replies {message[:60] if outcome != 'finished' else ''}"


@attack("a log with invalid JSON, parse records without calls, and 6,000 digits", "valid lines are read")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.analysis.llm_calls import read_run_totals

    run_experiment(folder, *GAME, "llm=scripted", "design.steps=2")
    log = find_run_folder(folder) / "llm_calls.jsonl"
    invalid_lines = (
        f'{{"hash": {HUGE}}}\n{"[" * 50_000}\n{{"parsed_call": 1}}\n{{"parsed_call": "x", "time": {HUGE}}}\nnull\n'
    )
    log.write_text(invalid_lines + log.read_text() + '{"parsed_call": "cut sh')
    logging.disable(logging.CRITICAL)
    total = read_run_totals(find_run_folder(folder))
    outcome, _ = run_experiment(folder, *GAME, "llm=scripted", "design.steps=2", "llm.max_invalid=null")
    logging.disable(logging.NOTSET)
    return (total.calls, total.validated, total.invalid, outcome) == (
        2,
        2,
        0,
        "finished",
    ), f"{total.calls} calls, {outcome}"


@attack("unparsable replies in training", "no reward, counted as a group, no error")
def _(folder: Path) -> tuple[bool, str]:
    import numpy as np

    from llmrl.core.seeding import Seeds
    from llmrl.finetuning.rewards import ReplyEvaluator

    class UnreadablePrompts:
        def parse_reply(self, text: str, is_truncated: bool = False) -> np.ndarray:
            raise MemoryError(text[:3])

    class EmptyPrompt:
        shown_trials = ()

    evaluator = ReplyEvaluator(UnreadablePrompts(), lambda vectors, seeds: np.zeros((0, 2)), 2, Seeds(0))  # type: ignore[arg-type]
    prompt: Any = EmptyPrompt()
    attempts = evaluator([prompt] * 3, ["[" * 9999, HUGE, "\ud800"], "step 1")
    metrics = evaluator.metrics()
    passed = all(a.vector is None and a.error for a in attempts) and metrics["train/skipped_groups"] == 1
    return passed, f"skipped groups {metrics['train/skipped_groups']:.0f}, valid {metrics['train/valid_rate']:.0f}"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main("Parsing of replies")
