"""Hash, name and folder of a run, and its lock for a single process."""

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
from hypothesis import example, given
from hypothesis import strategies as st

from llmrl.core.errors import RunFolderError
from llmrl.results.run_records import find_only_run, find_runs
from llmrl.run import ownership
from llmrl.run.config_hash import EXCLUDED_KEYS, config_hash
from llmrl.run.folder import (
    MAX_LABEL_LENGTH,
    create_run_folder,
    find_run_folder,
    format_label,
    format_overrides,
    format_run_label,
    is_run_folder,
    parse_config_hash,
    parse_seed,
    shorten_overrides,
)
from llmrl.sweeps.jobs import select_label_overrides

LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
CONFIG = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key not in EXCLUDED_KEYS),
    st.recursive(
        LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_size=5,
)


@given(CONFIG)
def test_hash_ignores_order(config: dict[str, Any]) -> None:
    digest = config_hash(config)
    assert re.fullmatch("[0-9a-f]{8}", digest)
    assert config_hash(dict(reversed(config.items()))) == digest
    assert config_hash(config | dict.fromkeys(EXCLUDED_KEYS, "anything")) == digest


@given(CONFIG, LEAF)
def test_hash_detects_changes(config: dict[str, Any], leaf: Any) -> None:
    assert config_hash(config | {"one key more": leaf}) != config_hash(config)
    assert config_hash({"part": config}) != config_hash(
        {"part": config | {"seed": 1}}
    )  # only top-level keys are left out


def test_hash_treats_equal_numbers_alike() -> None:
    assert config_hash({"rate": 1}) == config_hash({"rate": 1.0})
    assert len({config_hash({"rate": value}) for value in (1, True, "1", None, 1.5, [1])}) == 6
    with pytest.raises(TypeError, match=r"config\.a.*0.*PosixPath"):
        config_hash({"a": [Path()]})


def test_hash_is_stable() -> None:
    """A changed hash would make existing runs unresumable."""
    assert config_hash({"env": {"_target_": "x.Y", "n": 3, "rate": 0.5}, "seed": 4}) == "91a22cc1"


OVERRIDE = st.text(max_size=40) | st.builds(
    "{}={}".format,
    st.sampled_from(["principal", "env.n_envs", "+agent.x", "~teacher", "learn.env_steps", "experiment", "llm.model"]),
    st.text(max_size=200) | st.sampled_from(["a/b", "outputs/pre/ppo-0a1b2c3d/s4", "[1, 2]", "été ß 日本"]),
)


@given(st.lists(OVERRIDE, max_size=8), st.text(min_size=1, max_size=30), CONFIG, CONFIG)
def test_folder_names_are_safe(overrides, name, first_config, second_config):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "glob", lambda self, pattern: iter(()))  # nothing is there yet
        try:
            first = find_run_folder(Path("/outputs"), name, config_hash(first_config), overrides, 3)
            second = find_run_folder(Path("/outputs"), name, config_hash(second_config), overrides, 3)
        except RunFolderError as error:
            assert "name=" in str(error)
            return
    parts = first.relative_to("/outputs")
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", part) and part[0] not in ".-" for part in parts.parts)
    assert first.name == "s3" and parse_seed(first) == 3 and parse_config_hash(first) == config_hash(first_config)
    assert len(first.parent.name) <= MAX_LABEL_LENGTH + 1 + 8 and is_run_folder(first)
    assert (first == second) == (config_hash(first_config) == config_hash(second_config))
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    if len(set(keys)) == len(keys):
        assert format_run_label(overrides[::-1]) == format_run_label(overrides)


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["principal=ucb", "env=escape_room"], "env_escape_room-principal_ucb"),
        (["seed=3", "hardware=slurm", "hardware.gpus=2", "output_root=/x"], "defaults"),
        (["+env.x=[1, 2]", "~teacher", "llm.model='a/b'"], "teacher_none-x_1-2-model_b"),
        (["agent.rate=1", "principal.rate=2"], "agent.rate_1-principal.rate_2"),
        (["experiment=legislative/cleanup_small", "treatment=taxed"], "taxed-cleanup_small"),
        (["agent.init_from=outputs/pre/ppo-0a1b2c3d/s4"], "init_from_0a1b2c3d-s4"),
        (["agent.init_from=outputs/pre/ppo-0a1b2c3d"], "init_from_0a1b2c3d"),
        (["prompts=~/mine/größer"], "defaults"),
        (["env.text=~/mine/größer Übung.yaml"], "text_gro-er-Ubung.yaml"),
    ],
)
def test_labels(overrides: list[str], label: str) -> None:
    assert format_run_label(overrides) == label


def test_label_states_length_in_sweep() -> None:
    """Two sweeps over principals have the same name and differ only in their length."""
    for key in ("learn.env_steps", "design.steps", "search.iterations"):
        short, long = (
            format_run_label(select_label_overrides(["principal=ucb", "env.n_envs=8", f"{key}={n}"], {"principal"}))
            for n in (1000, 2000)
        )
        assert short != long and "n_envs" not in short and short.endswith("_1000")
    # It is not what is cut away of a long label.
    long_options = [f"agent.option_{i}={'x' * 30}" for i in range(9)]
    assert "env_steps_1000" in format_run_label([*long_options, "learn.env_steps=1000"])


def test_tables_use_short_keys() -> None:
    options = {"principal": "ucb", "agent.rate": "0.1", "agent.init_from": "outputs/pre/ppo-0a1b2c3d/s4"}
    assert format_overrides(options) == "principal=ucb, rate=0.1, init_from=0a1b2c3d-s4"
    assert format_overrides(options, ["principal.rate"]) == "principal=ucb, agent.rate=0.1, init_from=0a1b2c3d-s4"


def test_parent_folder_resolves_to_single_run(tmp_path: Path) -> None:
    first = create_run_folder(tmp_path, "study", "0a1b2c3d", [], 0)
    for folder in (tmp_path, tmp_path / "study", first.parent, first):
        assert find_only_run(folder) == first
    second = create_run_folder(tmp_path, "study", "0a1b2c3d", [], 1)
    with pytest.raises(RunFolderError, match="has 2 runs") as error:
        find_only_run(tmp_path)
    assert str(first) in str(error.value) and str(second) in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="no run"):
        find_only_run(tmp_path / "empty")
    # A study may be called like a seed.
    second_run_folder = create_run_folder(tmp_path / "other", "s1", "0a1b2c3d", [], 0)
    assert find_runs(tmp_path / "other") == [second_run_folder]


def test_equivalent_spelling_finds_folder(tmp_path: Path) -> None:
    config = {"env": {"n": 5}}
    first = create_run_folder(tmp_path, "sweep", config_hash(config), ["env.n=5"], seed=2)
    assert first == tmp_path / "sweep" / f"n_5-{config_hash(config)}" / "s2"
    assert create_run_folder(tmp_path, "sweep", config_hash(config), ["experiment=five"], seed=2) == first
    assert create_run_folder(tmp_path, "sweep", config_hash(config), [], seed=3) == first.with_name("s3")
    assert create_run_folder(tmp_path, "sweep", config_hash({"env": {"n": 6}}), ["env.n=5"], seed=2) != first


@pytest.mark.parametrize("name", ["", "../elsewhere", "/elsewhere"])
def test_name_stays_inside_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="name="):
        create_run_folder(tmp_path, name, "", [], 0)


def test_unwritable_root_raises(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RunFolderError, match=r"output_root="):
        create_run_folder(file / "outputs", "sweep", "", [], 0)


def _hold(folder: Path, connection: Connection) -> None:
    try:
        ownership.Ownership(folder)
    except RunFolderError as error:
        connection.send(str(error))
    else:
        connection.send("held")
        time.sleep(600)


def _start_holder(folder: Path) -> tuple[Any, str]:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe()
    process = context.Process(target=_hold, args=(folder, writer), daemon=True)
    process.start()
    assert reader.poll(60)
    return process, reader.recv()


def test_locked_folder_raises_until_process_dies(tmp_path: Path) -> None:
    process, message = _start_holder(tmp_path)
    assert message == "held"
    with pytest.raises(RunFolderError, match=f"process {process.pid}"):
        ownership.Ownership(tmp_path)
    os.kill(process.pid, signal.SIGKILL)  # not joined: it stays a zombie, as under a parent that does not look
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    mine = ownership.Ownership(tmp_path)
    assert mine.is_held
    mine.release()
    assert list(tmp_path.iterdir()) == []
    process.join()


def test_only_single_process_takes_stale_folder(tmp_path: Path) -> None:
    dead = replace(ownership.Owner.for_this_process(1), process_start="0", token="dead")
    (tmp_path / ownership.FILE_NAME).write_text(json.dumps(asdict(dead)))
    holders = [_start_holder(tmp_path) for _ in range(4)]
    for process, _ in holders:
        process.kill()
        process.join()
    assert sorted(message == "held" for _, message in holders) == [False, False, False, True]


def _claim_remotely(folder: Path, age_s: float, **changes: Any) -> None:
    owner = replace(ownership.Owner.for_this_process(1), host="other", machine="other", token="other", **changes)
    path = folder / ownership.FILE_NAME
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age_s,) * 2)


def test_remote_owner_expires_with_heartbeat(tmp_path: Path) -> None:
    _claim_remotely(tmp_path, age_s=100)
    with pytest.raises(RunFolderError, match="on other"):
        ownership.Ownership(tmp_path)
    _claim_remotely(tmp_path, age_s=400)
    ownership.Ownership(tmp_path).release()


def test_requeue_takes_folder_from_earlier_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _claim_remotely(tmp_path, age_s=1, job_id="77", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with pytest.raises(RunFolderError, match="job 77"):
        ownership.Ownership(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    ownership.Ownership(tmp_path).release()


def test_lost_job_releases_only_its_folder(tmp_path: Path) -> None:
    _claim_remotely(tmp_path, age_s=1, job_id="night-7")
    ownership.release_ended_job(tmp_path, "night-8")
    with pytest.raises(RunFolderError, match="job night-7"):
        ownership.Ownership(tmp_path)
    ownership.release_ended_job(tmp_path, "night-7")
    ownership.Ownership(tmp_path).release()
    ownership.release_ended_job(tmp_path, "night-7")


def test_partial_owner_file_does_not_block(tmp_path: Path) -> None:
    (tmp_path / ownership.FILE_NAME).touch()
    ownership.Ownership(tmp_path).release()


def test_stolen_folder_is_not_released(tmp_path: Path) -> None:
    mine = ownership.Ownership(tmp_path)
    _claim_remotely(tmp_path, age_s=0)
    assert not mine.is_held
    mine.release()
    assert ownership.read_owner(tmp_path) is not None


@given(
    st.sets(st.text("ab./@", min_size=1, max_size=6).filter(lambda key: not re.search(r"^[./@]|[./@]$|[./@]{2}", key)))
)
@example({"llm/learn", "llm.learn"})
@example({"x.a.b", "y.a.b", "a.b", "b"})
def test_short_names_are_unique(keys):
    assert len(shorten_overrides(dict.fromkeys(keys, "1"))) == len(keys)
    assert format_label(dict.fromkeys(keys, "1"))
