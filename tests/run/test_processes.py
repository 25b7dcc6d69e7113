"""Runs with several processes: collective operations, shared run folder, signals, failures and resuming."""

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
from experiments import are_rows_close, compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.processes import LAUNCH_VARIABLES, ProcessGroup, local_device, read_rank_and_world_size
from llmrl.experiment.parts import check_deterministic, check_values, get_process_group
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.status import read_status

TESTS = Path(__file__).parents[1]
SIGNAL_GAME = ("--config-dir", str(TESTS / "third_party" / "conf"), "trusted_modules=[signal_game]")
GAME = ("env=signal_game", "agent=together", "env.n_envs=5", "learn.env_steps=640", "seed=0", "hardware=cpu")


@dataclass
class ProcessResult:
    """Results of a run with two processes."""

    codes: list[int]
    texts: list[str]
    root: Path

    def load_report(self, rank: int) -> dict[str, Any]:
        return json.loads((self.root / f"report-{rank}.json").read_text())

    def folder(self, name: str) -> Path:
        return find_run_folder(self.root / name)


def two_processes(root: Path, scenario: str) -> ProcessResult:
    """Run `joint_worker` in two processes with the environment of torchrun."""
    (root / "temporary").mkdir(parents=True)
    command = [sys.executable, str(TESTS / "support" / "joint_worker.py"), str(root), scenario]
    children = commands.start_ranks(command, TMPDIR=f"{root}/temporary")
    texts = [child.communicate(timeout=300)[0] for child in children]
    return ProcessResult([child.returncode for child in children], texts, root)


@pytest.fixture(scope="module")
def well(tmp_path_factory):
    outcome = two_processes(tmp_path_factory.mktemp("well"), "well")
    assert outcome.codes == [0, 0], outcome.texts
    return outcome


def test_exchanges_agree_across_ranks(well):
    first, second = (well.load_report(rank)["exchanges"] for rank in (0, 1))
    shares = list(zip(first.pop("share"), second.pop("share"), strict=True))
    assert shares == [([0, 0], [0, 0]), ([0, 0], [0, 1]), ([0, 1], [1, 2]), ([0, 3], [3, 7])]
    assert first == second
    assert first["everyone"] == [{"rank": 0}, {"rank": 1}] and first["main"] == "first"
    # 0.1 + 0.1 in the shortest float there is, and two lists of whole and of broken numbers.
    assert first["sum"] == [[[3.0] * 3] * 2, [1, 10], pytest.approx(0.2, rel=0.01)]
    assert first["gradients"] == [None, [3.0, 4.0], [2.0, 1.0]]


def test_two_processes_match_single_process(well, tmp_path):
    result = joint_worker.train(tmp_path, "whole", ProcessGroup())
    assert well.load_report(0)["result"] == well.load_report(1)["result"] == pytest.approx(result, rel=1e-5)
    folder = well.folder("whole")
    assert {p.name for p in folder.iterdir()} ^ {p.name for p in find_run_folder(tmp_path).iterdir()} <= {
        p.name for p in (*folder.glob("events*"), *find_run_folder(tmp_path).glob("events*"))
    }
    two, single = load_comparable_metrics(folder), load_comparable_metrics(find_run_folder(tmp_path))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in single], rel=1e-5)
    assert (folder / "written_by_the_loop").read_text() == "0"
    status = read_status(folder)
    assert status is not None and (status.state, status.attempt) == ("finished", 1)
    assert well.load_report(0)["again"] == well.load_report(1)["again"] == status.result


def test_secondary_processes_are_silent(well):
    assert "SIGTERM" not in well.texts[1]
    assert list((well.root / "temporary").glob("llmrl*")) == []


def test_signal_stops_all_ranks(well):
    assert well.load_report(0)["stopped"] == well.load_report(1)["stopped"] == 15
    status = json.loads(well.load_report(0)["status"])
    assert status["state"] == "preempted" and "SIGTERM" in status["error"] and "saved" in status["error"]
    assert status["progress"]["done"] == 3
    assert well.load_report(0)["resumed"] == well.load_report(1)["resumed"] == well.load_report(0)["result"]
    folder = well.folder("stopped")
    assert load_comparable_metrics(folder) == load_comparable_metrics(well.folder("whole"))
    assert read_status(folder).attempt == 2
    assert [p.stem for p in (folder / "checkpoints").iterdir()] == ["checkpoint_000000003"]


def test_diverging_metrics_raise(well):
    assert well.load_report(0)["drifted"] == well.load_report(1)["drifted"]
    assert " 2 " in well.load_report(0)["drifted"] and "numbers" in well.load_report(0)["drifted"]
    assert read_status(well.folder("drifted")).state == "failed"
    assert well.load_report(0)["other"] == well.load_report(1)["other"]
    assert " 2 " in well.load_report(0)["other"] and "configs" in well.load_report(0)["other"]


def test_failing_rank_ends_run_with_reason(tmp_path):
    outcome = two_processes(tmp_path, "crash")
    assert 0 not in outcome.codes
    folder = outcome.folder("crashed")
    status = read_status(folder)
    assert status.state == "failed"
    for part in ("process 1 of 2", socket.gethostname(), "ZeroDivisionError"):
        assert part in status.error
    assert "raise ZeroDivisionError" in (folder / "traceback.txt").read_text()
    assert not (folder / "owner.json").exists() and not list((tmp_path / "temporary").glob("llmrl*"))


def test_signal_is_forwarded_to_main_rank(tmp_path):
    """The main rank discards the work since its last checkpoint.

    Without the signal it would save at the next safe point.
    """
    outcome = two_processes(tmp_path, "far")
    assert 0 not in outcome.codes
    status = read_status(outcome.folder("given_up"))
    assert status.state == "preempted" and "saved" not in status.error


@pytest.mark.long
@pytest.mark.slow
def test_torchrun_matches_single_process(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {name: value for name, value in os.environ.items() if name not in LAUNCH_VARIABLES}
    done = subprocess.run(
        [*command, "-m", "llmrl.cli.train", *SIGNAL_GAME, *GAME, "name=two"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("10 final episodes") == 1
    two = load_comparable_metrics(find_run_folder(tmp_path / "outputs" / "two"))
    commands.run(
        [sys.executable, "-m", "llmrl.cli.train", *SIGNAL_GAME, *GAME, "name=one"],
        cwd=tmp_path,
        env=variables,
        check=True,
    )
    single = load_comparable_metrics(find_run_folder(tmp_path / "outputs" / "one"))
    assert len(two) == len(single) > 10
    assert are_rows_close(two, single, rel=1e-4)


@pytest.fixture
def two_ranks(monkeypatch):
    """Set the environment of one of two processes."""
    values = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    # Runs of tests before this one asked already, and the answer of then would be given again.
    monkeypatch.setattr("llmrl.core.processes._process_group", None)
    return monkeypatch


def test_invalid_variables_raise(two_ranks):
    assert read_rank_and_world_size() == (1, 2)
    two_ranks.setenv("RANK", "2")
    with pytest.raises(ConfigError, match=r"RANK=2.*0.*1.*WORLD_SIZE=2"):
        read_rank_and_world_size()
    two_ranks.setenv("RANK", "-1")
    with pytest.raises(ConfigError, match="RANK='-1'"):
        read_rank_and_world_size()
    two_ranks.delenv("MASTER_ADDR")
    two_ranks.delenv("RANK")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=2.*`torchrun"):
        ProcessGroup.join()
    two_ranks.setenv("WORLD_SIZE", "1")
    assert read_rank_and_world_size() == (0, 1)


def test_ranks_require_separate_gpus(two_ranks):
    two_ranks.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device("cuda") == "cuda:1" and local_device("cpu") == "cpu"
    two_ranks.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"process 1.*torch.* 1"):
        local_device("cuda")
    # Where a scheduler shows each process one alone, that is the one.
    two_ranks.setenv("SLURM_PROCID", "1")
    two_ranks.setenv("LOCAL_WORLD_SIZE", "2")
    assert local_device("cuda") == "cuda:0"
    two_ranks.delenv("WORLD_SIZE")
    assert local_device("cuda") == "cuda"


def test_unsupported_parallel_parts_raise(two_ranks):
    with pytest.raises(ConfigError, match=r"PPOAgent.* 2 processes .* agent=(\w+, )*llm_ppo"):
        check_values(compose("env=escape_room"))
    with pytest.raises(ConfigError, match=r"llmrl-train.*2"):
        get_process_group()
    for name in LAUNCH_VARIABLES:
        two_ranks.delenv(name)
    assert get_process_group().world_size == 1
    check_values(compose("env=escape_room"))
    with pytest.raises(ConfigError, match=r"PPOAgent.*8 processes"):
        check_values(compose("env=escape_room", "hardware=slurm_multi_gpu", "hardware.backend.nodes=2"))
    with pytest.raises(ConfigError, match=r"processes_per_node=3 .*hardware\.gpus=4"):
        run("env=escape_room", "hardware=slurm_multi_gpu", "hardware.backend.processes_per_node=3", "dry_run=true")
    with pytest.raises(ConfigError, match=r"chat model.*4 processes"):
        config = compose("env=escape_room", "agent=llm_ppo", "principal=llm", "hardware=slurm_multi_gpu")
        check_values(config)


def test_rank_dependent_games_raise(signal_game):
    from dataclasses import replace

    two = ProcessGroup()
    two.world_size = 2
    check_deterministic(signal_game().spec, two)
    with pytest.raises(ConfigError, match=r"signal_game.*2"):
        check_deterministic(replace(signal_game().spec, deterministic=False), two)


def test_single_process_is_independent():
    group = ProcessGroup.join()
    assert (group.rank, group.world_size, group.is_main) == (0, 1, True)
    rows = torch.arange(6.0).reshape(3, 2)
    assert group.gather(rows) is rows and rows[group.local_slice(3)].shape == (3, 2)
    assert group.all_gather_object("x") == ["x"]
    group.all_reduce([rows])
    assert rows.sum() == 15


def test_shards_partition_list():
    processes = ProcessGroup()
    for world_size in (1, 2, 3, 7):
        processes.world_size = world_size
        for n in (0, 1, 5, 64):
            indices = []
            for rank in range(processes.world_size):
                processes.rank = rank
                indices += list(range(n))[processes.local_slice(n)]
            assert indices == list(range(n))


def test_checkpoints_are_found_by_iteration(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.save(7, {"x": 1}) == store.get_path(7)
