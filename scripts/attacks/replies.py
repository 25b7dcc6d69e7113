"""Attacks on readers of replies: what a model may write to end a run, slow it down, or make it look well.

    python scripts/attacks/replies.py [words of an attack's name]

Runs are real ones in this process (`run_and_print`), models are real servers on 127.0.0.1 or the scripted one.
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
    """A chat server that says `text`, or what `text` returns for the last message."""

    def __init__(self, text: str | Callable[[str], str]) -> None:
        said = text if callable(text) else lambda message: text
        self.asked = 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.asked += 1
                reply = {"content": said(body["messages"][-1]["content"])}
                usage = {"prompt_tokens": 5, "completion_tokens": 5}
                answer = json.dumps({"choices": [{"message": reply, "finish_reason": "stop"}], "usage": usage})
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

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


def tried(folder: Path, *overrides: str) -> tuple[str, str]:
    """Return how a run ended (finished, or the name of its exception), and its output or error message."""
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.run_job import run_and_print

    shown = io.StringIO()
    all_ = [*overrides, f"output_root={folder}"]
    try:
        with contextlib.redirect_stdout(shown):
            run_and_print(Experiment(compose(*all_), all_))
    except Exception as error:  # what it is, is the question
        return type(error).__name__, str(error)
    return "finished", shown.getvalue()


def run_folder(root: Path) -> Path:
    [folder] = {path.parent for path in root.rglob("config.yaml")}
    return folder


def calls_of(root: Path) -> list[dict[str, Any]]:
    from llmrl.llms.call_log import read_calls

    return list(read_calls(run_folder(root) / "llm_calls.jsonl"))


def writable(root: Path) -> bool:
    """Return whether all text files of a run are UTF-8 without surrogates, escaped or not."""
    for path in run_folder(root).rglob("*.json*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                json.dumps(json.loads(line), ensure_ascii=False).encode()
    return True


ODD = {
    "half a surrogate pair in a JSON escape": '{"reflection": "\\ud800", "action": "\\udc00", "plan": "\\ud800"}',
    "a number of 6,000 digits": f'{{"action": {HUGE}, "params": [{HUGE}], "plan": {HUGE}, "reflection": ""}}',
    "6,000 digits in a string": f'{{"action": "{HUGE}", "params": ["{HUGE}"], "plan": ["{HUGE}"], "reflection": "x"}}',
    "100,000 brackets": '{"action": ' + "[" * 100_000,
    "900 closed brackets": '{"reflection": "x", "action": ' + "[" * 900 + "]" * 900 + "}",
    "exponents beyond every float": '{"action": 1e999999, "params": [1e999999, -1e999999], "reflection": "x"}',
    "NUL and escape characters": '{"reflection": "\\u0000\\u001b[2J", "action": "\\u0000"}\x00\x1b[2J',
}  # fmt: skip


def odd_everywhere(text: str) -> Callable[[Path], tuple[bool, str]]:
    """Send the same invalid reply to a principal, a search, a player and a teacher, each run twice over one cache."""

    def trial(folder: Path) -> tuple[bool, str]:
        ends = []
        with Server(text) as server:
            for name, overrides in (("design", GAME), ("search", SEARCH), ("play", PLAY), ("learn", ROOMS)):
                short = {"design": "design.steps=1", "search": "search.iterations=1", "play": "play.episodes=1"}
                more = [short[name]] if name in short else ["learn.env_steps=20"]
                command = (*overrides, *more, *server.model, "llm.max_invalid=null")
                end, said = tried(folder / name, *command)
                ends.append(end if end == "finished" else f"{name}: {end} {said[:60]}")
                if end == "finished":
                    calls = calls_of(folder / name)
                    ends += [] if calls and all(call["valid"] is False for call in calls) else [f"{name}: not logged"]
                    writable(folder / name)
        return set(ends) == {"finished"}, ", ".join(sorted(set(ends)))

    return trial


for _name, _text in ODD.items():
    attack(f"{_name}, to a principal, a search, a player and a teacher", "invalid replies, all runs go on")(
        odd_everywhere(_text)
    )


@attack("half a pair in the reflection and the lesson of a good reply", "cleaned: remembered, sent and written")
def _(folder: Path) -> tuple[bool, str]:
    good = json.dumps({"reflection": "\ud800", "action": 0, "lesson": "keep \udfff"})
    with Server(good) as server:
        game = ("env=cartpole", "env.n_envs=1", "env.horizon=4", "agent=llm_player", "agent.lessons=1")
        end, said = tried(folder, *game, "play.episodes=3", *server.model)
    valid = [call["valid"] for call in calls_of(folder)]
    return end == "finished" and all(valid) and writable(folder), f"{end} {said[:60] if end != 'finished' else ''}"


@attack("half a pair in the reasons of a good proposal", "cleaned: in proposals.jsonl")
def _(folder: Path) -> tuple[bool, str]:
    with Server(json.dumps({"reasoning": "\ud800", "params": list(range(10))})) as server:
        end, said = tried(folder, *SEARCH, *server.model, "search.iterations=2")
    return end == "finished" and writable(folder), f"{end} {said[:60] if end != 'finished' else ''}"


def readers() -> dict[str, Callable[[str], object]]:
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


def slow(text: str) -> Callable[[Path], tuple[bool, str]]:
    def trial(folder: Path) -> tuple[bool, str]:
        from llmrl.llms.invalid_reply import InvalidReply

        worst, which = 0.0, ""
        for name, parse in readers().items():
            start = time.process_time()
            with contextlib.suppress(InvalidReply):
                parse(text)
            took = time.process_time() - start
            worst, which = max((worst, which), (took, name))
        return worst < 1.0, f"at most {worst:.2f} s of processor ({which})"

    return trial


SLOW = {
    "29,000 digits and a letter": "params[0]: " + "1" * 29_000 + "x",
    "a list of 29,000 digits and a letter": "[" + "1" * 29_000 + "x]",
    "29,000 digits after a point": "params[0]: 1." + "1" * 29_000 + "x",
    "thoughts that begin 5,000 times": "<think>" * 5000,
    "20 MB of opening braces": '{"a":' * 4_000_000,
    "400 open lists before 14,000 numbers": '{"params":[' * 400 + "1," * 14_000,
    "10,000 strings that never end": '{"a":"' * 10_000,
    "2,000 rows of a table": "params[0]: 1; f(params): 2\n" * 2000 + " " * 9000,
    "1,000 spaces between everything": ("params" + " " * 1000 + "[") * 30,
}
for _name, _text in SLOW.items():
    attack(_name, "read or invalid within a second")(slow(_text))


@attack("a cache entry of before, with half a pair in it", "cleaned when it is read")
def _(folder: Path) -> tuple[bool, str]:
    with Server("nothing") as server:
        first = tried(folder, *GAME, *server.model, "design.steps=1")
        for path in (folder / "llm_cache").rglob("*.json"):
            entry = json.loads(path.read_text())
            entry["reply"]["text"] = ["\ud800 lone"]
            path.write_text(json.dumps(entry))
        second = tried(folder, *GAME, *server.model, "design.steps=1", "rerun=true")
    return first[0] == second[
        0
    ] == "finished", f"{first[0]}, then {second[0]} {second[1][:60] if second[0] != 'finished' else ''}"


@attack("the reader itself is killed while it reads a paid reply", "the reply is in the log")
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
        ended = subprocess.run([sys.executable, "-c", program, url, str(log)], capture_output=True)
    calls = list(read_calls(log)) if log.exists() else []
    kept = [call["reply"] for call in calls if "reply" in call]
    return kept == ["paid for"] and CallLog(log).spent_before.calls == 1, f"exit {ended.returncode}, log: {kept}"


def hopeless(*overrides: str) -> Callable[[Path], tuple[bool, str]]:
    """Run against a model without valid replies: the run ends, ends again, and continues if the limit permits it."""

    def trial(folder: Path) -> tuple[bool, str]:
        with Server("I would rather talk about \x1b[2J the weather \u202e.") as server:
            command = (*overrides, *server.model)
            first, said = tried(folder, *command)
            paid = server.asked
            again, _ = tried(folder, *command)
            free = server.asked == paid
            allowed, shown = tried(folder, *command, "llm.max_invalid=null")
        quoted = "weather" in said and "\x1b" not in said and "\u202e" not in said
        warned = "NO REPLY OF THE MODEL WAS VALID" in shown
        held = first == again == "TooManyInvalidReplies" and quoted and free and allowed == "finished" and warned
        return held, f"{first} after {paid} calls, again {again} for {'nothing' if free else 'money'}, then {allowed}"

    return trial


attack("a teacher that understands nothing", "the run ends, resumable, with what it could not read")(hopeless(*ROOMS))
attack("a principal that understands nothing", "the same")(hopeless(*GAME, "design.steps=8"))
attack("a search that understands nothing", "the same")(hopeless(*SEARCH, "search.iterations=8"))
attack("a player that understands nothing", "the same")(hopeless(*PLAY))


@attack("a teacher that was not understood, allowed to go on", "no fallback in plans.json or in the state; asked again")
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        end, _ = tried(folder, *ROOMS, *server.model, "llm.max_invalid=null", "learn.env_steps=200")
        asked = server.asked
    run = run_folder(folder)
    plans = json.loads((run / "plans.json").read_text())["plans"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "teacher/asked" in row][-1]
    return (
        end == "finished" and plans == {} and last["teacher/asked"] > last["teacher/states"],
        f"plans.json {plans}, {last['teacher/states']:.0f} states, {last['teacher/asked']:.0f} times, {asked} calls",
    )


@attack("a teacher that says nothing at first, and then well", "its plans take the place of the fallback")
def _(folder: Path) -> tuple[bool, str]:
    good = json.dumps({"reasoning": "", "plan": [{"skill": "explore", "object": ""}]})
    calm = {"left": 16}

    def said(message: str) -> str:
        calm["left"] -= 1
        return "?" if calm["left"] >= 0 else good

    with Server(said) as server:
        end, _ = tried(folder, *ROOMS, *server.model, "llm.max_invalid=null", "learn.env_steps=200")
    plans = json.loads((run_folder(folder) / "plans.json").read_text())["plans"]
    return end == "finished" and len(plans) > 0, f"{end}, {len(plans)} states have plans"


@attack("three replies, none of them valid", "finished, and the closing table says so loudly")
def _(folder: Path) -> tuple[bool, str]:
    end, shown = tried(folder, *GAME, "llm=scripted", "llm.malformed=1", "design.steps=2")
    return (
        end == "finished" and "NO REPLY OF THE MODEL WAS VALID" in shown,
        f"{end}, warned: {'WARNING' in shown}",
    )


@attack("every second reply invalid, repaired every time", "no end: half is allowed")
def _(folder: Path) -> tuple[bool, str]:
    numbers = {"n": 0}

    def said(message: str) -> str:
        numbers["n"] += 1
        return "?" if numbers["n"] % 2 else '{"reflection": "x", "action": 0}'

    with Server(said) as server:
        game = ("env=cartpole", "env.n_envs=1", "env.horizon=8", "agent=llm_player", "play.episodes=2")
        end, text = tried(folder, *game, *server.model, "llm.limits.concurrency=1")
    share = [call["valid"] for call in calls_of(folder)]
    return (
        end == "finished",
        f"{end}, {share.count(False)} of {len(share)} invalid {text[:80] if end != 'finished' else ''}",
    )


@attack("a model that fails after a good beginning, over a resume", "the share goes on counting from the checkpoint")
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        limit = "llm.max_invalid.min_replies=14"
        short = (*GAME, *server.model, limit, "design.steps=20", "checkpoint_seconds=0")
        first, said = tried(folder, *short, "llm.budget.calls=9")
        second, said = tried(folder, *short)
    return (first, second) == (
        "BudgetExhausted",
        "TooManyInvalidReplies",
    ) and "14 of 14" in said, f"{first}, {second}: {said[:40]}"


@attack("the limit as an override", "the same run folder")
def _(folder: Path) -> tuple[bool, str]:
    for more in ("llm.max_invalid=null", "llm.max_invalid.share=0.9", "llm.max_invalid.min_replies=3"):
        tried(folder, *GAME, "llm=scripted", "design.steps=1", more)
    found = {path.parent for path in folder.rglob("config.yaml")}
    return len(found) == 1, f"{len(found)} folder(s)"


@attack("a replay of a run whose replies could not be read", "the same replies, verdicts and end")
def _(folder: Path) -> tuple[bool, str]:
    with Server("?") as server:
        tried(folder / "a", *GAME, *server.model, "design.steps=2")
    calls = run_folder(folder / "a")
    end, said = tried(folder / "b", *GAME, "llm=replay", f"llm.calls='{calls}'", "design.steps=2")
    both = [[(c["reply"], c["valid"]) for c in calls_of(folder / which)] for which in "ab"]
    return end == "finished" and both[0] == both[
        1
    ], f"{end}, {len(both[1])} verdicts {said[:60] if end != 'finished' else ''}"


@attack("a log with lines of no JSON, verdicts of no call, and 6,000 digits", "read as far as it can be")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.analysis.llm_calls import read_run_totals

    tried(folder, *GAME, "llm=scripted", "design.steps=2")
    log = run_folder(folder) / "llm_calls.jsonl"
    rubbish = (
        f'{{"hash": {HUGE}}}\n{"[" * 50_000}\n{{"parsed_call": 1}}\n{{"parsed_call": "x", "time": {HUGE}}}\nnull\n'
    )
    log.write_text(rubbish + log.read_text() + '{"parsed_call": "cut sh')
    logging.disable(logging.CRITICAL)
    total = read_run_totals(run_folder(folder))
    end, _ = tried(folder, *GAME, "llm=scripted", "design.steps=2", "llm.max_invalid=null")
    logging.disable(logging.NOTSET)
    return (total.calls, total.validated, total.invalid, end) == (2, 2, 0, "finished"), f"{total.calls} calls, {end}"


@attack("replies in training that cannot be read", "no reward, counted as a group, no error")
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
    held = all(a.vector is None and a.error for a in attempts) and metrics["train/skipped_groups"] == 1
    return held, f"unread groups {metrics['train/skipped_groups']:.0f}, valid {metrics['train/valid_rate']:.0f}"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main("Replies")
