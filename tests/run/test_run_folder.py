"""Hash, readable name and place of a run; one process a folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.errors import RunFolderError
from llmrl.run import owner
from llmrl.run.folder import EXCLUDED, MAX_READABLE, config_hash, readable, run_folder

LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
CONFIG = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key not in EXCLUDED),
    st.recursive(
        LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_size=5,
)


@given(CONFIG)
def test_hash_ignores_order_and_what_cannot_change_the_numbers(config: dict[str, Any]) -> None:
    digest = config_hash(config)
    assert re.fullmatch("[0-9a-f]{8}", digest)
    assert config_hash(dict(reversed(config.items()))) == digest
    assert config_hash(config | dict.fromkeys(EXCLUDED, "anything")) == digest


@given(CONFIG, LEAF)
def test_hash_sees_every_other_change(config: dict[str, Any], leaf: Any) -> None:
    assert config_hash(config | {"one key more": leaf}) != config_hash(config)
    assert config_hash({"part": config}) != config_hash(
        {"part": config | {"seed": 1}}
    )  # only top-level keys are left out


def test_hash_takes_whole_numbers_as_equal_but_not_other_kinds() -> None:
    assert config_hash({"rate": 1}) == config_hash({"rate": 1.0})
    assert len({config_hash({"rate": value}) for value in (1, True, "1", None, 1.5, [1])}) == 6
    with pytest.raises(TypeError, match=r"config\.a\[0\] is a PosixPath"):
        config_hash({"a": [Path()]})


def test_hash_stays_what_it_is() -> None:
    """Changing the hash would make every existing run a stranger."""
    assert config_hash({"env": {"_target_": "x.Y", "n": 3, "rate": 0.5}, "seed": 4}) == "91a22cc1"


@given(st.lists(st.text(max_size=40), max_size=8))
def test_readable_is_always_a_safe_folder_name(overrides: list[str]) -> None:
    text = readable(overrides)
    assert re.fullmatch(r"[A-Za-z0-9._=+,-]+", text)
    assert len(text) <= MAX_READABLE
    assert text[0] not in ".-"
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    if len(set(keys)) == len(keys):
        assert readable(overrides[::-1]) == text


def test_readable_examples() -> None:
    assert readable(["principal=ucb", "env=escape_room"]) == "env=escape_room,principal=ucb"
    assert readable([]) == readable(["seed=3", "hardware=slurm", "hardware.gpus=2", "output_root=/x"]) == "defaults"
    assert readable(["+env.x=[1, 2]", "~teacher", "llm.model='a/b'"]) == "teacher=none,env.x=1,2,llm.model=a-b"


def test_run_folder_is_found_again_under_another_spelling(tmp_path: Path) -> None:
    config = {"env": {"n": 5}}
    first = run_folder(tmp_path, "sweep", config_hash(config), ["env.n=5"], seed=2)
    assert first == tmp_path / "sweep" / f"env.n=5-{config_hash(config)}" / "seed=2"
    assert run_folder(tmp_path, "sweep", config_hash(config), ["experiment=five"], seed=2) == first
    assert run_folder(tmp_path, "sweep", config_hash(config), [], seed=3) == first.with_name("seed=3")
    assert run_folder(tmp_path, "sweep", config_hash({"env": {"n": 6}}), ["env.n=5"], seed=2) != first


@pytest.mark.parametrize("name", ["", "../elsewhere", "/elsewhere"])
def test_name_stays_inside_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="name="):
        run_folder(tmp_path, name, "", [], 0)


def test_unwritable_root_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RunFolderError, match=r"cannot write .*output_root="):
        run_folder(file / "outputs", "sweep", "", [], 0)


def _hold(folder: Path, connection: Connection) -> None:
    try:
        owner.Ownership(folder)
    except RunFolderError as error:
        connection.send(str(error))
    else:
        connection.send("held")
        time.sleep(600)


def _start_holder(folder: Path) -> tuple[Any, str]:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(folder, there), daemon=True)
    process.start()
    assert here.poll(60)
    return process, here.recv()


def test_folder_in_use_is_refused_and_free_at_once_when_its_process_is_killed(tmp_path: Path) -> None:
    process, said = _start_holder(tmp_path)
    assert said == "held"
    with pytest.raises(RunFolderError, match=f"in use by process {process.pid}"):
        owner.Ownership(tmp_path)
    os.kill(process.pid, signal.SIGKILL)  # not joined: it stays a zombie, as under a parent that does not look
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    mine = owner.Ownership(tmp_path)
    assert mine.held
    mine.release()
    assert list(tmp_path.iterdir()) == []
    process.join()


def test_only_one_of_many_takes_over_a_stale_folder(tmp_path: Path) -> None:
    dead = replace(owner.Owner.this_process(1), process_start="0", token="dead")
    (tmp_path / owner.FILE_NAME).write_text(json.dumps(asdict(dead)))
    holders = [_start_holder(tmp_path) for _ in range(4)]
    for process, _ in holders:
        process.kill()
        process.join()
    assert sorted(said == "held" for _, said in holders) == [False, False, False, True]


def _elsewhere(folder: Path, age_s: float, **changes: Any) -> None:
    other = replace(owner.Owner.this_process(1), host="other", machine="other", token="other", **changes)
    path = folder / owner.FILE_NAME
    path.write_text(json.dumps(asdict(other)))
    os.utime(path, (time.time() - age_s,) * 2)


def test_owner_on_another_machine_counts_by_its_last_sign_of_life(tmp_path: Path) -> None:
    _elsewhere(tmp_path, age_s=100)
    with pytest.raises(RunFolderError, match="on other"):
        owner.Ownership(tmp_path)
    _elsewhere(tmp_path, age_s=400)
    owner.Ownership(tmp_path).release()


def test_requeued_job_takes_over_from_its_earlier_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _elsewhere(tmp_path, age_s=1, job_id="77", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with pytest.raises(RunFolderError, match="job 77"):
        owner.Ownership(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    owner.Ownership(tmp_path).release()


def test_process_killed_while_writing_its_name_does_not_block(tmp_path: Path) -> None:
    (tmp_path / owner.FILE_NAME).touch()
    owner.Ownership(tmp_path).release()


def test_folder_taken_over_is_noticed_and_not_released(tmp_path: Path) -> None:
    mine = owner.Ownership(tmp_path)
    _elsewhere(tmp_path, age_s=0)
    assert not mine.held
    mine.release()
    assert owner.read_owner(tmp_path) is not None
