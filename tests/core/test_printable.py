"""Texts of servers, files and other processes reach a terminal without control sequences or forged lines."""

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
from llmrl.core.errors import ConfigError, LLMError, summarize_error
from llmrl.display import console, results, sweeps
from llmrl.run.folder import split_overrides
from llmrl.run.log_file import LogFile
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.status import Status
from llmrl.sweeps.backends.local import Local
from llmrl.sweeps.backends.protocol import Hardware, Job, JobBatch, JobOutcome
from llmrl.sweeps.jobs import describe_outcome, write_log_header

FAKE = "\x1b[2K\x1b[1A\rfinished, result 1\x9b0m\u202egnp.txt\x07 [bold]b[/bold] :smiley: \u2066x\ud800"
"""Erases its own line, colors, rings, turns the reading direction; rich would read the rest as markup."""


def find_sequences(text: str) -> list[str]:
    """Return the parts of a text that a terminal would interpret, or that cannot be encoded."""
    bad = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    return bad + [c for c in text if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI")]


def test_text_is_escaped():
    assert len(find_sequences(FAKE)) >= 7


@given(st.text())
def test_control_sequences_are_escaped(text):
    from llmrl.core.printable import printable

    output = printable(text)
    assert not find_sequences(output) and printable(output) == output
    output.encode()
    assert "\n" not in printable(text, multiline=False) and "\t" not in printable(text, multiline=False)
    visible = [
        c for c in text if unicodedata.category(c)[0] in "LMNPSZ" and unicodedata.category(c) not in ("Zl", "Zp")
    ]
    remaining = iter(output)
    assert all(c in remaining for c in visible), "every letter is there still, in its place"
    assert len(visible) < len(text) or output == text


@pytest.mark.parametrize("text", ["plain", "Grüße, 数学 ± … “x” 🙂", "می‌خواهم", "👩‍🔬", "two\nlines\tand a tab"])
def test_unicode_text_is_preserved(text):
    from llmrl.core.printable import printable

    assert printable(text) == text


@pytest.mark.parametrize("kind", [LLMError, ConfigError])
def test_user_errors(kind):
    assert not find_sequences(str(kind(FAKE))) and "finished, result 1" in str(kind(FAKE))
    assert not find_sequences(summarize_error(kind(FAKE))) and not find_sequences(summarize_error(ValueError(FAKE)))
    assert str(kind("one\ntwo")) == "one\ntwo"


@pytest.fixture
def server():
    """Serve an error with the body `FAKE` for each request."""

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


def test_server_error_body(server, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        llm.main(["check", "llm=openai_compatible", f"llm.base_url={server}", "llm.model=m", "llm.retry.retries=0"])
    terminal_text = capsys.readouterr()
    assert "HTTP 400" in terminal_text.err and "finished, result 1" in terminal_text.err
    assert not find_sequences(terminal_text.err + terminal_text.out)


@pytest.mark.parametrize("value", ["${nope:\x1b[2J}", "${env.\x1b[2K\r}", "\x1b]0;x\x07\u202e"])
def test_option_file_errors(value, tmp_path, capsys, monkeypatch):
    """Check standard error, which Hydra, OmegaConf and tracebacks of Python write themselves."""
    file = tmp_path / "experiment" / "nice.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\nseed: {json.dumps(value)}\n")
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--config-dir", str(tmp_path), "experiment=nice", "dry_run=true"])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit):
        train.main()
    terminal_text = capsys.readouterr()
    assert terminal_text.err and not find_sequences(terminal_text.err + terminal_text.out)


_FIELDS = ("overrides", "error", "llm", "env", "host")


def record_run(root: Path, error: str = FAKE) -> Path:
    folder = root / "name" / "run" / "s0"
    folder.mkdir(parents=True)
    overrides = ["agent=[red]x[/red]", "env=\x1b[31mx"]
    status = Status(state="failed", attempt=1, overrides=overrides, error=error, llm=FAKE, env=FAKE, host=FAKE)
    Status(state="failed", attempt=1).write(folder)
    stored_status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(
        json.dumps({**stored_status, **{key: vars(status)[key] for key in stored_status if key in _FIELDS}})
    )
    return folder


def test_stored_status_in_table(tmp_path, capsys):
    record_run(tmp_path)
    assert sweep.status(sweep.build_parser().parse_args(["status", str(tmp_path)])) == 1
    terminal_text = capsys.readouterr().out
    assert (
        not find_sequences(terminal_text)
        and "[bold]" in terminal_text
        and "[red]x[/red]" in terminal_text
        and ":smiley:" in terminal_text
    )


def test_run_logs(tmp_path, capsys):
    folder = record_run(tmp_path)
    for name in ("run.log", "traceback.txt"):
        (folder / name).write_bytes(b"one\r\x1b[1Atwo\x9b\n" + FAKE.encode("utf-8", "replace") + b"\nlast\n")
    assert sweep.logs(sweep.build_parser().parse_args(["logs", str(folder)])) == 0
    terminal_text = capsys.readouterr().out
    assert not find_sequences(terminal_text) and terminal_text.count("\nlast\n") == 2 and "one\\x0d" in terminal_text


def test_tables_titles_and_lines(capsys):
    console.print_table(FAKE, [FAKE, "b"], [[FAKE, "[link=x]y[/link]"]])
    console.print_fields(FAKE, [(FAKE, FAKE)])
    console.Terminal().print(FAKE, soft_wrap=True)
    terminal_text = capsys.readouterr().out
    assert (
        not find_sequences(terminal_text)
        and "[link=x]" in terminal_text
        and "smiley" in terminal_text
        and terminal_text.count("\\x1b") >= 6
    )


def test_log_records(tmp_path):
    from llmrl.core.printable import make_logs_printable

    previous_factory, log = logging.getLogRecordFactory(), logging.getLogger("llmrl.test")
    file, log_lines = LogFile(tmp_path), []
    handler = logging.Handler()
    handler.emit = lambda record: log_lines.append(record.getMessage())
    log.addHandler(handler)
    try:
        make_logs_printable()
        log.warning("the server says %s", FAKE)
        try:
            # Without the half of a pair, which pytest would report between its processes.
            raise ValueError(FAKE.rstrip("\ud800"))
        except ValueError:
            logging.setLogRecordFactory(previous_factory)
            log.exception("a defect")
    finally:
        logging.setLogRecordFactory(previous_factory)
        log.removeHandler(handler)
        file.close()
    log_text = (tmp_path / "run.log").read_text()
    assert not find_sequences(log_text) and log_text.count("finished, result 1") == 2
    assert not find_sequences(log_lines[0]) and "finished, result 1" in log_lines[0]


def job(folder: Path, overrides: list[str]) -> Job:
    hardware = Hardware(Local(), "cpu", "highest", 1, 1, 1.0, 0, 1)
    sweep_job = Job({"seed": 0, "name": "x"}, overrides, hardware, 1, [])
    sweep_job.__dict__["folder"] = folder
    return sweep_job


def test_final_run_line(capsys):
    outcome = JobOutcome(
        job(Path("x"), []), Path("\x1b[1A"), "failed", error="\nfinished after 3 s, result 9 (outputs)\x1b[K"
    )
    assert not find_sequences(describe_outcome(outcome)) and "\n" not in describe_outcome(outcome)
    progress = ProgressBar(1, "runs", "sweep", draws_bar=True)
    with progress:
        progress.print_line(f"{FAKE}XYZ")
    terminal_text = capsys.readouterr().err
    assert "XYZ" in terminal_text and FAKE[:9] not in terminal_text and "\u202e" not in terminal_text


NASTY = 'it\'s $(touch x) `y`; rm -rf ~ & "z" #'
"""Part of a folder's name, or of a value, that a shell must not read as anything else."""


def commands(terminal_text: str, name: str) -> list[list[str]]:
    lines = [line[line.index(name) :] for line in terminal_text.splitlines() if name in line]
    return [shlex.split(line) for line in lines]


def test_printed_commands_are_quoted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / NASTY / "run" / "s0"
    folder.mkdir(parents=True)
    sweeps.print_sweep([JobOutcome(job(folder, []), folder, "failed", error="x")])
    terminal_text = capsys.readouterr().out
    assert ["llmrl-sweep", "logs", f"{NASTY}/run/s0"] in commands(terminal_text, "llmrl-sweep")
    for name in ("llmrl-sweep status", "llmrl-report", "tensorboard --logdir"):
        assert [*name.split(), NASTY] in commands(terminal_text, name), terminal_text
    run = SimpleNamespace(
        folder=folder, summary={}, result=None, config={"play": {"videos": 2}, "loggers": {"tensorboard": {}}}
    )
    results.print_summary(run)
    terminal_text = capsys.readouterr().out
    assert commands(terminal_text, "llmrl-evaluate") == [["llmrl-evaluate", str(folder), "--video"]]
    assert commands(terminal_text, "tensorboard") == [["tensorboard", "--logdir", str(tmp_path / NASTY)]]


def test_job_log_command_is_quoted(tmp_path):
    overrides = [f"prompts={NASTY}", "a=b"]
    write_log_header(tmp_path / "log", JobBatch((job(tmp_path, overrides),)))
    first = (tmp_path / "log").read_text().splitlines()[0]
    assert shlex.split(first) == ["llmrl-train", *overrides] and split_overrides(overrides)["a"] == "b"


@given(st.text("ab'\\\" $=,{}()[]é#;", max_size=12))
def test_adapter_options_are_quoted(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from llmrl.finetuning.application import format_adapter_options

    words = shlex.split(format_adapter_options(value, f"x/{value}"))
    word_values = dict(word.partition("=")[::2] for word in words)
    for key, expected in (("llm.model", value), ("llm.adapter", f"x/{value}")):
        [override] = OverridesParser.create().parse_overrides([f"{key}={word_values[key]}"])
        parsed_value = override.value()
        assert getattr(parsed_value, "text", parsed_value) == expected
