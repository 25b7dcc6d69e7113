"""Invalid records in run folders: clear errors, no changes, and reruns that ignore them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compute_log_position
from llmrl.core.errors import CheckpointError, LlmrlError, RunFolderError
from llmrl.core.plain_data import MAX_RECORD_BYTES, parse_record, parse_value, read_json_object
from llmrl.results.run_records import read_run
from llmrl.run import ownership, queued, status
from llmrl.run.artifacts import read_config
from llmrl.run.files import read_json_lines
from llmrl.run.metrics import FILE_NAME, read_metric_tables, read_metrics
from llmrl.run.run import Run

CONFIG: dict[str, Any] = {"env": "toy"}


def open_run(root: Path, **options: Any) -> Run:
    return Run.open(root, "toys", {**CONFIG, **options}, [], 0)


def finish(root: Path) -> Path:
    with open_run(root) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.result = 1.0
    return run.folder


def as_directory(path: Path, content: dict[str, Any]) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside").write_text("x")


def transform(text: Callable[[dict[str, Any]], bytes]) -> Callable[[Path, dict[str, Any]], None]:
    return lambda path, content: (path.unlink(missing_ok=True), path.write_bytes(text(content)), None)[2]


def changed(key: str, value: Any) -> Callable[[Path, dict[str, Any]], None]:
    return transform(lambda content: json.dumps({**content, key: value}).encode())


def remove_key(key: str) -> Callable[[Path, dict[str, Any]], None]:
    return transform(lambda content: json.dumps({k: v for k, v in content.items() if k != key}).encode())


ANY_RECORD: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "no JSON": transform(lambda content: b"{half"),
    "a list": transform(lambda content: b"[]"),
    "null": transform(lambda content: b"null"),
    "a number": transform(lambda content: b"7"),
    "not UTF-8": transform(lambda content: b'{"host": "\xff\xfe"}'),
    "zeros of a lost write": transform(lambda content: bytes(300)),
    "nested without end": transform(lambda content: b"[" * 100_000),
    "a directory": as_directory,
    "a pipe": lambda path, content: (path.unlink(missing_ok=True), os.mkfifo(path), None)[2],
    "a number as a text": changed("pid", "17"),
    "a truth value as a number": changed("attempt", True),
    "a list as a text": changed("host", ["here"]),
    "null as a text": changed("job_id", None),
    "a number without end": changed("attempt", 10**400),
    "a missing field": remove_key("pid"),
    "a link in a circle": lambda path, content: (path.unlink(missing_ok=True), path.symlink_to(path.name), None)[2],
}
STATUS = {
    **ANY_RECORD,
    "an unknown state": changed("state", "resting"),
    "a result that is a text": changed("result", "0.5"),
    "progress that is a list": changed("progress", [1, 2]),
    "nothing but an object": transform(lambda content: b"{}"),
    "a newer llmrl's": changed("format", 99),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", STATUS)
def test_odd_status_is_reported(tmp_path: Path, damage: str) -> None:
    folder = finish(tmp_path)
    path = folder / status.FILE_NAME
    STATUS[damage](path, json.loads(path.read_text()))
    with pytest.raises(RunFolderError) as error:
        open_run(tmp_path)
    assert str(folder) in str(error.value) and ("rerun=true" in str(error.value) or "newer llmrl" in str(error.value))
    assert read_run(folder).state == "unreadable"
    with open_run(tmp_path, rerun=True) as run:
        assert run.state == "new"
    assert os.path.lexists(folder / "backup_1" / status.FILE_NAME) and read_run(folder).state == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ANY_RECORD)
def test_odd_owner_is_reported(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError), open_run(tmp_path) as run:
        record = json.loads((run.folder / ownership.FILE_NAME).read_text())
        raise ZeroDivisionError
    path = run.folder / ownership.FILE_NAME
    ANY_RECORD[damage](path, record)
    monkeypatch.setattr(ownership, "_EMPTY_FILE_GRACE_S", 0.0)  # nobody is writing it
    for rerun in (False, True):
        with pytest.raises(RunFolderError, match=r"owner\.json") as error:
            open_run(tmp_path, rerun=rerun)
        assert str(path) in str(error.value) and os.path.lexists(path)


def test_odd_owner_of_active_run_is_unreadable(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        path = run.folder / ownership.FILE_NAME
        content = path.read_text()
        path.write_text("[1, 2]")
        record = read_run(run.folder)
        assert record.state == "unreadable" and ownership.FILE_NAME in record.error
        with pytest.raises(RunFolderError, match="folder"):
            run.checkpoint(1, {})
        path.write_text(content)


def test_dangling_link_is_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_EMPTY_FILE_GRACE_S", 0.0)
    (tmp_path / ownership.FILE_NAME).symlink_to("nowhere")
    with pytest.raises(RunFolderError):
        ownership.Ownership(tmp_path)
    assert os.path.lexists(tmp_path / ownership.FILE_NAME)


@pytest.mark.parametrize("damage", ANY_RECORD)
def test_odd_queue_record_affects_single_run(tmp_path: Path, damage: str) -> None:
    folder = finish(tmp_path)
    content = queued.LaunchRecord(
        "llmrl.sweeps.backends.local.Local", 0, "", "m", 1, "1", "h", "s", "", "", "", 0.0, "", []
    )
    content.write(folder)
    if damage != "a truth value as a number":
        ANY_RECORD[damage](folder / queued.FILE_NAME, json.loads((folder / queued.FILE_NAME).read_text()))
        assert read_run(folder).state == "unreadable"


def test_endless_file_is_read_partially(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.symlink_to("/dev/zero")
    with pytest.raises(RunFolderError, match="symbolic link"):
        status.read_status(tmp_path)
    path.unlink()
    path.touch()
    os.truncate(path, MAX_RECORD_BYTES + 1)
    with pytest.raises(RunFolderError, match=r"status\.json.*64 MiB"):
        status.read_status(tmp_path)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda children: st.lists(
    children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3), max_leaves=8))  # fmt: skip
def test_plain_values_match_type_hints(value: Any) -> None:
    for hint in (int, float, str, bool, list[str], dict[str, list[str]], float | None):
        try:
            assert parse_value(value, hint, "thing") == value
        except ValueError as error:
            assert "thing is" in str(error)


@dataclass
class Part:
    size: float
    kind: Literal["small", "large"]


@dataclass
class CompleteRecord:
    name: str
    parts: list[Part]
    counts: dict[str, int]
    rest: Any
    last: Part | None = None


COMPLETE: dict[str, Any] = {
    "name": "one",
    "parts": [{"size": 2, "kind": "small"}, {"size": 0.5, "kind": "large"}],
    "counts": {"a": (1 << 63) - 1, "b": 1 - (1 << 63)},
    "rest": {"whatever": [None]},
    "last": None,
}


def test_nested_records_parse() -> None:
    parts = [Part(2, "small"), Part(0.5, "large")]
    reference = CompleteRecord("one", parts, {"a": (1 << 63) - 1, "b": 1 - (1 << 63)}, {"whatever": [None]})
    assert parse_record(CompleteRecord, {**COMPLETE, "newer": 1}) == reference
    assert parse_record(CompleteRecord, COMPLETE | {"last": {"size": 1.5, "kind": "large"}}).last == Part(1.5, "large")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": 1}, "name is 1,"),
        ({"name": None}, "name is None,"),
        ({"parts": 0}, "parts is 0,"),
        ({"parts": [0]}, "parts is 0,"),
        ({"parts": [{"size": 1}]}, "no kind"),
        ({"parts": [{"size": True, "kind": "small"}]}, "size is True,"),
        ({"parts": [{"size": math.nan, "kind": "small"}]}, "size is nan,"),
        ({"parts": [{"size": 1 << 63, "kind": "small"}]}, f"size is {1 << 63},"),
        ({"parts": [{"size": 1, "kind": "other"}]}, "kind is 'other';"),
        ({"parts": [{"size": 1, "kind": 1}]}, "kind is 1;"),
        ({"counts": {"a": 1.0}}, "counts is 1.0,"),
        ({"counts": {"a": -(1 << 63)}}, f"counts is {-(1 << 63)},"),
        ({"counts": ["x" * 56]}, f"counts is ['{'x' * 56}'],"),
        ({"counts": ["x" * 57]}, f"counts is ['{'x' * 55}...,"),
        ({"last": "x"}, "last is 'x',"),
    ],
)
def test_parse_error_states_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_record(CompleteRecord, COMPLETE | changed)


def test_missing_field_is_reported_despite_default() -> None:
    with pytest.raises(ValueError, match=r"no last$"):
        parse_record(CompleteRecord, {name: value for name, value in COMPLETE.items() if name != "last"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1, 2]", "[1, 2]"),
        (b'{"a": "\xff"}', "UTF-8 (byte 7)"),
        (b"[" * 100_000, "nested"),
        (b"{half", "line 1 column 2"),
        (None, "directory"),
    ],
)
def test_non_object_file_explains_error(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "record.json"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_json_object(path)


def test_object_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(FileNotFoundError):
        read_json_object(path)
    path.write_text('{"a": [1, "\u00fc"]}', encoding="utf-8")
    assert read_json_object(path) == {"a": [1, "\u00fc"]}
    path.write_bytes(b"{}" + b" " * (MAX_RECORD_BYTES - 2))
    assert read_json_object(path) == {}, "as large as can be"
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(ValueError, match="symbolic link"):
        read_json_object(path)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_no_record(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    try:
        assert isinstance(read_json_object(path), dict)
    except ValueError as error:
        assert str(error)


ROW = b'{"kind": "update", "x": "updates", "updates": 1, "loss": 0.5, "time/unix": 1.0, "time/elapsed_s": 1.0}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b'{"kind": "upd\xff"}\n', "line 1 .*UTF-8"),
        (ROW + b"\x00\x01\x02\n", "line 2 .*JSON"),
        (ROW + b"[1, 2]\n", "line 2 .*JSON"),
        (ROW + b"[" * 100_000 + b"\n", "line 2 .*JSON"),
        (ROW.replace(b"0.5", b'"much"'), "'much'"),
        (ROW.replace(b"0.5", b"[0.5]"), "loss is "),
        (ROW.replace(b'"x": "updates"', b'"x": "loss"'), "kind or x"),
    ],
)
def test_odd_rows_are_reported_with_line(tmp_path: Path, rows: bytes, message: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(rows)
    with pytest.raises(RunFolderError, match=message):
        read_metric_tables(tmp_path / FILE_NAME)
    run = open_run(tmp_path / "outputs")
    run.checkpoint(1, {})
    run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    (run.folder / FILE_NAME).write_bytes(rows)
    for name in run.folder.glob("checkpoints/*"):
        name.unlink()
    from llmrl.run.checkpoints import CheckpointStore
    from llmrl.run.config_hash import config_hash

    store = CheckpointStore(run.folder / "checkpoints", config_hash=config_hash(CONFIG))
    store.save(1, {"run": {"metrics": compute_log_position(run.folder / FILE_NAME)}})
    with pytest.raises(RunFolderError, match=r"rerun=true|line \d"):
        open_run(tmp_path / "outputs")
    with open_run(tmp_path / "outputs", rerun=True) as rerun:
        assert rerun.state == "new"


def test_missing_rows_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=f"{FILE_NAME}.*No such"):
        read_metrics(tmp_path / FILE_NAME)


@pytest.mark.parametrize("text", [b"", b"[1]", b"a: [", b"\xff\xfe", b"null"])
def test_unreadable_config_is_reported(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        read_config(tmp_path, ())
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        read_config(tmp_path, ())


@pytest.mark.parametrize("data", [b"", b"junk", b"\x80\x04."])
def test_invalid_checkpoint_with_valid_digest_is_reported(tmp_path: Path, data: bytes) -> None:
    import hashlib

    from llmrl.run.checkpoints import MAGIC, CheckpointStore

    path = tmp_path / "checkpoint_000000001.pt"
    path.write_bytes(data + MAGIC + hashlib.sha256(data).digest())
    with pytest.raises(CheckpointError, match="checkpoint"):
        CheckpointStore(tmp_path).load_newest()


def test_reports_skip_damaged_files(tmp_path: Path) -> None:
    from llmrl.analysis.aggregate import compute_report
    from llmrl.analysis.report import ReportSettings
    from run_folders import write_run

    folders = [write_run(tmp_path, "game", ["principal=ucb"], seed, [1.0, 2.0]) for seed in range(6)]
    (folders[1] / "status.json").write_bytes(b"\xff")
    (folders[2] / "metrics.jsonl").write_bytes(b'{"kind": "\xff"}\n' * 3)
    for folder, text in zip(folders[3:], (b"\xff", b"[]", b'{"references": {"contexts": 7}}'), strict=True):
        (folder / "summary.json").write_bytes(text)
        (folder / "results.json").write_bytes(text.replace(b"references", b"per_episode"))
    try:
        report = compute_report(tmp_path, ReportSettings(curves=("other",)))
    except LlmrlError as error:  # pragma: no cover
        pytest.fail(f"one damaged run ended the report: {error}")
    assert report.n_scored_runs >= 4
    assert {record.state for record in report.excluded} >= {"unreadable"}


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe"])
def test_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n{")
    with pytest.raises(RunFolderError, match=r"lines\.jsonl: line 2"):
        read_json_lines(path)
