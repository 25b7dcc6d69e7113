"""What servers, files and other processes say reaches a terminal as text: no cursor moves, no line is faked."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import threading
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st

from llmrl.cli import llm, sweep, train
from llmrl.core.errors import ConfigError, LLMError, short_error
from llmrl.display import console, run_summary, sweeps
from llmrl.run.folder import split_overrides
from llmrl.run.log_file import LogFile
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.status import Status
from llmrl.sweeps.backends.local import Local
from llmrl.sweeps.backends.protocol import Hardware, Job, JobOutcome, Pack
from llmrl.sweeps.jobs import describe, write_log_header

FAKE = "\x1b[2K\x1b[1A\rfinished, result 1\x9b0m\u202egnp.txt\x07 [bold]b[/bold] :smiley: \u2066x\ud800"
"""Erases its own line, colours, rings, turns the reading direction; rich would read the rest as markup."""


def obeyed(text: str) -> list[str]:
    """What of a text a terminal would obey, or could not be encoded."""
    bad = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    return bad + [c for c in text if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI")]


def test_the_text_is_what_it_should_be():
    assert len(obeyed(FAKE)) >= 7


@given(st.text())
def test_nothing_is_obeyed_and_the_rest_stays(text):
    from llmrl.core.printable import printable

    shown = printable(text)
    assert not obeyed(shown) and printable(shown) == shown
    shown.encode()
    assert "\n" not in printable(text, lines=False) and "\t" not in printable(text, lines=False)
    told = [c for c in text if unicodedata.category(c)[0] in "LMNPSZ" and unicodedata.category(c) not in ("Zl", "Zp")]
    left = iter(shown)
    assert all(c in left for c in told), "every letter is there still, in its place"
    assert len(told) < len(text) or shown == text


@pytest.mark.parametrize("text", ["plain", "Grüße, 数学 ± … “x” 🙂", "می‌خواهم", "👩‍🔬", "two\nlines\tand a tab"])
def test_writing_of_all_kinds_stays(text):
    from llmrl.core.printable import printable

    assert printable(text) == text


@pytest.mark.parametrize("kind", [LLMError, ConfigError])
def test_errors_that_are_meant_to_be_read(kind):
    assert not obeyed(str(kind(FAKE))) and "finished, result 1" in str(kind(FAKE))
    assert not obeyed(short_error(kind(FAKE))) and not obeyed(short_error(ValueError(FAKE)))
    assert str(kind("one\ntwo")) == "one\ntwo"


@pytest.fixture
def server():
    """Answers every request with an error whose body is `FAKE`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = FAKE.encode("utf-8", "replace")
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_the_error_body_of_a_server(server, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        llm.main(["check", "llm=openai_compatible", f"llm.base_url={server}", "llm.model=m", "llm.retry.retries=0"])
    said = capsys.readouterr()
    assert "gave HTTP 400" in said.err and "finished, result 1" in said.err
    assert not obeyed(said.err + said.out)


@pytest.mark.parametrize("value", ["${nope:\x1b[2J}", "${env.\x1b[2K\r}", "\x1b]0;x\x07\u202e"])
def test_what_libraries_say_of_an_option_file(value, tmp_path, capsys, monkeypatch):
    """Hydra, OmegaConf and Python's tracebacks write to standard error themselves."""
    file = tmp_path / "experiment" / "nice.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\nseed: {json.dumps(value)}\n")
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--config-dir", str(tmp_path), "experiment=nice", "dry_run=true"])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit):
        train.main()
    said = capsys.readouterr()
    assert said.err and not obeyed(said.err + said.out)


_OWN = ("overrides", "error", "llm", "env", "host")


def recorded(root: Path, error: str = FAKE) -> Path:
    folder = root / "name" / "run" / "s0"
    folder.mkdir(parents=True)
    overrides = ["agent=[red]x[/red]", "env=\x1b[31mx"]
    status = Status(state="failed", attempt=1, overrides=overrides, error=error, llm=FAKE, env=FAKE, host=FAKE)
    Status(state="failed", attempt=1).write(folder)
    own = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**own, **{key: vars(status)[key] for key in own if key in _OWN}}))
    return folder


def test_a_stored_status_in_a_table(tmp_path, capsys):
    recorded(tmp_path)
    assert sweep.status(sweep.parser().parse_args(["status", str(tmp_path)])) == 1
    said = capsys.readouterr().out
    assert not obeyed(said) and "[bold]" in said and "[red]x[/red]" in said and ":smiley:" in said


def test_the_logs_of_a_run(tmp_path, capsys):
    folder = recorded(tmp_path)
    for name in ("run.log", "traceback.txt"):
        (folder / name).write_bytes(b"one\r\x1b[1Atwo\x9b\n" + FAKE.encode("utf-8", "replace") + b"\nlast\n")
    assert sweep.logs(sweep.parser().parse_args(["logs", str(folder)])) == 0
    said = capsys.readouterr().out
    assert not obeyed(said) and said.count("\nlast\n") == 2 and "one\\x0d" in said


def test_tables_titles_and_lines(capsys):
    console.print_table(FAKE, [FAKE, "b"], [[FAKE, "[link=x]y[/link]"]])
    console.print_rows(FAKE, [(FAKE, FAKE)])
    console.terminal().print(FAKE, soft_wrap=True)
    said = capsys.readouterr().out
    assert not obeyed(said) and "[link=x]" in said and "smiley" in said and said.count("\\x1b") >= 6


def test_what_is_logged(tmp_path):
    from llmrl.core.printable import print_records

    before, log = logging.getLogRecordFactory(), logging.getLogger("llmrl.test")
    file, shown = LogFile(tmp_path), []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    log.addHandler(handler)
    try:
        print_records()
        log.warning("the server says %s", FAKE)
        try:
            # Without the half of a pair, which pytest would report between its processes.
            raise ValueError(FAKE.rstrip("\ud800"))
        except ValueError:
            logging.setLogRecordFactory(before)
            log.exception("a defect")
    finally:
        logging.setLogRecordFactory(before)
        log.removeHandler(handler)
        file.close()
    written = (tmp_path / "run.log").read_text()
    assert not obeyed(written) and written.count("finished, result 1") == 2
    assert not obeyed(shown[0]) and "finished, result 1" in shown[0]


def job(folder: Path, overrides: list[str]) -> Job:
    hardware = Hardware(Local(), "cpu", "highest", 1, 1, 1.0, 0, 1)
    made = Job({"seed": 0, "name": "x"}, overrides, hardware, 1, [])
    made.__dict__["folder"] = folder
    return made


def test_the_line_of_a_run_that_has_ended(capsys):
    outcome = JobOutcome(
        job(Path("x"), []), Path("\x1b[1A"), "failed", error="\nfinished after 3 s, result 9 (outputs)\x1b[K"
    )
    assert not obeyed(describe(outcome)) and "\n" not in describe(outcome)
    progress = ProgressBar(1, "runs", "sweep", terminal=True)
    with progress:
        progress.say(f"{FAKE}XYZ")
    said = capsys.readouterr().err
    assert "XYZ" in said and FAKE[:9] not in said and "\u202e" not in said


NASTY = 'it\'s $(touch x) `y`; rm -rf ~ & "z" #'
"""Part of a folder's name, or of a value, that a shell must not read as anything else."""


def commands(said: str, name: str) -> list[list[str]]:
    lines = [line[line.index(name) :] for line in said.splitlines() if name in line]
    return [shlex.split(line) for line in lines]


def test_printed_commands_are_quoted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / NASTY / "run" / "s0"
    folder.mkdir(parents=True)
    sweeps.print_sweep([JobOutcome(job(folder, []), folder, "failed", error="x")])
    said = capsys.readouterr().out
    assert ["llmrl-sweep", "logs", f"{NASTY}/run/s0"] in commands(said, "llmrl-sweep")
    for name in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        assert [*name.split(), NASTY] in commands(said, name), said
    run = SimpleNamespace(
        folder=folder, summary={}, result=None, config={"play": {"videos": 2}, "loggers": {"tensorboard": {}}}
    )
    run_summary.print_summary(run)
    said = capsys.readouterr().out
    assert commands(said, "llmrl-evaluate") == [["llmrl-evaluate", str(folder), "--video"]]
    assert commands(said, "tensorboard") == [["tensorboard", "--logdir", str(tmp_path / NASTY)]]
    run_summary.print_skipped(run)
    said = capsys.readouterr().out
    assert shlex.join(["llmrl-evaluate", f"{NASTY}/run/s0", "--video"]) in said


def test_the_command_in_a_jobs_log_is_quoted(tmp_path):
    overrides = [f"prompts={NASTY}", "a=b"]
    write_log_header(tmp_path / "log", Pack((job(tmp_path, overrides),)))
    first = (tmp_path / "log").read_text().splitlines()[0]
    assert shlex.split(first) == ["llmrl-train", *overrides] and split_overrides(overrides)["a"] == "b"


@given(st.text("ab'\\\" $=,{}()[]é#;", max_size=12))
def test_the_command_that_uses_an_adapter_is_quoted_for_both(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from llmrl.display.finetune_summary import use_of

    config = {"llm": {"model": value}, "dataset": {"iterations": 7, "episodes": 3}}
    words = shlex.split(use_of(config, f"x/{value}", ["env=maze", "prompts=$(y)"]))
    typed = dict(word.partition("=")[::2] for word in words[1:])
    assert typed["prompts"] == "$(y)"
    for key, expected in (("llm.model", value), ("llm.adapter", f"x/{value}")):
        [override] = OverridesParser.create().parse_overrides([f"{key}={typed[key]}"])
        found = override.value()
        assert getattr(found, "text", found) == expected
