"""Runs that several processes compute together: what they tell each other, one folder, stopping, failing, going on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import commands
import joint_worker
from experiments import comparable_metrics, compose, only_run_folder, rows_alike, run
from llmrl.core.errors import ConfigError
from llmrl.core.processes import VARIABLES, ProcessGroup, local_device, placed
from llmrl.experiment.distributed_checks import check_alike, processes_here
from llmrl.experiment.parts import check_values
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.status import read_status

TESTS = Path(__file__).parents[1]
TOGETHER = ("--config-dir", str(TESTS / "third_party" / "conf"), "trusted_modules=[signal_game]")
GAME = ("env=signal_game", "agent=together", "env.n_envs=5", "learn.env_steps=640", "seed=0", "hardware=cpu")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@dataclass
class Ended:
    """What two processes left behind."""

    codes: list[int]
    texts: list[str]
    root: Path

    def said(self, rank: int) -> dict[str, Any]:
        return json.loads((self.root / f"said-{rank}.json").read_text())

    def folder(self, name: str) -> Path:
        return only_run_folder(self.root / name)


def two_processes(root: Path, scenario: str) -> Ended:
    """`joint_worker`, started as torchrun would start it."""
    (root / "temporary").mkdir(parents=True)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TMPDIR": f"{root}/temporary"}
    command = [sys.executable, str(TESTS / "support" / "joint_worker.py"), str(root), scenario]
    children = [
        commands.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    texts = [child.communicate(timeout=300)[0] for child in children]
    return Ended([child.returncode for child in children], texts, root)


@pytest.fixture(scope="module")
def well(tmp_path_factory):
    ended = two_processes(tmp_path_factory.mktemp("well"), "well")
    assert ended.codes == [0, 0], ended.texts
    return ended


def test_what_is_exchanged_is_the_same_everywhere(well):
    first, second = (well.said(rank)["exchanges"] for rank in (0, 1))
    shares = list(zip(first.pop("share"), second.pop("share"), strict=True))
    assert shares == [([0, 0], [0, 0]), ([0, 0], [0, 1]), ([0, 1], [1, 2]), ([0, 3], [3, 7])]
    assert first == second
    assert first["everyone"] == [{"rank": 0}, {"rank": 1}] and first["agree"] == "first"
    # 0.1 + 0.1 in the shortest float there is, and two lists of whole and of broken numbers.
    assert first["sum"] == [[[3.0] * 3] * 2, [1, 10], pytest.approx(0.2, rel=0.01)]
    assert first["gradients"] == [None, [3.0, 4.0], [2.0, 1.0]]


def test_two_processes_make_the_one_run_that_one_makes(well, tmp_path):
    result = joint_worker.train(tmp_path, "whole", ProcessGroup())
    assert well.said(0)["result"] == well.said(1)["result"] == pytest.approx(result, rel=1e-5)
    folder = well.folder("whole")
    assert {p.name for p in folder.iterdir()} ^ {p.name for p in only_run_folder(tmp_path).iterdir()} <= {
        p.name for p in (*folder.glob("events*"), *only_run_folder(tmp_path).glob("events*"))
    }
    two, one = comparable_metrics(folder), comparable_metrics(only_run_folder(tmp_path))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-5)
    assert (folder / "written_by_the_loop").read_text() == "0"
    status = read_status(folder)
    assert status is not None and (status.state, status.attempt) == ("finished", 1)
    assert well.said(0)["again"] == well.said(1)["again"] == status.result


def test_the_others_are_quiet_and_leave_nothing(well):
    assert "SIGTERM" not in well.texts[1]
    assert list((well.root / "temporary").glob("llmrl*")) == []


def test_a_signal_to_one_stops_both_and_the_run_goes_on_as_if_nothing_had_happened(well):
    assert well.said(0)["stopped"] == well.said(1)["stopped"] == 15
    status = json.loads(well.said(0)["status"])
    assert (status["state"], status["error"]) == ("preempted", "stopped by SIGTERM; everything is saved")
    assert status["progress"]["done"] == 3
    assert well.said(0)["resumed"] == well.said(1)["resumed"] == well.said(0)["result"]
    folder = well.folder("stopped")
    assert comparable_metrics(folder) == comparable_metrics(well.folder("whole"))
    assert read_status(folder).attempt == 2
    assert [p.stem for p in (folder / "checkpoints").iterdir()] == ["checkpoint_000000003"]


def test_processes_that_log_different_numbers_are_found_out(well):
    assert well.said(0)["drifted"] == well.said(1)["drifted"]
    assert "have logged different numbers" in well.said(0)["drifted"]
    assert read_status(well.folder("drifted")).state == "failed"
    assert well.said(0)["other"] == well.said(1)["other"]
    assert "the 2 processes of this run were started with different configs" in well.said(0)["other"]


def test_one_that_fails_ends_the_run_and_the_folder_says_why(tmp_path):
    ended = two_processes(tmp_path, "crash")
    assert 0 not in ended.codes
    folder = ended.folder("crashed")
    status = read_status(folder)
    assert status.state == "failed"
    assert status.error == f"process 1 of 2 on {socket.gethostname()} failed: ZeroDivisionError: made to fail"
    assert "raise ZeroDivisionError" in (folder / "traceback.txt").read_text()
    assert not (folder / "owner.json").exists() and not list((tmp_path / "temporary").glob("llmrl*"))


def test_a_signal_to_one_that_is_far_from_a_safe_point_is_forwarded_to_the_first(tmp_path):
    """Which gives up the work since its last checkpoint; without that it would save at its next safe point."""
    ended = two_processes(tmp_path, "far")
    assert 0 not in ended.codes
    status = read_status(ended.folder("given_up"))
    assert status.state == "preempted" and "everything is saved" not in status.error


@pytest.mark.slow
def test_torchrun_computes_what_one_process_computes(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [*command, "-m", "llmrl.cli.train", *TOGETHER, *GAME, "name=two"],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("10 final episodes") == 1
    two = comparable_metrics(only_run_folder(tmp_path / "outputs" / "two"))
    commands.run(
        [sys.executable, "-m", "llmrl.cli.train", *TOGETHER, *GAME, "name=one"], cwd=tmp_path, env=alone, check=True
    )
    one = comparable_metrics(only_run_folder(tmp_path / "outputs" / "one"))
    assert len(two) == len(one) > 10
    assert rows_alike(two, one, rel=1e-4)


@pytest.fixture
def several(monkeypatch):
    """The environment of one of two processes."""
    values = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    # Runs of tests before this one asked already, and the answer of then would be given again.
    monkeypatch.setattr("llmrl.core.processes._joined", None)
    return monkeypatch


def test_variables_that_make_no_sense_are_named(several):
    assert placed() == (1, 2)
    several.setenv("RANK", "2")
    with pytest.raises(ConfigError, match="RANK=2 is no place among WORLD_SIZE=2 processes: 0 to 1"):
        placed()
    several.setenv("RANK", "-1")
    with pytest.raises(ConfigError, match="RANK='-1' in the environment"):
        placed()
    several.delenv("MASTER_ADDR")
    several.delenv("RANK")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2, and RANK, MASTER_ADDR not set: start .* `torchrun"):
        ProcessGroup.join()
    several.setenv("WORLD_SIZE", "1")
    assert placed() == (0, 1)


def test_each_process_needs_a_gpu_of_its_own(several):
    several.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device("cuda") == "cuda:1" and local_device("cpu") == "cpu"
    several.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="process 1 of this machine has no GPU of its own: torch sees 1"):
        local_device("cuda")
    # Where a scheduler shows each process one alone, that is the one.
    several.setenv("SLURM_PROCID", "1")
    several.setenv("LOCAL_WORLD_SIZE", "2")
    assert local_device("cuda") == "cuda:0"
    several.delenv("WORLD_SIZE")
    assert local_device("cuda") == "cuda"


def test_what_several_processes_would_compute_several_times_is_refused(several):
    with pytest.raises(ConfigError, match=r"PPOAgent computes alone, so 2 processes .* agent=(\w+, )*llm_ppo"):
        check_values(compose("env=escape_room"))
    with pytest.raises(ConfigError, match="only llmrl-train computes in several processes, and there are 2"):
        processes_here()
    for name in VARIABLES:
        several.delenv(name)
    assert processes_here().world_size == 1
    check_values(compose("env=escape_room"))
    with pytest.raises(ConfigError, match="PPOAgent computes alone, so 8 processes"):
        check_values(compose("env=escape_room", "hardware=slurm_multi_gpu", "hardware.backend.nodes=2"))
    with pytest.raises(ConfigError, match=r"processes_per_node=3 with hardware.gpus=4"):
        run("env=escape_room", "hardware=slurm_multi_gpu", "hardware.backend.processes_per_node=3", "dry_run=true")
    with pytest.raises(ConfigError, match="asks a chat model, which 4 processes would ask 4 times"):
        config = compose("env=escape_room", "agent=llm_ppo", "principal=llm", "hardware=slurm_multi_gpu")
        check_values(config)


def test_games_that_differ_between_processes_are_refused(signal_game):
    from dataclasses import replace

    two = ProcessGroup()
    two.world_size = 2
    check_alike(signal_game().spec, two)
    with pytest.raises(ConfigError, match="signal_game's engine plays other games each time, and the 2 processes"):
        check_alike(replace(signal_game().spec, deterministic=False), two)


def test_one_process_alone_needs_nobody():
    alone = ProcessGroup.join()
    assert (alone.rank, alone.world_size, alone.is_main) == (0, 1, True)
    rows = torch.arange(6.0).reshape(3, 2)
    assert alone.gather(rows) is rows and rows[alone.share(3)].shape == (3, 2)
    assert alone.all_gather_object("x") == ["x"] and alone.agree("x") == "x"
    alone.all_reduce([rows])
    assert rows.sum() == 15


def test_shares_cover_a_list_once():
    processes = ProcessGroup()
    for world_size in (1, 2, 3, 7):
        processes.world_size = world_size
        for n in (0, 1, 5, 64):
            covered = []
            for rank in range(processes.world_size):
                processes.rank = rank
                covered += list(range(n))[processes.share(n)]
            assert covered == list(range(n))


def test_checkpoints_are_found_by_iteration(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.save(7, {"x": 1}) == store.path(7)
